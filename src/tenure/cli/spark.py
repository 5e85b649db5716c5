"""spark: the pipelines, each a job on its own Spark session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import click
from rich.text import Text

from tenure.cli.analysis import say_audit, say_summary
from tenure.cli.command import NO, Family, command
from tenure.cli.output import plural, strong
from tenure.cli.session import Session
from tenure.cli.spark_session import StepCallback, checked_conf, require, spark_session, step_line
from tenure.cli.times import DURATION, PAST_TIME

if TYPE_CHECKING:
    from tenure.analysis.summary import Summary
    from tenure.spark.job_session import SparkSession

F = TypeVar("F", bound=Callable[..., object])


@click.group(
    "spark", cls=Family, short_help="Pipelines: load, history, report, audit, replay, migrate, archive, restore."
)
def spark() -> None:
    """Pipelines over a store, on Spark (pip install 'tenure[spark]', and Java 17).

    Each runs on its own session: on this machine, or on the cluster that --master names.
    """


class SparkOptions(TypedDict):
    """The options that `_on_spark` adds."""

    master: str
    memory: str | None
    conf: Sequence[str]


def _on_spark(function: F) -> F:
    for option in (
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark's; may be given several times."),
        click.option("--memory", metavar="SIZE", help="The driver's memory, as in 2g."),
        click.option("--master", default="local[*]", show_default=True, help="Where to run: local[N], spark://…, yarn, k8s://…"),
    ):  # fmt: skip
        function = option(function)
    return function


def _url(session: Session) -> str:
    if session.url is not None:
        return session.url
    engine, path = session.where()
    return f"{engine}:{path or ''}"


def _run(
    session: Session,
    job: str,
    on: SparkOptions,
    work: Callable[[SparkSession, StepCallback], Summary],
    is_short: Callable[[], bool] = lambda: False,
) -> Summary:
    with (
        spark_session(session, job, on["master"], on["memory"], on["conf"], is_short) as made,
        step_line(session, job) as on_step,
    ):
        summary = work(made, on_step)
    say_summary(session, summary)
    return summary


# ── load ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@command(
    "load",
    examples=(
        ("A CSV file, each row a job as JSON:", "tenure spark load emails customers.csv --quarantine rejected"),
        (
            "Map columns to fields; a repeat with the same id adds nothing twice:",
            "tenure spark load emails c.csv -m payload=body -m priority=urgency -m key=id --write-id monday",
        ),
        (
            "Part of a file:",
            "tenure spark load emails c.parquet --sql 'SELECT * FROM input WHERE active'",
        ),
    ),
    short_help="A file or a query into a queue, exactly once.",
)
@click.argument("queue")
@click.argument("path", required=False)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["csv", "json", "parquet"]),
    help="The format, if the file's name does not show it.",
)
@click.option("--sql", help="A query; with PATH, over its rows, as the table input.")
@click.option(
    "--map", "-m", "pairs", multiple=True, metavar="FIELD=SQL", help="A job's field: payload, priority, key, …"
)
@click.option("--option", "-o", "options", multiple=True, metavar="NAME=VALUE", help="An option of Spark's reader.")
@click.option("--quarantine", metavar="FOLDER", help="Where rows that are no valid jobs go, with the reason.")
@click.option("--write-id", help="The load's id: a repeat with the same id completes it and adds nothing twice.")
@click.option("--bulk", is_flag=True, help="Build the store's files directly: for millions of rows, without keys.")
@_on_spark
def load(
    session: Session, queue: str, path: str | None, kind: str | None, sql: str | None, pairs: Sequence[str],
    options: Sequence[str], quarantine: str | None, write_id: str | None, bulk: bool, **on: Unpack[SparkOptions],
) -> None:  # fmt: skip
    """Enqueue the rows of PATH (CSV, JSON lines, Parquet) or of a query into QUEUE.

    Without -m payload=…, a job's payload is its whole row as JSON. -m headers.NAME=… sets one header.
    """

    def work(made: SparkSession, on_step: StepCallback) -> Summary:
        from tenure.spark.jobs.load import load
        from tenure.spark.pipelines.job_mapping import parse_mapping

        return load(
            made, _url(session), queue, path=path, kind=kind, sql=sql, mapping=parse_mapping(tuple(pairs)),
            options=parse_mapping(tuple(options)), tenant=session.tenant, quarantine=quarantine, write_id=write_id, bulk=bulk,
            told=on_step,
        )  # fmt: skip

    summary = _run(session, "load", on, work)
    if summary.rejected and not session.json:
        session.out.say(f"rejected rows are in {summary.facts['quarantine']}, with the reasons")


# ── history ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@command(
    "history",
    examples=(
        ("Bring a history up to date, every hour or so:", "tenure spark history ./history"),
        ("One that counts jobs claimed within ten seconds:", "tenure spark history ./history --slo 10"),
    ),
    short_help="The journal as tables: events, attempts, lives, hourly numbers.",
)
@click.argument("root")
@click.option("--slo", type=DURATION, help="Claimed within this time is in time (60 s); set with the first run.")
@click.option("--consumer", default="history", show_default=True, help="The consumer's name in the journal.")
@click.option("--delta", is_flag=True, help="Also keep the tables as Delta tables (pip install 'tenure[delta]').")
@click.option("--iceberg", is_flag=True, help="Also keep them as Iceberg tables (pip install 'tenure[iceberg]').")
@_on_spark
def history(
    session: Session,
    root: str,
    slo: float | None,
    consumer: str,
    delta: bool,
    iceberg: bool,
    **on: Unpack[SparkOptions],
) -> None:
    """Read the journal's events since the last run, and add them to the tables in the folder ROOT.

    An interrupted run has no effect and can be repeated. The journal keeps events that this history has not read.
    """

    def work(made: SparkSession, on_step: StepCallback) -> Summary:
        from tenure.spark.jobs.history import history

        summary = history(made, _url(session), root, slo=slo, consumer=consumer, told=on_step)
        if delta:
            from tenure.spark.jobs.delta import publish

            summary.facts["delta"] = publish(root, told=on_step)
        if iceberg:
            from tenure.spark.jobs.iceberg import publish as publish_iceberg

            summary.facts["iceberg"] = publish_iceberg(root, told=on_step)
        return summary

    summary = _run(session, "history", on, work)
    if not session.json:
        run = summary.facts["run"]
        session.out.say(
            "nothing happened since the last run"
            if run is None
            else f"run {run} covers commits {summary.facts['commits']}"
        )


@command(
    "report",
    examples=(("A page to open in a browser:", "tenure spark report ./history report.html"),),
    short_help="A history as one HTML page, on Spark.",
)
@click.argument("root")
@click.argument("path", default="report.html")
@click.option("--title", default="Tenure report", help="The page's title.")
@_on_spark
def report(session: Session, root: str, path: str, title: str, **on: Unpack[SparkOptions]) -> None:
    """Draw the history in the folder ROOT into the HTML file PATH (report.html), which needs no other files."""

    def work(made: SparkSession, on_step: StepCallback) -> Summary:
        from tenure.spark.jobs.report import report

        return report(made, root, path, title=title, told=on_step)

    summary = _run(session, "report", on, work)
    if not session.json:
        session.out.say("open ", strong(str(summary.facts["path"])))


@command(
    "audit",
    examples=(
        ("Does everything add up? Ends with 1 if not:", "tenure spark audit"),
        ("Save the violations:", "tenure spark audit --output violations"),
    ),
    short_help="Every law of the store and its history, on Spark.",
)
@click.option("--output", metavar="FOLDER", help="Write the violations there, as Parquet.")
@_on_spark
def audit(session: Session, output: str | None, **on: Unpack[SparkOptions]) -> None:
    """Check the laws of the store and of its history over one snapshot, and list the violations.

    Ends with 0 if nothing was found and 1 otherwise. 'tenure check --repair' repairs what can be repaired.
    """

    def work(made: SparkSession, on_step: StepCallback) -> Summary:
        from tenure.spark.jobs.audit import audit

        return audit(made, _url(session), output=output, told=on_step)

    def is_short() -> bool:
        from tenure.spark.jobs.audit import is_short

        return is_short(_url(session))

    require()
    checked_conf(on["conf"])
    from tenure.spark.jobs.audit import judged_here

    if judged_here(_url(session)):  # a small store does not need Java
        from tenure.analysis.audit import audit as audit_here

        with step_line(session, "audit") as told:
            summary = audit_here(_url(session), output=output, told=told)
        say_summary(session, summary)
    else:
        summary = _run(session, "audit", on, work, is_short)
    say_audit(session, summary)


# ── replay, migration and archive ────────────────────────────────────────────────────────────────────────────────────


@command(
    "replay",
    examples=(
        (
            "What would be replayed?",
            "tenure spark replay \"error LIKE 'Timeout%'\" --dry-run",
        ),
        ("Ten a second:", "tenure spark replay \"ended_at >= '2026-01-31' AND priority = 9\" --rate 10"),
    ),
    short_help="Dead jobs chosen by a SQL predicate.",
)
@click.argument("where")
@click.option("--queue", "-q", help="Only of this queue.")
@click.option("--limit", "-n", type=int, help="At most this many, the first to die first.")
@click.option("--rate", type=float, help="Make this many ready a second; returns at once.")
@click.option("--dry-run", is_flag=True, help="Report what would be replayed.")
@_on_spark
def replay(
    session: Session,
    where: str,
    queue: str | None,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
    **on: Unpack[SparkOptions],
) -> None:
    """Replay the dead jobs for which the predicate WHERE, over the columns of the table jobs, is true.

    A job that has changed since it was read is left alone.
    """

    def work(made: SparkSession, on_step: StepCallback) -> Summary:
        from tenure.spark.jobs.replay import replay

        return replay(
            made, _url(session), where, tenant=session.given_tenant, queue=queue, limit=limit, rate=rate, dry_run=dry_run,
            told=on_step,
        )  # fmt: skip

    summary = _run(session, "replay", on, work)
    if not session.json:
        queues = summary.facts["queues"]
        assert isinstance(queues, dict)
        for name, count in queues.items():
            session.out.say(f"  {name}: {'would replay ' if dry_run else ''}{plural(count, 'dead job')}")


@command(
    "migrate",
    examples=(("A store to another engine, side by side:", "tenure spark migrate rocksdb:./data lmdb:./moved"),),
    short_help="Copy a store into another, in parallel.",
)
@click.argument("source")
@click.argument("target")
@_on_spark
def migrate(session: Session, source: str, target: str, **on: Unpack[SparkOptions]) -> None:
    """Copy every job of SOURCE into TARGET and compare the two, as 'tenure migrate' does, in parallel on executors."""

    def work(made: SparkSession, on_step: StepCallback) -> Summary:
        from tenure.spark.jobs.migrate import migrate

        return migrate(made, source, target, told=on_step)

    summary = _run(session, "migrate", on, work)
    same = bool(summary.facts["verified"])
    if not session.json:
        word = Text("verified", style="green") if same else Text("the two differ", style="red")
        session.out.say(word, f": {summary.facts['source']} at the source, {summary.facts['target']} at the target")
    if not same:
        raise click.exceptions.Exit(NO)


@command(
    "archive",
    examples=(
        ("Jobs that ended more than a month ago:", "tenure spark archive ./archive --older-than 30d"),
        (
            "Only dead ones, of one queue:",
            "tenure spark archive ./archive --older-than 7d --state dead --queue emails",
        ),
    ),
    short_help="Jobs that ended long ago into Parquet.",
)
@click.argument("root")
@click.option(
    "--older-than", "before", type=PAST_TIME, required=True, help="Those that ended before this: 30d, or a date."
)
@click.option(
    "--state",
    "states",
    type=click.Choice(["done", "dead"]),
    multiple=True,
    default=("done", "dead"),
    help="Both, if not given.",
)
@click.option("--queue", "-q", help="Only of this queue.")
@_on_spark
def archive(
    session: Session, root: str, before: float, states: Sequence[str], queue: str | None, **on: Unpack[SparkOptions]
) -> None:
    """Write done and dead jobs to Parquet in the folder ROOT, verify it, and remove unchanged ones from the store."""

    def work(made: SparkSession, on_step: StepCallback) -> Summary:
        from tenure.spark.jobs.archive import archive

        return archive(
            made, _url(session), root, datetime.fromtimestamp(before, UTC), states=tuple(states),
            tenant=session.given_tenant, queue=queue, told=on_step,
        )  # fmt: skip

    summary = _run(session, "archive", on, work)
    if not session.json:
        session.out.say(
            f"removed {summary.facts['removed']:,} from the store; {summary.rejected:,} had changed and stay"
        )


@command(
    "restore",
    examples=(("Archived jobs back into the store:", "tenure spark restore ./archive --where \"queue = 'emails'\""),),
    short_help="Archived jobs back into the store.",
)
@click.argument("root")
@click.option("--where", default="true", help="A SQL predicate over the columns of the table jobs.")
@_on_spark
def restore(session: Session, root: str, where: str, **on: Unpack[SparkOptions]) -> None:
    """Restore jobs from the archive in the folder ROOT as they were; existing ones are left alone."""

    def work(made: SparkSession, on_step: StepCallback) -> Summary:
        from tenure.spark.jobs.archive import restore

        return restore(made, _url(session), root, where, told=on_step)

    summary = _run(session, "restore", on, work)
    if not session.json:
        session.out.say(f"{summary.facts['there']:,} were there already")


for _made in (load, history, report, audit, replay, migrate, archive, restore):
    spark.add_command(_made)
