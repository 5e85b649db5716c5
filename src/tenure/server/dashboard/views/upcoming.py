"""upcoming: the next scheduled jobs."""

from __future__ import annotations

from msgspec import Struct

from tenure.model.request import UpcomingRequest
from tenure.server.dashboard.views.jobs import Brief, brief
from tenure.server.dashboard.views.viewer import ROWS, NoQuery, Viewer


class UpcomingView(Struct):
    jobs: list[Brief]


def show(viewer: Viewer, query: NoQuery) -> UpcomingView:
    scheduled = any(info.counts.scheduled for info in viewer.infos())
    if not scheduled:
        return UpcomingView([])
    found = viewer.backend.upcoming(UpcomingRequest(2**62, 0, ROWS, None, viewer.tenant(""), viewer.identity.queues))
    return UpcomingView([brief(job) for job in found])
