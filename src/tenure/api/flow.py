"""The flow that leads to a job: the job itself, the jobs that it waits or waited for, theirs, and so on."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.api.store import Store
from tenure.contract.flow_graph import FlowJob, read_flow
from tenure.errors import NotFound

#: How many jobs of a flow are looked at.
MAX_SHOWN = 1_000


def flow_leading_to(store: Store, job_id: str, limit: int = MAX_SHOWN) -> tuple[Mapping[str, FlowJob], bool]:
    """The jobs of the flow by id, the last one first, and whether there are more. Raises NotFound.

    A job whose parents are gone tells that they were there, and no more.
    """
    last = store.get(job_id)
    if last is None:
        raise NotFound(f"there is no job {job_id}")
    return read_flow(store.backend, last, limit, children=False)


def cancel_flow(store: Store, job_id: str) -> int:
    """Cancel the job and what leads to it, as far as it has not ended. Returns how many were cancelled here."""
    flow, _ = flow_leading_to(store, job_id)
    return sum(store.queue(job.queue, job.tenant).cancel(job.id) for job in flow.values())


def retry_flow(store: Store, job_id: str) -> int:
    """Replay the dead jobs of the flow that leads to a job. Returns how many."""
    flow, _ = flow_leading_to(store, job_id)
    dead = [job for job in flow.values() if job.state == "dead"]
    return sum(store.queue(job.queue, job.tenant).replay([job.id]).count for job in dead)
