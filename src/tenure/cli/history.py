"""timeline, explain and events: what happened, from the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import click

from tenure.api.store import Store
from tenure.cli import json_shapes
from tenure.cli.command import command, no
from tenure.cli.output import Cell, clean, faint, headline, joined, shortened, state, strong
from tenure.cli.progress import ProgressCallback, progress_bar
from tenure.cli.queries import queue_label
from tenure.cli.session import Session
from tenure.cli.times import local, span
from tenure.model.event import Event
from tenure.model.explanation import utc
from tenure.model.lifecycle import Change

PAGE, FOLLOW_PAGE = 10_000, 1_000
#: Seconds that one read of the journal waits for events; Ctrl-C takes effect between two reads.
FOLLOW_SECONDS = 1.0
TYPES = tuple(change.name.lower() for change in Change)
VISIBLE = {"enqueued", "retried", "released", "expired", "replayed", "restored"}


@command(
    "timeline",
    examples=(("What happened to a job, and when:", "tenure timeline emails JOB_ID"),),
    short_help="Show what happened to a job.",
)
@click.argument("queue")
@click.argument("job_id")
def timeline(session: Session, queue: str, job_id: str) -> None:
    """Show the job's events, oldest first, as far back as the journal goes (7 days)."""
    with session.queue(queue) as target:
        events = target.timeline(job_id)
        if not events:
            session.require_queue(queue)
    if not events:
        no(session, f"nothing is known of job {job_id} in {target.name}")
    if session.json:
        session.out.emit_all(json_shapes.event(event) for event in events)
        return
    session.out.table(
        ("time", "after", "what", "state", ">try", ">token", "detail"), list(_timeline_rows(events)), stretch="detail"
    )


def _timeline_rows(events: Sequence[Event]) -> Iterator[list[Cell]]:
    before = events[0].time_ms
    for event in events:
        yield [
            local(event.time_ms, precise=True),
            faint("+" + span((event.time_ms - before) / 1000)) if event.time_ms > before else "",
            event.type,
            state(event.state),
            str(event.attempt or ""),
            str(event.token or ""),
            detail(event),
        ]
        before = event.time_ms


@command(
    "explain",
    examples=(("Why is this job not done, and what happens next:", "tenure explain emails JOB_ID"),),
    short_help="Say where a job is, why, and what happens next.",
)
@click.argument("queue")
@click.argument("job_id")
def explain(session: Session, queue: str, job_id: str) -> None:
    """Say in plain sentences where the job is, why, what happened to it, and what happens next and when."""
    with session.queue(queue) as target:
        found = target.explain(job_id, utc if session.json else local)
        if found is None:
            session.require_queue(queue)
    if found is None:
        no(session, f"nothing is known of job {job_id} in {target.name}")
    if session.json:
        session.out.emit(json_shapes.explanation(found))
        return
    session.out.say(strong(found.job_id), " in ", queue_label(found.tenant, found.queue), ": ", state(found.state))
    for title, lines in (("", [found.where]), ("why", found.why), ("happened", found.happened), ("next", [found.next])):
        if title and lines:
            session.out.say(faint(f"\n{title}"))
        for line in lines:
            session.out.say(clean(line))


