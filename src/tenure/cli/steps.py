"""steps, signal: list a job's stored steps and signals, and send it a signal."""

from __future__ import annotations

import click

from tenure.cli import json_shapes
from tenure.cli.command import NO, command
from tenure.cli.output import clean, preview, strong
from tenure.cli.produce import content_of
from tenure.cli.session import Session
from tenure.cli.times import moment


@command(
    "steps",
    examples=(("The completed steps of a job, and its signals:", "tenure steps orders JOB_ID"),),
    short_help="List a job's steps and signals.",
)
@click.argument("queue")
@click.argument("job_id", metavar="JOB_ID")
def steps(session: Session, queue: str, job_id: str) -> None:
    """List the steps and signals of a job, in the order in which they were stored."""
    with session.queue(queue) as target:
        found = target.steps(job_id)
        if not found:
            session.require_queue(queue)
    if session.json:
        session.out.emit_all(json_shapes.step(step) for step in found)
    elif found:
        rows = [
            (step.kind, clean(step.name), moment(step.stored_at_ms) or "", preview(step.value, 400)) for step in found
        ]
        session.out.table(("kind", "name", "stored", "value"), rows, stretch="value")
    else:
        session.out.say("no steps and no signals")


@command(
    "signal",
    examples=(
        ("Continue a job that waits for an approval:", "tenure signal orders JOB_ID approval"),
        ("The same, with a payload:", 'tenure signal orders JOB_ID approval \'{"by": "ada"}\''),
    ),
    short_help="Send a signal to a job.",
)
@click.argument("queue")
@click.argument("job_id", metavar="JOB_ID")
@click.argument("name")
@click.argument("payload", required=False)
def signal(session: Session, queue: str, job_id: str, name: str, payload: str | None) -> None:
    """Send the signal NAME to a job. A job waiting for it becomes ready; one that waits for it later continues at once.

    PAYLOAD is text; - reads it from stdin. Ends with 1 if the job already has a signal of that name, which stays.
    """
    # Read before the store is opened: the program that writes to the pipe may have it open.
    content = content_of(payload)
    with session.queue(queue) as target:
        given = target.signal(job_id, name, content)
    if session.json:
        session.out.emit({"id": job_id, "signal": name, "given": given})
    else:
        session.out.say(strong(job_id), " has the signal " if given else " had the signal before: ", clean(name))
    if not given:
        raise click.exceptions.Exit(NO)
