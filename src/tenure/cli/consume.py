"""claim, and the commands that settle: each takes a receipt, the proof of a live lease."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO

import click

from tenure.api.queue import Queue
from tenure.cli import json_shapes
from tenure.cli.command import LOST, command, no
from tenure.cli.output import Output, clean, faint, plural, preview, strong
from tenure.cli.progress import progress_bar
from tenure.cli.session import Session
from tenure.cli.times import DURATION, moment, span
from tenure.errors import InvalidArgument, LeaseLost
from tenure.model.lease import Delivery, Proof, proof_of

receipts_argument = click.argument("receipts", metavar="RECEIPT...", nargs=-1, required=True)
error_option = click.option("--error", "-e", help="What went wrong: kept with the job.")


@command(
    "claim",
    examples=(
        ("Two jobs for a minute:", "tenure claim emails --limit 2 --lease 60"),
        (
            "The first of two queues that has a job, waiting up to 10 seconds:",
            "tenure claim urgent emails --wait 10",
        ),
        (
            "In a script: take one, work on it, settle it:",
            'receipt=$(tenure claim emails --json | jq -r .receipt) && work && tenure ack emails "$receipt"',
        ),
    ),
    short_help="Claim jobs under a lease; prints their receipts.",
)
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True)
@click.option("--limit", "-n", type=int, default=1, show_default=True, help="At most this many jobs.")
@click.option("--lease", type=DURATION, help="The lease's duration (default: the queue's policy).")
@click.option("--wait", type=DURATION, default=0.0, help="How long to wait for a job, if there is none.")
@click.option(
    "--worker", default="command-line", show_default=True, help="The claimer's name, shown by list, get and top."
)
@click.option("--max-bytes", type=int, help="Stop before the payloads exceed this (one job is always given).")
@click.option("--id", "claim_id", help="A repeated claim with the same id gives the same jobs, not more.")
def claim(
    session: Session,
    queues: Sequence[str],
    limit: int,
    lease: float | None,
    wait: float,
    worker: str,
    max_bytes: int | None,
    claim_id: str | None,
) -> None:
    """Claim up to --limit jobs of the first QUEUE that has any, under one lease.

    Until the lease ends nobody else gets them. Settle each with its receipt: ack, nack, fail or release. Jobs that are
    not settled in time become ready again. Ends with 1 if there is nothing to claim.
    """
    if claim_id is not None and len(queues) > 1:
        raise click.UsageError("--id repeats a claim on one queue: name one.")
    with session.store() as store, progress_bar(f"Waiting up to {span(wait)} for a job") as _:
        handles = [store.queue(name, session.tenant) for name in queues]
        if len(handles) == 1:
            claimed = handles[0].claim(limit, lease, wait, worker, max_bytes=max_bytes, id=claim_id)
        else:
            claimed = store.claim(handles, limit, lease, wait, worker, max_bytes=max_bytes)
        # skipped with --json: for polling programs, listing all queues would cost too much
        if not claimed and not session.json:
            for name in queues:
                session.require_queue(name)
    if not claimed or claimed.until is None:
        no(session, f"nothing to claim in {', '.join(str(handle.name) for handle in handles)}")
    until_ms = round(claimed.until.timestamp() * 1000)
    if session.json:
        session.out.emit_all(json_shapes.delivery(delivery, until_ms) for delivery in claimed)
        return
    session.out.say(
        "claimed ", strong(plural(len(claimed), "job")), f" of {claimed.queue.name} until {moment(until_ms)}"
    )
    for delivery in claimed:
        session.out.say("")
        _show(session.out, delivery)
    tenant = "" if session.tenant == "default" else f" --tenant {session.tenant}"
    session.out.hint(
        f"\nSettle each: tenure ack {claimed.queue.name.queue} RECEIPT{tenant} (or nack, fail, release, extend)"
    )


def _show(out: Output, delivery: Delivery) -> None:
    out.facts(
        {
            "job": delivery.id,
            "payload": preview(delivery.payload) or faint("(empty)"),
            "attempt": f"{delivery.attempt} of {delivery.max_attempts}"
            + (f", priority {delivery.priority}" if delivery.priority else ""),
            "headers": clean(" ".join(f"{name}={value}" for name, value in delivery.headers.items())),
            "key": clean(delivery.key or ""),
            "group": clean(delivery.group or ""),
            "receipt": strong(delivery.receipt),
        }
    )


# ── settle ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@command(
    "ack",
    examples=(
        ("Done:", "tenure ack emails RECEIPT"),
        ("Done, with a result:", "tenure ack emails RECEIPT --result '42'"),
        (
            "All that was claimed (receipts from stdin):",
            "tenure claim emails -n 9 --json | jq -r .receipt | tenure ack emails -",
        ),
    ),
    short_help="Settle: done.",
)
@click.argument("queue")
@receipts_argument
@click.option("--result", help="Keep this text as the job's result.")
@click.option("--result-file", type=click.File("rb"), help="Keep a file's content as the job's result.")
def ack(
    session: Session, queue: str, receipts: Sequence[str], result: str | None, result_file: BinaryIO | None
) -> None:
    """Mark the jobs done. RECEIPT is what claim printed; - reads receipts from stdin, one per line."""
    if result is not None and result_file is not None:
        raise click.UsageError("Give --result or --result-file, not both.")
    content = result_file.read() if result_file else None if result is None else result.encode()
    _settle(session, queue, receipts, "acked", lambda target, receipt: target.ack(receipt, content))


@command(
    "nack",
    examples=(
        (
            "It failed; the queue's policy decides when it is retried, or that it is dead:",
            "tenure nack emails RECEIPT --error 'timeout'",
        ),
        ("Try again in five minutes:", "tenure nack emails RECEIPT --delay 5m"),
    ),
    short_help="Settle: failed, to be retried.",
)
@click.argument("queue")
@receipts_argument
@error_option
@click.option("--delay", type=DURATION, help="Retry after this long, instead of the policy's backoff (0: now).")
def nack(session: Session, queue: str, receipts: Sequence[str], error: str | None, delay: float | None) -> None:
    """Report that the jobs failed.

    They are retried after the policy's backoff, or dead if this was their last attempt.
    """
    _settle(session, queue, receipts, "nacked", lambda target, receipt: target.nack(receipt, error, delay))


@command(
    "fail",
    examples=(("It can never succeed:", "tenure fail emails RECEIPT --error 'no such address'"),),
    short_help="Settle: failed for good.",
)
@click.argument("queue")
@receipts_argument
@error_option
def fail(session: Session, queue: str, receipts: Sequence[str], error: str | None) -> None:
    """Report that the jobs can never succeed: they are dead at once, whatever attempts are left."""
    _settle(session, queue, receipts, "failed", lambda target, receipt: target.fail(receipt, error))


@command(
    "release",
    examples=(("Give it back untouched:", "tenure release emails RECEIPT"),),
    short_help="Settle: released, attempt not counted.",
)
@click.argument("queue")
@receipts_argument
def release(session: Session, queue: str, receipts: Sequence[str]) -> None:
    """Put the jobs back at their place in the queue, ready at once. The attempt is not counted."""
    _settle(session, queue, receipts, "released", lambda target, receipt: target.release(receipt))


def _settle(
    session: Session, queue: str, receipts: Sequence[str], done: str, settle: Callable[[Queue, str], None]
) -> None:
    """Settle each receipt separately. Report the lost leases, and then end with 3."""
    given = read_receipts(receipts)
    proofs = [read_proof(receipt) for receipt in given]  # a malformed receipt raises before any is settled
    outcomes: list[LeaseLost | None] = []
    with session.queue(queue) as target, progress_bar(f"Settling in {queue}") as progress:
        for count, receipt in enumerate(given, 1):
            try:
                settle(target, receipt)
                outcomes.append(None)
            except LeaseLost as lost:
                if len(given) == 1:
                    raise
                outcomes.append(lost)
            progress(count, len(given))
    for proof, outcome in zip(proofs, outcomes, strict=True):
        if session.json:
            session.out.emit(
                {"id": proof.job.hex(), "settled": outcome is None, "error": outcome.code if outcome else None}
            )
        elif outcome is None:
            session.out.say(f"{done} ", strong(proof.job.hex()))
    lost_ones = [outcome for outcome in outcomes if outcome is not None]
    if lost_ones:
        if not session.json:
            for outcome in lost_ones:
                session.out.problem(outcome.code, str(outcome))
        raise click.exceptions.Exit(LOST)


def read_receipts(receipts: Sequence[str]) -> list[str]:
    """Return the receipts; `-` stands for the lines of stdin, which are read before the store is opened."""
    given: list[str] = []
    for receipt in receipts:
        given.extend(line.strip() for line in sys.stdin if line.strip()) if receipt == "-" else given.append(receipt)
    return given


def read_proof(receipt: str) -> Proof:
    try:
        return proof_of(receipt)
    except InvalidArgument:
        raise InvalidArgument(
            f"{receipt!r} is not a receipt: settle with what 'tenure claim' printed, not with a job's id"
        ) from None


@command(
    "extend",
    examples=(("Keep the claim for another minute from now:", "tenure extend emails RECEIPT --lease 60"),),
    short_help="Extend a claim's lease.",
)
@click.argument("queue")
@click.argument("receipt")
@click.option("--lease", type=DURATION, help="At least this long from now (default: the queue's policy).")
def extend(session: Session, queue: str, receipt: str, lease: float | None) -> None:
    """Extend the lease of the whole claim to which RECEIPT belongs: all its jobs, in one write."""
    read_proof(receipt)
    with session.queue(queue) as target:
        extended = target.extend(receipt, lease)
    if session.json:
        session.out.emit({**json_shapes.times("lease_until", extended.until_ms), "lost": extended.lost})
        return
    session.out.say("yours until ", strong(moment(extended.until_ms)))
    for job_id in extended.lost:
        session.out.say(f"no longer yours (cancelled): {job_id}")


@command(
    "progress",
    examples=(("Forty per cent done:", "tenure progress emails RECEIPT 0.4 'resizing'"),),
    short_help="Record a job's progress.",
)
@click.argument("queue")
@click.argument("receipt")
@click.argument("fraction", type=float)
@click.argument("note", required=False)
def progress(session: Session, queue: str, receipt: str, fraction: float, note: str | None) -> None:
    """Record the job's progress (FRACTION, 0 to 1), which get shows. It does not extend the lease."""
    proof = read_proof(receipt)
    with session.queue(queue) as target:
        target.progress(receipt, fraction, note)
    if session.json:
        session.out.emit({"id": proof.job.hex(), "progress": fraction, "progress_note": note})
    else:
        session.out.say("noted")