@command(
    "events",
    examples=(
        ("The last week, from its beginning:", "tenure events --limit 50"),
        ("What happens from now on, in one queue, until Ctrl-C:", "tenure events --follow --new --queue emails"),
        ("Deaths, for a program:", "tenure events --follow --type died --json"),
    ),
    short_help="Print what happened; --follow what happens.",
)
@click.option("--after", metavar="CURSOR", help="Continue after this cursor.")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="At most this many (not with --follow).",
)
@click.option("--follow", "-f", is_flag=True, help="Also print new events, until Ctrl-C.")
@click.option("--new", "new_only", is_flag=True, help="Skip past events.")
@click.option("--queue", "only_queue", metavar="QUEUE", help="Only this queue's.")
@click.option(
    "--type",
    "only_types",
    type=click.Choice(TYPES),
    multiple=True,
    metavar="TYPE",
    help="Only of this type; may be repeated.",
)
def events(
    session: Session,
    after: str | None,
    limit: int,
    follow: bool,
    new_only: bool,
    only_queue: str | None,
    only_types: Sequence[str],
) -> None:
    """Print the events of all queues in order, from the oldest in the journal (7 days) or after a cursor.

    With --json, the last event of each page has a `cursor` to continue from. A store that this command had to open
    itself stays open while it follows; other processes can use it through this one.
    """
    if new_only and not follow:
        raise click.UsageError("--new skips past events: it goes with --follow.")

    def wanted(event: Event) -> bool:
        return (
            (only_queue is None or event.queue == only_queue)
            and (session.given_tenant is None or event.tenant == session.given_tenant)
            and (not only_types or event.type in only_types)
        )

    if not follow:
        with session.store() as store, progress_bar("Reading the journal") as progress:
            found, cursor = _gather(store, after, limit, wanted, progress)
        _print(session, found, cursor)
        if not found and not session.json:
            session.out.say("no events")
        elif not session.json and len(found) == limit:
            session.out.hint(f"\nMore: tenure events --after {cursor}")
        return
    with session.store() as store:
        if store.traits.scope == "process":
            session.out.note("Following until Ctrl-C; no other process can open this store meanwhile.")
        cursor = _end(store, after) if new_only else after
        while True:
            page = store.events(cursor, FOLLOW_PAGE, FOLLOW_SECONDS)
            cursor = page.cursor
            _print(session, [event for event in page if wanted(event)], cursor)
            session.out.flush()


def _gather(
    store: Store, cursor: str | None, limit: int, wanted: Callable[[Event], bool], progress: ProgressCallback
) -> tuple[list[Event], str | None]:
    """Return up to `limit` matching events, and the cursor after the last of them, so that none is skipped."""
    found: list[Event] = []
    read = 0
    while len(found) < limit:
        page = store.events(cursor, PAGE)
        if not page.events:
            break
        chosen = [index for index, event in enumerate(page) if wanted(event)][: limit - len(found)]
        found.extend(page.events[index] for index in chosen)
        if len(found) == limit and chosen[-1] + 1 < len(page):
            page = store.events(cursor, chosen[-1] + 1)  # read again, so that the cursor ends there
        cursor = page.cursor
        read += len(page)
        progress(read)
    return found, cursor


def _end(store: Store, cursor: str | None) -> str:
    """Return the cursor after the newest event."""
    with progress_bar("Skipping past events"):
        while True:
            page = store.events(cursor, 100_000)
            cursor = page.cursor
            if not page.events:
                return cursor


def _print(session: Session, found: Sequence[Event], cursor: str | None) -> None:
    last = len(found) - 1
    if session.json:
        session.out.emit_all(
            json_shapes.event(event, cursor if index == last else None, with_cursor=True)
            for index, event in enumerate(found)
        )
        return
    for event in found:
        session.out.say(
            joined(
                (
                    faint(local(event.time_ms, precise=True)),
                    f"  {queue_label(event.tenant, event.queue):<12} {event.type:<10} {event.job_id or ''} ",
                    faint(detail(event)),
                )
            )
        )


def detail(event: Event) -> str:
    """Return reason, text and times of an event, in a few words."""
    parts = []
    if event.reason:
        parts.append(event.reason)
    if event.text and event.type != "queue_created":  # it only repeats the queue's name
        parts.append(shortened(headline(event.text), 100))
    if event.at_ms is not None and event.type in VISIBLE and event.at_ms > event.time_ms:
        parts.append(f"visible {span((event.at_ms - event.time_ms) / 1000)} later")
    if event.at_ms is not None and event.type in {"claimed", "extended"}:
        parts.append(f"for {span((event.at_ms - event.time_ms) / 1000)}")
    return ", ".join(parts)
