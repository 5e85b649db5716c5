"""export: write a table of a store to a file, without Java."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tenure.cli.command import command
from tenure.cli.output import plural, strong
from tenure.cli.progress import progress_bar
from tenure.cli.session import Session
from tenure.cli.times import PAST_TIME
from tenure.extras import needs

if TYPE_CHECKING:
    from tenure.model.durations import Moment

_TABLES = ("jobs", "events", "leases", "queues", "counters", "indexes", "lease_jobs", "groups", "parents", "steps")
_FORMATS = ("parquet", "arrow", "csv", "jsonl")


@command(
    "export",
    examples=(
        ("Every job, payloads included, for pandas, DuckDB or Polars:", "tenure export jobs --parquet jobs.parquet"),
        ("The dead ones of a queue, read with any tool:", "tenure export jobs -q emails --state dead --csv dead.csv"),
        (
            "Yesterday's events, from a server:",
            "tenure export events --since 24h --arrow events.arrow -s http://queue:8400",
        ),
    ),
    short_help="A table as Parquet, Arrow, CSV or JSON lines.",
)
@click.argument("table", metavar="TABLE", type=click.Choice(_TABLES))
@click.option("--parquet", metavar="PATH", help="Write Parquet.")
@click.option("--arrow", metavar="PATH", help="Write an Arrow file (Feather).")
@click.option("--csv", metavar="PATH", help="Write CSV: bytes as base64, headers as JSON.")
@click.option("--jsonl", metavar="PATH", help="Write one JSON object a line: bytes as base64.")
@click.option("--columns", metavar="NAME,…", help="Only these columns, in this order.")
@click.option("--queue", "-q", help="Only of this queue.")
@click.option("--state", "states", multiple=True, help="Only jobs in this state; may be given several times.")
@click.option("--since", type=PAST_TIME, help="Only what was made or happened since: 24h, or a date.")
@click.option("--until", type=PAST_TIME, help="Only what was made or happened before this.")
def export(
    session: Session, table: str, columns: str | None, queue: str | None, states: Sequence[str], since: float | None,
    until: float | None, **paths: str | None,
) -> None:  # fmt: skip
    """Write TABLE (jobs, events, leases, queues, counters, indexes, lease_jobs, groups, parents, steps) of the store to
    a file, from one snapshot.

    The store may be open in another process, or behind a server. Columns: docs/tables.md.
    """
    given = [(kind, paths[kind]) for kind in _FORMATS if paths[kind]]
    if len(given) != 1:
        raise click.UsageError("Say where to: one of --parquet, --arrow, --csv and --jsonl.")
    ((kind, path),) = given
    with needs("analysis", "tenure export"):
        from tenure.bulk.export_files import export as write
    with progress_bar(f"Reading {table}"):
        rows = write(
            session.address(), table, str(path), kind, columns=None if columns is None else columns.split(","),
            tenant=session.given_tenant, queue=queue, state=tuple(states), since=_exact_time(since), until=_exact_time(until),
        )  # fmt: skip
    if not rows and queue is not None:
        with session.store() as store:
            if queue not in {info.queue for info in store.queues(session.given_tenant)}:
                session.require_queue(queue)
    if session.json:
        session.out.emit({"table": table, "rows": rows, "path": path, "format": kind})
    else:
        session.out.say("wrote ", strong(plural(rows, "row")), f" of {table} to {path}")


def _exact_time(seconds: float | None) -> Moment | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
