"""get, list, dead, upcoming, counts, queues: commands that read jobs and queues. None of them writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from rich.text import Text

from tenure.api.queue import Queue
from tenure.cli import json_shapes
from tenure.cli.command import command, no
from tenure.cli.output import Cell, clean, clean_lines, faint, headline, number, preview, shortened, state, strong
from tenure.cli.progress import ProgressCallback, progress_bar
from tenure.cli.session import Session
from tenure.cli.times import DURATION, FUTURE_TIME, moment, now_ms, relative, span
from tenure.model.job import Counts, Job, QueueInfo
from tenure.model.lifecycle import SHOWN
from tenure.model.names import DEFAULT_TENANT, queue_name

PAGE = 1_000

limit_option = click.option(
    "--limit", "-n", type=click.IntRange(min=1), default=20, show_default=True, help="At most this many."
)
cursor_option = click.option("--cursor", help="Continue where the last page ended.")


@command(
    "get",
    examples=(
        ("Everything about a job, in any queue:", "tenure get JOB_ID"),
        ("The same, if the queue is known:", "tenure get emails JOB_ID"),
        ("Its payload, unchanged, into a file:", "tenure get images JOB_ID --payload > cat.png"),
        (
            "Wait up to 30 seconds for it to end, then print its result:",
            "tenure get emails JOB_ID --wait 30 --result",
        ),
    ),
    short_help="Show a job.",
)
@click.argument("names", metavar="[QUEUE] JOB_ID", nargs=-1, required=True)
@click.option("--payload", is_flag=True, help="Print only the payload.")
@click.option("--result", is_flag=True, help="Print only the result.")
@click.option("--raw", is_flag=True, help="With --payload or --result on a terminal: do not escape control characters.")
@click.option("--wait", type=DURATION, help="Wait this long for it to be done, dead or removed.")
def get(session: Session, names: tuple[str, ...], payload: bool, result: bool, raw: bool, wait: float | None) -> None:
    """Show the job as it is now. Ends with 1 if it does not exist, or has no result although --result is given.

    A file or a pipe gets payload and result unchanged. On a terminal their control characters are escaped, unless
    --raw.
    """
    if len(names) > 2:
        raise click.UsageError("Give a job's id, or a queue and a job's id.")
    queue, job_id = (None, names[0]) if len(names) == 1 else names
    if payload and result:
        raise click.UsageError("Ask for --payload or --result, not both.")
    if raw and not (payload or result):
        raise click.UsageError("--raw goes with --payload or --result.")
    where = "this store" if queue is None else str(queue_name(queue, session.tenant))
    with session.store() as store, progress_bar(f"Waiting for {job_id}"):
        job = store.get(job_id) if queue is None else store.queue(queue, session.tenant).get(job_id)
        if session.given_tenant and job is not None and job.tenant != session.tenant:
            job = None
        if job is not None and wait is not None:
            job = store.queue(job.queue, job.tenant).wait_for(job_id, wait)
        if job is None and queue is not None:
            session.require_queue(queue)
    if job is None:
        no(session, f"no job {job_id} in {where}: it never existed, or was done and not kept, cancelled or purged")
    if payload or result:
        content = job.payload if payload else job.result
        if content is None:
            no(session, f"job {job_id} is {job.state} and has no result")
        session.out.content(content, raw=raw)
    elif session.json:
        session.out.emit(json_shapes.job(job))
    else:
        session.out.facts(_facts(job))


def _facts(job: Job) -> dict[str, Cell | None]:
    until = job.lease_until_ms
    return {
        "job": strong(job.id),
        "queue": f"{job.tenant}/{job.queue}",
        "state": state(job.state),
        "reason": job.reason,
        "error": clean_lines(job.error or ""),
        "payload": preview(job.payload, 400) or faint("(empty)"),
        "headers": clean(" ".join(f"{name}={value}" for name, value in job.headers.items())),
        "key": clean(job.key or ""),
        "priority": str(job.priority),
        "attempt": f"{job.attempt} of {job.max_attempts}" + (f", replayed {job.replays} times" if job.replays else ""),
        "token": str(job.token),
        "created": moment(job.created_at_ms),
        "visible": moment(job.visible_at_ms),
        "ended": moment(job.ended_at_ms),
        "worker": clean(job.worker or ""),
        "lease": None if until is None else f"{job.lease_id}, until {moment(until)}",
        "progress": None if job.progress is None else f"{job.progress:.0%} {clean(job.progress_note or '')}".rstrip(),
        "result": None if job.result is None else preview(job.result, 400) or faint("(empty)"),
    }


@command(
    "list",
    examples=(
        ("The next jobs to be claimed:", "tenure list emails"),
        ("Which worker holds which job:", "tenure list emails leased"),
        ("The ids of all dead jobs:", "tenure list emails dead --all --json | jq -r .id"),
    ),
    short_help="List a queue's jobs in a state.",
)
@click.argument("queue")
@click.argument("which", metavar="[STATE]", type=click.Choice(SHOWN), default="ready")
@limit_option
@click.option("--all", "everything", is_flag=True, help="All of them, however many.")
@cursor_option
def list_(session: Session, queue: str, which: str, limit: int, everything: bool, cursor: str | None) -> None:
    """List jobs in STATE: ready (if not given), scheduled, leased, blocked, done or dead, in the queue's order."""
    _list(session, queue, which, None if everything else limit, cursor)


