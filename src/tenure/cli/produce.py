"""enqueue: one job, or one for each line of a file."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import BinaryIO, NamedTuple

import click

from tenure.cli import json_shapes
from tenure.cli.command import command
from tenure.cli.output import plural, strong
from tenure.cli.progress import progress_bar
from tenure.cli.session import Session
from tenure.cli.times import DURATION, FUTURE_TIME, now_ms, span
from tenure.errors import TenureError
from tenure.model.job import NewJob

#: Jobs in one transaction: enough to share its sync, few enough for any engine.
BATCH_JOBS = 1_000
BATCH_BYTES = 4 * 1024 * 1024


def _headers(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    headers = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", ctx, param)
        headers[name] = text
    return headers


@command(
    "enqueue",
    examples=(
        ("One job, urgent, in half a minute:", 'tenure enqueue emails \'{"to": "ada"}\' --delay 30 --priority 5'),
        ("Only once, however often this runs:", "tenure enqueue emails 'invoice 17' --key invoice-17"),
        ("For one customer among many, who take turns:", "tenure enqueue reports 'march' --group customer-17"),
        ("A file as the payload:", "tenure enqueue images --file cat.png"),
        ("A program's output:", "date | tenure enqueue emails -"),
        ("One job for each line:", "tenure enqueue urls --lines urls.txt"),
    ),
    short_help="Add a job, or one for each line of a file.",
)
@click.argument("queue")
@click.argument("payload", required=False)
@click.option("--file", "file", type=click.File("rb"), help="Take the payload from a file.")
@click.option("--lines", "lines", type=click.File("rb"), help="A job for each line of a file (-: of stdin).")
@click.option("--delay", type=DURATION, help="Not before this long from now (30, 5m, 2h).")
@click.option("--at", type=FUTURE_TIME, help="Not before this moment (2030-01-31T09:00).")
@click.option("--priority", "-p", type=int, default=0, show_default=True, help="0 to 9; 9 is claimed first.")
@click.option("--key", help="Idempotency key: a second job with it is not added.")
@click.option("--max-attempts", type=int, help="Deliveries before it is dead (the queue's policy, if not given).")
@click.option("--ttl", type=DURATION, help="Remove it if it was not claimed by then.")
@click.option("--group", help="The groups of a queue take turns.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", callback=_headers, help="May be repeated.")
def enqueue(
    session: Session,
    queue: str,
    payload: str | None,
    file: BinaryIO | None,
    lines: BinaryIO | None,
    delay: float | None,
    at: float | None,
    priority: int,
    key: str | None,
    max_attempts: int | None,
    ttl: float | None,
    group: str | None,
    headers: dict[str, str],
) -> None:
    """Add a job to QUEUE, and create the queue if it does not exist.

    PAYLOAD is the job's content as text; - reads it from stdin. The answer is the job's id.
    """
    if sum(source is not None for source in (payload, file, lines)) != 1:
        raise click.UsageError("Say what to enqueue: PAYLOAD (- for stdin), --file or --lines, one of them.")
    if lines is not None and key is not None:
        raise click.UsageError("--key names one job: it does not go with --lines.")

    def job(content: bytes) -> NewJob:
        return NewJob(content, delay, at, priority, key, max_attempts, ttl, headers or None, group=group)

    if lines is not None:
        _enqueue_lines(session, queue, lines, job)
        return
    # Read before the store is opened: the program that writes to the pipe may have it open.
    content = content_of(payload, file)
    with session.queue(queue, create=True) as target:
        answer = target.enqueue(job(content))
    if session.json:
        session.out.emit(json_shapes.enqueued(target.name, answer))
    elif answer.duplicate:
        session.out.say("already there: ", strong(answer.id), f" holds key {key!r}; nothing was added")
    else:
        session.out.say("enqueued ", strong(answer.id))


def content_of(payload: str | None, file: BinaryIO | None = None) -> bytes:
    """Return the payload from a file, stdin (-), or the text itself."""
    if file is not None:
        return file.read()
    if payload == "-":
        return sys.stdin.buffer.read()
    return os.fsencode(payload or "")


# ── one job for each line ────────────────────────────────────────────────────────────────────────────────────────────


class Batch(NamedTuple):
    """The payloads of one transaction, and their position in the file."""

    payloads: list[bytes]
    first_line: int
    #: Bytes of the file read so far, including this batch.
    bytes_read: int


def batches(lines: BinaryIO) -> Iterator[Batch]:
    """Yield the file's lines without line ends, in batches of bounded size; empty lines are skipped."""
    payloads: list[bytes] = []
    first, size, read = 1, 0, 0
    for number, line in enumerate(lines, 1):
        read += len(line)
        payload = line.removesuffix(b"\n").removesuffix(b"\r")
        if not payload:
            continue
        if payloads and (len(payloads) == BATCH_JOBS or size + len(payload) > BATCH_BYTES):
            yield Batch(payloads, first, read)
            payloads, size = [], 0
        if not payloads:
            first = number
        payloads.append(payload)
        size += len(payload)
    if payloads:
        yield Batch(payloads, first, read)


def _enqueue_lines(session: Session, queue: str, lines: BinaryIO, job: Callable[[bytes], NewJob]) -> None:
    size = _size(lines)
    pending = batches(lines)
    # Read the first batch before the store is opened: the program that writes to the pipe may have it open.
    first = next(pending, None)
    added = 0
    started = now_ms()
    with ExitStack() as stack:
        if first is not None:
            target = stack.enter_context(session.queue(queue, create=True))
            progress = stack.enter_context(progress_bar(f"Enqueueing into {target.name}"))
            for batch in chain((first,), pending):
                try:
                    answers = target.enqueue_many([job(payload) for payload in batch.payloads])
                except TenureError as exc:
                    exc.add_note(
                        f"{plural(added, 'job')} were enqueued before this; continue from line {batch.first_line:,}."
                    )
                    raise
                except KeyboardInterrupt:
                    session.out.note(f"Interrupted at line {batch.first_line:,}, after {plural(added, 'job')}.")
                    raise
                added += len(answers)
                if session.json:
                    session.out.emit_all(json_shapes.enqueued(target.name, answer) for answer in answers)
                progress(added, None if size is None else round(added * size / max(batch.bytes_read, 1)))
    if not session.json:
        session.out.say(f"enqueued {plural(added, 'job')} in {span((now_ms() - started) / 1000)}")


def _size(file: BinaryIO) -> int | None:
    """Return the length of a file; None for a pipe."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
