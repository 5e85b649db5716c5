"""audit and report: by DuckDB in this process up to a million events, on Spark beyond."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from tenure.cli.command import NO, command
from tenure.cli.output import clean, plural, shortened, strong
from tenure.cli.session import Session
from tenure.cli.spark_session import spark_session, step_line, summary_shape
from tenure.cli.times import DURATION
from tenure.errors import InvalidArgument
from tenure.extras import needs

if TYPE_CHECKING:
    from tenure.analysis.summary import Summary

#: With more events the tables exceed a small machine's memory.
EVENTS_HERE = 1_000_000
_ENGINE = click.option(
    "--engine",
    type=click.Choice(["auto", "duckdb", "spark"]),
    default="auto",
    show_default=True,
    help="auto: DuckDB in this process up to a million events, Spark (and Java) beyond.",
)


@command(
    "audit",
    examples=(
        ("Does everything add up? Ends with 1 if not:", "tenure audit"),
        ("Save the violations:", "tenure audit --output violations"),
    ),
    short_help="Every law of the store and of its history.",
)
@click.option("--output", metavar="FOLDER", help="Write the violations into this new folder, as Parquet.")
@_ENGINE
def audit(session: Session, output: str | None, engine: str) -> None:
    """Check the laws of the store and of its history over one snapshot, and list the violations.

    Ends with 0 if nothing was found and 1 otherwise. 'tenure check --repair' repairs what can be repaired.
    """
    url = session.address()
    if _on_spark(engine, lambda: _events_of(url)):
        with spark_session(session, "audit", "local[*]", None, ()) as spark, step_line(session, "audit") as on_step:
            from tenure.spark.jobs.audit import audit as on_spark

            summary = on_spark(spark, url, output=output, told=on_step)
    else:
        with needs("analysis", "tenure audit and report"):
            from tenure.analysis.audit import audit as here
        with step_line(session, "audit") as on_step:
            summary = here(url, output=output, told=on_step)
    say_summary(session, summary)
    say_audit(session, summary)


@command(
    "report",
    examples=(
        ("A page to open in a browser:", "tenure report report.html"),
        ("From a history made by 'tenure spark history':", "tenure report report.html --history ./history"),
    ),
    short_help="What happened in a store, as one HTML page.",
)
@click.argument("path", default="report.html")
@click.option("--history", "root", metavar="FOLDER", help="Draw this history instead of the store's journal.")
@click.option("--title", default="Tenure report", help="The page's title.")
@click.option("--slo", type=DURATION, help="Claimed within this time is in time (60 s).")
@_ENGINE
def report(session: Session, path: str, root: str | None, title: str, slo: float | None, engine: str) -> None:
    """Draw the store's journal, or a history in a folder, into the HTML file PATH, which needs no other files."""
    source = session.address() if root is None else root
    if _on_spark(engine, lambda: _events_of(source) if root is None else _events_in(source)):
        if root is None:
            raise InvalidArgument(
                "a journal of more than a million events is drawn from a history: run 'tenure spark history FOLDER', then "
                "'tenure report --history FOLDER'; or say --engine duckdb"
            )
        with spark_session(session, "report", "local[*]", None, ()) as spark, step_line(session, "report") as on_step:
            from tenure.spark.jobs.report import report as on_spark

            summary = on_spark(spark, root, path, title=title, told=on_step)
    else:
        with needs("analysis", "tenure audit and report"):
            from tenure.analysis.report.job import report as here
        with step_line(session, "report") as on_step:
            summary = here(source, path, title=title, slo=slo, told=on_step)
    say_summary(session, summary)
    if not session.json:
        session.out.say("open ", strong(str(summary.facts["path"])))


def _on_spark(engine: str, events: Any) -> bool:
    return engine == "spark" or (engine == "auto" and events() > EVENTS_HERE)


def _events_of(url: str) -> int:
    with needs("analysis", "tenure audit and report"):
        from tenure.bulk.journal_reader import events_kept
        from tenure.bulk.snapshot_locations import opened
    with opened(url) as store:
        return events_kept(store.backend)


def _events_in(root: str) -> int:
    with needs("analysis", "tenure audit and report"):
        from tenure.analysis.history_folder import HistoryFolder
    return sum(entry.rows["bronze"] for entry in HistoryFolder(root).entries())


def say_summary(session: Session, summary: Summary) -> None:
    if session.json:
        session.out.emit(summary_shape(summary))
    else:
        session.out.say(
            f"{summary.job}: read ", strong(f"{summary.read:,}"), ", wrote ", strong(f"{summary.written:,}"), ", rejected ",
            strong(f"{summary.rejected:,}"), f" in {summary.seconds:.1f} s",
        )  # fmt: skip


def say_audit(session: Session, summary: Summary) -> None:
    """Print the violations, and set the exit code."""
    found: Any = summary.facts["violations"]
    if not session.json:
        scope = (
            f"{plural(int(str(summary.facts['jobs'])), 'job')} and {plural(int(str(summary.facts['events'])), 'event')}"
        )
        if not found:
            session.out.say(Text("clean", style="green"), f": {scope}, {summary.facts['rules']} laws")
        else:
            session.out.say(Text(plural(summary.rejected, "violation"), style="red"), f" in {scope}")
            rows = [
                (v["rule"], f"{v['tenant'] or ''}/{v['queue'] or ''}".strip("/"), v["job_id"] or v["lease_id"] or "",
                 shortened(clean(v["evidence"]), 200))
                for v in found
            ]  # fmt: skip
            session.out.table(("rule", "queue", "job or lease", "evidence"), rows, stretch="evidence")
    if summary.rejected:
        raise click.exceptions.Exit(NO)