@command(
    "dead",
    examples=(
        ("Dead jobs and their errors:", "tenure dead emails"),
        ("Replay them:", "tenure replay emails --error Timeout"),
    ),
    short_help="List dead jobs with their last error.",
)
@click.argument("queue")
@limit_option
@click.option("--all", "everything", is_flag=True, help="All of them, however many.")
@cursor_option
def dead(session: Session, queue: str, limit: int, everything: bool, cursor: str | None) -> None:
    """List dead jobs, the first to die first. They stay until they are replayed or purged."""
    _list(session, queue, "dead", None if everything else limit, cursor)


def _list(session: Session, queue: str, which: str, limit: int | None, cursor: str | None) -> None:
    with session.queue(queue) as target, progress_bar(f"Listing {queue}") as progress:
        jobs, more = _pages(target, which, limit, cursor, progress)
        if not jobs:
            session.require_queue(queue)
    if session.json:
        last = len(jobs) - 1
        session.out.emit_all(
            json_shapes.job(job, more if index == last else None, with_cursor=True) for index, job in enumerate(jobs)
        )
        return
    if not jobs:
        session.out.say(f"no {which} jobs in {target.name}")
        return
    _job_table(session, which, jobs)
    if more:
        session.out.hint(f"\nMore: tenure list {queue} {which} --cursor {more}")
    elif which == "dead":
        session.out.hint(f"\nBring back: tenure replay {queue} JOB_ID, or --all. Remove: tenure purge {queue} dead.")


def _pages(
    target: Queue, which: str, limit: int | None, cursor: str | None, progress: ProgressCallback
) -> tuple[list[Job], str | None]:
    jobs: list[Job] = []
    while limit is None or len(jobs) < limit:
        page = target.list(which, PAGE if limit is None else min(PAGE, limit - len(jobs)), cursor)
        jobs.extend(page.jobs)
        cursor = page.cursor
        progress(len(jobs), limit)
        if cursor is None:
            break
    return jobs, cursor


def when(session: Session, ms: int | None) -> str:
    """Return the time and its distance if the terminal is wide, else the distance alone."""
    return moment(ms) if session.out.wide else relative(ms)


def _job_table(session: Session, which: str, jobs: Sequence[Job]) -> None:
    tries = [f"{job.attempt}/{job.max_attempts}" for job in jobs]
    if which == "dead":
        session.out.table(
            ("job", "died", "tries", "reason", "error"),
            [
                (
                    job.id,
                    when(session, job.ended_at_ms),
                    tried,
                    job.reason or "",
                    shortened(headline(job.error), 100),
                )
                for job, tried in zip(jobs, tries, strict=True)
            ],
            stretch="error",
        )
        return
    if which == "leased":
        session.out.table(
            ("job", ">tries", "ends", "worker", "payload"),
            [
                (
                    job.id,
                    tried,
                    when(session, job.lease_until_ms),
                    shortened(clean(job.worker or ""), 14),
                    preview(job.payload),
                )
                for job, tried in zip(jobs, tries, strict=True)
            ],
            stretch="payload",
        )
        return
    title, field = ("ended", "ended_at_ms") if which == "done" else ("visible", "visible_at_ms")
    session.out.table(
        ("job", ">pri", ">tries", title, "payload"),
        [
            (job.id, str(job.priority), tried, when(session, getattr(job, field)), preview(job.payload))
            for job, tried in zip(jobs, tries, strict=True)
        ],
        stretch="payload",
    )


