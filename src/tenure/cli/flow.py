"""flow: show, cancel and retry the jobs that lead to a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from tenure.api.flow import cancel_flow, flow_leading_to, retry_flow
from tenure.cli.command import Family, command
from tenure.cli.output import Cell, headline, plural, state
from tenure.cli.session import Session
from tenure.cli.times import local
from tenure.contract.flow_graph import FlowJob


@click.group("flow", cls=Family, short_help="Jobs that wait for jobs: show, cancel, retry.")
def flow() -> None:
    """Work on the flow that leads to a job: the job, its parents, their parents, and so on."""


@command(
    "show",
    examples=(("What a report waits for:", "tenure flow show JOB_ID"),),
    short_help="Show what a job waits for, as a tree.",
)
@click.argument("job_id")
def show(session: Session, job_id: str) -> None:
    """Show JOB_ID and below it the jobs that it waits or waited for, each once, with their states, times and errors."""
    with session.store() as store:
        found, more = flow_leading_to(store, job_id)
    if session.json:
        session.out.emit_all(_shape(job) for job in found.values())
        return
    rows = list(_rows(found, job_id, 0, set()))
    session.out.table(("job", "queue", "state", "created", "ended", "error"), rows, stretch="error")
    if more:
        session.out.note(f"there are more: the first {len(found):,} are shown")


def _shape(job: FlowJob) -> dict[str, object]:
    return {
        "id": job.id, "tenant": job.tenant, "queue": job.queue, "state": job.state, "depth": job.depth,
        "parents": job.parents, "error": None if job.job is None else job.job.error,
    }  # fmt: skip


def _rows(found: Mapping[str, FlowJob], job_id: str, depth: int, seen: set[str]) -> Iterator[list[Cell]]:
    one = found.get(job_id)
    if one is None or job_id in seen:
        return
    seen.add(job_id)
    job = one.job
    yield [
        "  " * depth + one.id,
        one.queue,
        state(one.state),
        "" if job is None else local(job.created_at_ms),
        "" if job is None or job.ended_at_ms is None else local(job.ended_at_ms),
        "" if job is None or job.error is None else headline(job.error),
    ]
    for parent in one.parents:
        yield from _rows(found, parent, depth + 1, seen)


@command(
    "cancel",
    examples=(("Give up a flow:", "tenure flow cancel JOB_ID"),),
    short_help="Cancel a job and the jobs that lead to it.",
)
@click.argument("job_id")
def cancel(session: Session, job_id: str) -> None:
    """Cancel those of JOB_ID and the jobs that it waits for that have not ended."""
    with session.store() as store:
        count = cancel_flow(store, job_id)
    if session.json:
        session.out.emit({"cancelled": count})
    else:
        session.out.say(f"cancelled {plural(count, 'job')}")


@command(
    "retry",
    examples=(("Continue from the dead jobs:", "tenure flow retry JOB_ID"),),
    short_help="Replay the dead jobs that a job waits for.",
)
@click.argument("job_id")
def retry(session: Session, job_id: str) -> None:
    """Replay the dead ones among JOB_ID and the jobs that it waits for: the flow continues from there."""
    with session.store() as store:
        count = retry_flow(store, job_id)
    if session.json:
        session.out.emit({"replayed": count})
    else:
        session.out.say(f"replayed {plural(count, 'job')}")


for each in (show, cancel, retry):
    flow.add_command(each)
