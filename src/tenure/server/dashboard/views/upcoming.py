"""upcoming: the next scheduled jobs."""

from __future__ import annotations

from msgspec import Struct

from tenure.model.request import UpcomingRequest
from tenure.server.dashboard.views.jobs import Brief, brief
from tenure.server.dashboard.views.viewer import ROWS, NoQuery, Viewer


class UpcomingView(Struct):
    jobs: list[Brief]


def show(viewer: Viewer, query: NoQuery) -> UpcomingView:
    # Read only queues with scheduled jobs: in a large store most have none, and each costs a few reads.
    queues = frozenset(info.queue for info in viewer.infos() if info.counts.scheduled)
    if not queues:
        return UpcomingView([])
    found = viewer.backend.upcoming(UpcomingRequest(2**62, 0, ROWS, None, viewer.tenant(""), queues))
    return UpcomingView([brief(job) for job in found])
