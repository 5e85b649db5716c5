"""The contents of each page, as structs encoded to JSON: read from a backend for one caller, at a bounded cost.

    me         the caller and what its scopes allow
    overview   tenants and queues with their counts, a page of them
    queue      one queue: counts, policy, the last hour
    groups     the groups of a queue, and their shares
    jobs       jobs of a queue by state, searched by id, key, error and time
    job        one job: payload, result, timeline, explanation, steps, parents and children
    flow       the graph of jobs that a job is part of
    dead       dead letters of a queue, grouped by cause
    workers    leases by worker, and recent claims
    schedules  schedules with their next runs
    upcoming   the next scheduled jobs

Times are milliseconds since 1970; the page computes ages, so that a view changes only when the store does. Another
tenant's queue or job looks like an unknown one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from tenure.errors import InvalidArgument
from tenure.server.dashboard.views import (
    account,
    dead,
    flow,
    groups,
    job,
    jobs,
    overview,
    queue,
    schedules,
    upcoming,
    workers,
)
from tenure.server.dashboard.views.viewer import NoQuery, Viewer

__all__ = ["VIEWS", "View", "Viewer", "shown"]


class View(NamedTuple):
    asks: Any  # a struct type, which msgspec decodes
    show: Callable[[Viewer, Any], object]


VIEWS: dict[str, View] = {
    "me": View(NoQuery, account.show),
    "overview": View(overview.OverviewQuery, overview.show),
    "queue": View(queue.QueueQuery, queue.show),
    "groups": View(queue.QueueQuery, groups.show),
    "jobs": View(jobs.JobsQuery, jobs.show),
    "job": View(job.JobQuery, job.show),
    "flow": View(job.JobQuery, flow.show),
    "dead": View(dead.DeadQuery, dead.show),
    "workers": View(NoQuery, workers.show),
    "schedules": View(NoQuery, schedules.show),
    "upcoming": View(NoQuery, upcoming.show),
}


def shown(view: View, viewer: Viewer, query: Mapping[str, str]) -> bytes:
    """Return the view as JSON. Raises InvalidArgument, NotFound."""
    try:
        parameters = msgspec.convert(dict(query), view.asks, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidArgument(str(exc)) from None
    return msgspec.json.encode(view.show(viewer, parameters))
