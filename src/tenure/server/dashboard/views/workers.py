"""workers: leases by worker, and recent claims."""

from __future__ import annotations

from time import perf_counter

from msgspec import Struct

from tenure.model.ids import created_ms
from tenure.model.job import Job
from tenure.model.names import QueueName
from tenure.server.dashboard.history import WorkerSeen
from tenure.server.dashboard.views.jobs import SEARCH_S
from tenure.server.dashboard.views.viewer import ROWS, NoQuery, Viewer

_LEASES = 500


class LeaseRow(Struct):
    worker: str
    tenant: str
    queue: str
    lease_id: str
    since_ms: int
    until_ms: int
    jobs: int
    #: Some of the ids.
    ids: list[str]


class WorkersView(Struct):
    leases: list[LeaseRow]
    #: Whether there are more than were read.
    more: bool
    #: Workers by their last claim, as seen by this server.
    seen: list[WorkerSeen]


def show(viewer: Viewer, query: NoQuery) -> WorkersView:
    infos = [
        info for info in viewer.infos() if info.counts.leased
    ]  # before the clock starts: reading them takes long in a large store
    began, looked_at, more = perf_counter(), 0, False
    leases: dict[str, LeaseRow] = {}
    for info in infos:
        if looked_at >= _LEASES or (leases and perf_counter() - began > SEARCH_S):
            more = True
            break
        page = viewer.backend.list(QueueName(info.tenant, info.queue), "leased", ROWS, None)
        looked_at, more = looked_at + len(page.jobs), more or page.cursor is not None
        for one in page.jobs:
            _add_lease(leases, one)
    seen = [
        one
        for one in viewer.history.workers()
        if viewer.identity.sees(viewer.tenant(""), QueueName(one.tenant, one.queue))
    ]
    return WorkersView(leases=sorted(leases.values(), key=lambda row: row.since_ms), more=more, seen=seen[:ROWS])


def _add_lease(leases: dict[str, LeaseRow], job: Job) -> None:
    if job.lease_id is None or job.lease_until_ms is None:
        return
    row = leases.get(job.lease_id)
    if row is None:
        since_ms = created_ms(bytes.fromhex(job.lease_id))
        row = LeaseRow(job.worker or "", job.tenant, job.queue, job.lease_id, since_ms, job.lease_until_ms, 0, [])
        leases[job.lease_id] = row
    row.jobs += 1
    if len(row.ids) < 5:
        row.ids.append(job.id)
