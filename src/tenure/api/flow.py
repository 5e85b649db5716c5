"""The flow that leads to a job: the job itself, the jobs that it waits or waited for, theirs, and so on."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tenure.api.store import Store
from tenure.errors import NotFound
from tenure.model.job import Job

#: How many jobs of a flow are looked at.
MAX_SHOWN = 1_000


class FlowJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a flow. `job` is None once it is gone; `depth` is how many jobs lie between it and the last one, and one more."""

    id: str
    tenant: str
    queue: str
    state: str
    depth: int
    job: Job | None
    #: Ids, in the order in which it named them.
    parents: list[str]


def flow_leading_to(store: Store, job_id: str, limit: int = MAX_SHOWN) -> tuple[Mapping[str, FlowJob], bool]:
    """The jobs of the flow by id, the last one first, and whether there are more. Raises NotFound.

    A job whose parents are gone tells that they were there, and no more.
    """
    last = store.get(job_id)
    if last is None:
        raise NotFound(f"there is no job {job_id}")
    found: dict[str, FlowJob] = {}
    wanted = [(last.id, last.queue, "", 0)]
    while wanted and len(found) < limit:
        one, queue, state, depth = wanted.pop(0)
        if one in found:
            continue
        handle = store.queue(queue, last.tenant)
        job = last if one == last.id else handle.get(one)
        parents = [] if job is None else handle.parents(one)
        found[one] = FlowJob(
            id=one, tenant=last.tenant, queue=queue, state=job.state if job is not None else state, depth=depth, job=job,
            parents=[parent.id for parent in parents],
        )  # fmt: skip
        wanted += [(parent.id, parent.queue, parent.state, depth + 1) for parent in parents]
    return found, any(one not in found for one, *_ in wanted)


def cancel_flow(store: Store, job_id: str) -> int:
    """Cancel the job and what leads to it, as far as it has not ended. Returns how many were cancelled here."""
    flow, _ = flow_leading_to(store, job_id)
    return sum(store.queue(job.queue, job.tenant).cancel(job.id) for job in flow.values())


def retry_flow(store: Store, job_id: str) -> int:
    """Replay the dead jobs of the flow that leads to a job. Returns how many."""
    flow, _ = flow_leading_to(store, job_id)
    dead = [job for job in flow.values() if job.state == "dead"]
    return sum(store.queue(job.queue, job.tenant).replay([job.id]).count for job in dead)
