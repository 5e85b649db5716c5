"""`app.schedules`: schedules for calls of tasks, made and changed while the app runs.

    app.schedules.add("report", report.s("weekly"), cron="0 9 * * 1", tz="Europe/Berlin")
    app.schedules.add("poll", poll.s(), every=30)
    app.schedules.pause("poll"); app.schedules.resume("poll"); app.schedules.run_now("poll"); app.schedules.remove("poll")

They are stored, so that every worker of the store's tenant runs them, and each tick is enqueued once.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from tenure.errors import InvalidArgument
from tenure.model.durations import Duration
from tenure.model.schedule import Missed, Schedule, interval_ms
from tenure.worker.codec import open_envelope
from tenure.worker.flows import Signature
from tenure.worker.handles import Handle
from tenure.worker.periodic import Scheduled, enqueue_tick_job

if TYPE_CHECKING:
    from tenure.worker.app import App


class Schedules:
    """The schedules of an app's tenant, in its store."""

    def __init__(self, app: App) -> None:
        self._app = app

    def add(
        self,
        name: str,
        call: Signature[Any],
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        missed: Missed = "skip",
        replace: bool = False,
    ) -> Schedule:
        """Enqueue a call at each tick of a cron expression in a time zone, or at an interval (at least a second).

        `missed`: how to treat ticks at which no worker ran: `skip`, or `catch_up`. `replace`: overwrite a schedule of
        the same name. The job gets the task's queue, priority and max_attempts. Raises InvalidArgument, and TypeError
        if arguments are missing.
        """
        if not isinstance(call, Signature):
            raise InvalidArgument(f"a schedule is for a call, task.s(...), not {type(call).__name__}")
        call.check_complete()
        job = call.task.step_job(call.task.codec.encode_step(call.given, {}), call.given, waits=False)
        schedule = Schedule(
            name=name, tenant=self._app.tenant, queue=call.task.queue, payload=job.payload, cron=cron,
            every_ms=interval_ms(every), tz=tz, missed=missed, priority=job.priority, max_attempts=job.max_attempts,
            created_at_ms=self._app.clock.wall_ms(),
        ).checked()  # fmt: skip
        self._app.store.add_schedule(schedule, replace=replace)
        self._await_next(schedule)
        return schedule

    def list(self) -> builtins.list[Schedule]:
        """Return the schedules, ordered by name."""
        return self._app.store.schedules(self._app.tenant)

    def pause(self, name: str) -> bool:
        """Stop its ticks until it is resumed; False if there is none of that name."""
        return self._app.store.pause_schedule(name, self._app.tenant)

    def resume(self, name: str) -> bool:
        """Resume it; ticks that passed meanwhile are not made up for. False if there is none of that name."""
        resumed = self._app.store.resume_schedule(name, self._app.tenant)
        for schedule in self.list():
            if schedule.name == name:
                self._await_next(schedule)
        return resumed

    def remove(self, name: str) -> bool:
        """Remove it; False if there is none of that name. The jobs that it enqueued stay."""
        return self._app.store.remove_schedule(name, self._app.tenant)

    def run_now(self, name: str) -> Handle[Any]:
        """Enqueue its call now. Raises NotFound."""
        added = self._app.store.run_schedule(name, self._app.tenant)
        schedule = next(each for each in self.list() if each.name == name)
        task = self._app.find(open_envelope(schedule.payload).task)
        return Handle(task, self._app.store.queue(schedule.queue, schedule.tenant), added.id)

    def _await_next(self, schedule: Schedule) -> None:
        """Enqueue its next tick job, so that workers need not discover the schedule first."""
        upcoming = schedule.next(self._app.clock.wall_ms())
        if upcoming is not None:
            enqueue_tick_job(self._app.store, self._app.tenant, Scheduled(self._app.store, schedule), upcoming)
