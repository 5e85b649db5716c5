"""Read the graph of jobs around a job from any backend, with a bounded number of calls.

parents   jobs that a job waits or waited for     (up: the flow that leads to the job)
children  jobs that wait or waited for a job      (down)
"""

from __future__ import annotations

from collections import deque

import msgspec

from tenure.contract.backend import Backend
from tenure.model.job import Job, ParentResult
from tenure.model.names import QueueName


class FlowJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a flow. `job` is None once it is removed; `depth` is its distance from the first job."""

    id: str
    tenant: str
    queue: str
    state: str
    depth: int
    job: Job | None
    #: Ids, in the order in which the job named them.
    parents: list[str]


def read_flow(backend: Backend, job: Job, limit: int, *, children: bool) -> tuple[dict[str, FlowJob], bool]:
    """Return the jobs of the flow by id, the given one first and the nearest next, and whether there are more than
    `limit`.

    Without `children`, only jobs that lead to the given one. The parents and children of a removed job are unknown.
    """
    found: dict[str, FlowJob] = {}
    wanted = deque([(job.id, job.queue, job.state, 0)])
    more = False
    while wanted:
        one, queue, state, depth = wanted.popleft()
        if one in found:
            continue
        if len(found) == limit:
            return found, True
        name, key = QueueName(job.tenant, queue), bytes.fromhex(one)
        known = job if one == job.id else backend.get(name, key)
        parents = [] if known is None else _parents(backend, name, key, limit)
        below = [] if known is None or not children else backend.children(name, key, limit)
        more = more or len(parents) == limit or len(below) == limit
        found[one] = FlowJob(
            id=one, tenant=job.tenant, queue=queue, state=state if known is None else known.state, depth=depth,
            job=known, parents=[parent.id for parent in parents],
        )  # fmt: skip
        wanted += [(parent.id, parent.queue, parent.state, depth + 1) for parent in parents]
        wanted += [(child.id, child.queue, child.state, depth + 1) for child in below]
    return found, more


def _parents(backend: Backend, name: QueueName, job: bytes, limit: int) -> list[ParentResult]:
    found: list[ParentResult] = []
    while len(found) < limit and (page := backend.parents(name, job, len(found), limit - len(found))):
        found += page
    return found
