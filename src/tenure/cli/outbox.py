"""outbox: create the table in your database, send its rows, show waiting and refused rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from tenure.cli.command import Family, command
from tenure.cli.output import clean, plural, shortened, strong
from tenure.cli.progress import progress_bar
from tenure.cli.session import Session
from tenure.cli.times import DURATION, span
from tenure.process import signals_handled

if TYPE_CHECKING:
    from tenure.outbox import OutboxTable, Sent

#: As in `tenure.outbox`, which is imported only when one of these commands runs: others need no SQL.
DEFAULT_TABLE = "tenure_outbox"
F = TypeVar("F", bound=Callable[..., object])


@click.group(
    "outbox", cls=Family, short_help="Jobs written in your database's transactions: create, run, status, retry."
)
def outbox() -> None:
    """Turn rows that your program wrote in its own database transactions into jobs, each exactly once.

    DATABASE is sqlite:PATH or postgresql://USER@HOST/NAME (pip install 'tenure[postgres]'); put a password into
    ~/.pgpass or PGPASSWORD.
    """


def _on_outbox(function: F) -> F:
    table = click.option("--table", default=DEFAULT_TABLE, show_default=True, help="The outbox's table.")
    return click.argument("database", metavar="DATABASE")(table(function))


def connect(database: str, table: str) -> OutboxTable:
    from tenure import outbox

    return outbox.connect(database, table)


@command(
    "create",
    examples=(
        ("Make the table, once:", "tenure outbox create sqlite:app.db"),
        ("In a schema of PostgreSQL:", "tenure outbox create postgresql://app@db/app --table jobs.outbox"),
    ),
    short_help="Make the outbox's table.",
)
@_on_outbox
def create(session: Session, database: str, table: str) -> None:
    """Create the outbox's table in DATABASE, if it does not exist."""
    with closing(connect(database, table)) as target:
        target.create()
    if session.json:
        session.out.emit({"table": table, "created": True})
    else:
        session.out.say("the outbox is ", strong(target.where))


@command(
    "run",
    examples=(
        ("Send rows as they are committed, until stopped:", "tenure outbox run postgresql://app@db/app"),
        ("Send what is there, then end (for cron):", "tenure outbox run sqlite:app.db --once"),
    ),
    short_help="Enqueue the outbox's rows.",
)
@_on_outbox
@click.option("--once", is_flag=True, help="End when nothing is left that can be sent.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=500, show_default=True, help="Rows of one round.")
@click.option("--poll", type=DURATION, default=0.5, show_default="500ms", help="How often to look for new rows.")
def run(session: Session, database: str, table: str, once: bool, batch: int, poll: float) -> None:
    """Enqueue the rows of DATABASE's outbox and delete them. SIGTERM and Ctrl-C end it after the current round.

    If it is killed at any point, it continues when started again, and no row becomes two jobs.
    """
    with (
        closing(connect(database, table)) as source,
        session.store(create=True) as store,
        progress_bar(f"Sending {source.where}") as bar,
    ):
        from tenure.outbox import Relay

        source.waiting()  # a missing table is an error now, not something to wait for
        relay = Relay(source, store, batch=batch, poll=poll, progress=bar)
        if once:
            relay.drain()
        else:
            with _stopped_by_signals() as stop:
                relay.run(stop)
    _say_sent(session, relay.total)


@command(
    "status",
    examples=(("What waits, and what was refused:", "tenure outbox status sqlite:app.db"),),
    short_help="What waits in the outbox, and what was refused.",
)
@_on_outbox
def status(session: Session, database: str, table: str) -> None:
    """Show how many rows wait, the age of the oldest, and the refused rows with the reason."""
    with closing(connect(database, table)) as source:
        waiting, refused = source.waiting(), source.refused()
    if session.json:
        session.out.emit({"waiting": waiting.rows, "refused": waiting.refused, "oldest_seconds": waiting.oldest})
        return
    oldest = "" if waiting.oldest is None else f", the oldest for {span(max(waiting.oldest, 0))}"
    session.out.say(f"{plural(waiting.rows, 'row')} waiting{oldest}; {waiting.refused:,} refused")
    if refused:
        session.out.table(
            (">id", "queue", "key", "error"),
            [
                (
                    str(row.id),
                    shortened(clean(f"{row.tenant}/{row.queue}"), 60),
                    shortened(clean(f"{row.key}"), 40),
                    clean(row.error),
                )
                for row in refused
            ],
            stretch="error",
        )


@command(
    "retry",
    examples=(
        ("Send all refused rows again, once their cause is fixed:", "tenure outbox retry sqlite:app.db"),
        ("Only some:", "tenure outbox retry sqlite:app.db 17 18"),
    ),
    short_help="Have refused rows sent again.",
)
@_on_outbox
@click.argument("rows", type=int, nargs=-1, metavar="[ID]...")
def retry(session: Session, database: str, table: str, rows: Sequence[int]) -> None:
    """Send refused rows of DATABASE's outbox again in the next round: these, or all."""
    with closing(connect(database, table)) as target:
        count = target.retry(rows or None)
    if session.json:
        session.out.emit({"retried": count})
    else:
        session.out.say(f"{plural(count, 'row')} will be sent again")


for _command in (create, run, status, retry):
    outbox.add_command(_command)


def _say_sent(session: Session, sent: Sent) -> None:
    if session.json:
        session.out.emit(sent._asdict())
        return
    extra = f", {sent.duplicates:,} were enqueued before" if sent.duplicates else ""
    refused = f", {sent.refused:,} refused (see 'tenure outbox status')" if sent.refused else ""
    session.out.say(f"enqueued {plural(sent.enqueued, 'job')}{extra}{refused}")


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set; a second signal interrupts."""
    stop = threading.Event()
    with signals_handled(lambda number: stop.set(), interrupt_at_second=True):
        yield stop
