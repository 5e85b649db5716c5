"""schedules: schedules with their next runs."""

from __future__ import annotations

from itertools import islice

from msgspec import Struct

from tenure.model.names import QueueName
from tenure.model.schedule import Schedule
from tenure.server.dashboard.views.jobs import preview
from tenure.server.dashboard.views.viewer import ROWS, NoQuery, Viewer

#: How many next runs are shown.
_RUNS = 3


class ScheduleRow(Struct):
    name: str
    tenant: str
    queue: str
    cron: str | None
    every_ms: int | None
    tz: str
    missed: str
    paused: bool
    preview: str
    #: The next runs; empty if it is paused, or has no next run.
    next_ms: list[int]


class SchedulesView(Struct):
    """Schedules, the next to run first, paused ones last. `found`: how many there are, of which ROWS are shown."""

    schedules: list[ScheduleRow]
    found: int


def show(viewer: Viewer, query: NoQuery) -> SchedulesView:
    acting, now_ms = viewer.tenant(""), viewer.backend.now_ms()
    found = [
        one
        for one in viewer.backend.schedules(acting)
        if viewer.identity.sees(acting, QueueName(one.tenant, one.queue))
    ]
    first = sorted(found, key=lambda one: (one.next(now_ms) or 2**62, one.tenant, one.name))[:ROWS]
    return SchedulesView([_row(one, now_ms) for one in first], len(found))


def _row(schedule: Schedule, now_ms: int) -> ScheduleRow:
    runs = [] if schedule.paused else list(islice(schedule.ticks.after(now_ms), _RUNS))
    return ScheduleRow(
        name=schedule.name,
        tenant=schedule.tenant,
        queue=schedule.queue,
        cron=schedule.cron,
        every_ms=schedule.every_ms,
        tz=schedule.tz,
        missed=schedule.missed,
        paused=schedule.paused,
        preview=preview(schedule.payload),
        next_ms=runs,
    )
