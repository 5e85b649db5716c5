"""The flow that leads to a job: the job, its parents, their parents, and so on."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.api.store import Store
from tenure.contract.flow_graph import FlowJob, read_flow
from tenure.errors import NotFound

#: The largest number of jobs that is read of a flow.
MAX_SHOWN = 1_000


def flow_leading_to(store: Store, job_id: str, limit: int = MAX_SHOWN) -> tuple[Mapping[str, FlowJob], bool]:
    """Return the jobs of the flow by id, the last one first, and whether there are more. Raises NotFound.

    Of a parent that no longer exists only the id is known.
    """
    last = store.get(job_id)
    if last is None:
        raise NotFound(f"there is no job {job_id}")
    return read_flow(store.backend, last, limit, children=False)


def cancel_flow(store: Store, job_id: str) -> int:
    """Cancel the job and all jobs leading to it that have not ended. Return how many this call cancelled."""
    flow, _ = flow_leading_to(store, job_id)
    return sum(store.queue(job.queue, job.tenant).cancel(job.id) for job in flow.values())


def retry_flow(store: Store, job_id: str) -> int:
    """Replay the dead jobs of the flow that leads to a job. Return how many."""
    flow, _ = flow_leading_to(store, job_id)
    dead = [job for job in flow.values() if job.state == "dead"]
    return sum(store.queue(job.queue, job.tenant).replay([job.id]).count for job in dead)