@command(
    "upcoming",
    examples=(("What becomes ready within the hour, in any queue:", "tenure upcoming --before 1h"),),
    short_help="List the next scheduled jobs of all queues.",
)
@click.option("--before", type=FUTURE_TIME, help="Only what becomes ready before this moment (1h: within an hour).")
@limit_option
def upcoming(session: Session, before: float | None, limit: int) -> None:
    """List scheduled jobs of all queues and tenants, the earliest first."""
    with session.store() as store, progress_bar("Reading scheduled jobs"):
        jobs = store.upcoming(before, limit)
    if session.json:
        session.out.emit_all(json_shapes.job(job) for job in jobs)
    elif jobs:
        session.out.table(
            ("job", "queue", ">pri", "visible", "payload"),
            [
                (
                    job.id,
                    queue_label(job.tenant, job.queue),
                    str(job.priority),
                    when(session, job.visible_at_ms),
                    preview(job.payload),
                )
                for job in jobs
            ],
            stretch="payload",
        )
    else:
        session.out.say("nothing is scheduled")


@command(
    "groups",
    examples=(("Which customers have jobs in a queue, and how long they have waited:", "tenure groups reports"),),
    short_help="List the groups of a queue that have jobs.",
)
@click.argument("queue")
@limit_option
@click.option("--cursor", help="Continue where the last page ended.")
def groups(session: Session, queue: str, limit: int, cursor: str | None) -> None:
    """List the groups of QUEUE with waiting or leased jobs, in no particular order."""
    with session.queue(queue) as target:
        page = target.groups(limit, cursor)
        if not page.groups:
            session.require_queue(queue)
    if session.json:
        session.out.emit_all(json_shapes.group(target.name, group, page.cursor) for group in page.groups)
        return
    if not page.groups:
        session.out.say("no group has jobs")
        return
    session.out.table(
        ("group", ">waiting", ">leased", ">oldest", ""),
        [
            (
                group.group,
                str(group.waiting),
                str(group.leased),
                "" if group.oldest_at_ms is None else span(max(0.0, (now_ms() - group.oldest_at_ms) / 1000)),
                "at its limit" if group.at_limit else "",
            )
            for group in page.groups
        ],
    )
    if page.cursor is not None:
        session.out.say("there are more: --cursor ", page.cursor)


# ── counts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def queue_label(tenant: str, queue: str) -> str:
    return queue if tenant == DEFAULT_TENANT else f"{tenant}/{queue}"


@command(
    "counts",
    examples=(
        ("How a queue is doing:", "tenure counts emails"),
        ("For a monitor:", "tenure counts emails --json | jq .dead"),
    ),
    short_help="Count a queue's jobs by state.",
)
@click.argument("queue")
def counts(session: Session, queue: str) -> None:
    """Count the queue's jobs by state. `enqueued` and `removed` count since the queue was created."""
    with session.queue(queue) as target:
        found = target.counts()
        if not found.enqueued:
            session.require_queue(queue)
    if session.json:
        session.out.emit({**json_shapes.named(target.name), **json_shapes.counts(found)})
        return
    titles = (*_shown_states([found]), "enqueued", "removed")
    session.out.table([f">{title}" for title in titles], [_numbers(found, titles)])
    if found.at_least:
        session.out.say(f"ready is a lower bound: not all of the {found.waiting:,} waiting jobs were read")


def _shown_states(found: Iterable[Counts]) -> tuple[str, ...]:
    """Return the states to show: `blocked` only if a queue has such jobs, which most have not."""
    blocked = ("blocked",) if any(counts.blocked for counts in found) else ()
    return (*blocked, "ready", "scheduled", "leased", "done", "dead")


def _numbers(found: Counts, titles: Sequence[str]) -> list[Cell]:
    return [number(getattr(found, title), alarm=title == "dead") for title in titles]


@command(
    "queues",
    examples=(
        ("Every queue, in numbers:", "tenure queues"),
        ("One tenant's:", "tenure queues --tenant acme"),
    ),
    short_help="List the queues with their counts.",
)
def queues(session: Session) -> None:
    """List the queues of all tenants (of one, with --tenant), with their counts and whether they are paused."""
    with session.store() as store:
        found = store.queues(session.given_tenant)
    if session.json:
        session.out.emit_all(json_shapes.queue(info) for info in found)
    elif found:
        _queue_table(session, found)
    else:
        session.out.say("no queues yet: the first enqueue makes one")


def _queue_table(session: Session, found: Sequence[QueueInfo]) -> None:
    titles = _shown_states([info.counts for info in found])
    tenants = any(info.tenant != DEFAULT_TENANT for info in found)
    paused = any(info.paused for info in found)
    columns = [
        *(("tenant",) if tenants else ()),
        "queue",
        *(f">{title}" for title in titles),
        *(("",) if paused else ()),
    ]
    rows: list[list[Cell]] = []
    for info in found:
        row: list[Cell] = [info.tenant] if tenants else []
        row += [strong(info.queue), *_numbers(info.counts, titles)]
        rows.append([*row, Text("paused", style="yellow") if info.paused else ""] if paused else row)
    session.out.table(columns, rows)
