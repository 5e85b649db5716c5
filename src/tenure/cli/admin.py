"""check, cleanup, sweep, snapshot, upgrade: commands for a whole store."""

from __future__ import annotations

import click
from rich.text import Text

from tenure.cli import json_shapes
from tenure.cli.command import NO, command
from tenure.cli.format_upgrade import found_format, steps_from
from tenure.cli.output import Cell, clean, plural, strong
from tenure.cli.progress import progress_bar
from tenure.cli.queries import queue_label
from tenure.cli.session import Session
from tenure.cli.times import PAST_TIME
from tenure.model.job import Swept
from tenure.model.report import Report
from tenure.storage.folder import Folder
from tenure.storage.keyspace import FORMAT


@command(
    "check",
    examples=(
        ("Is everything as it must be?", "tenure check"),
        ("Repair what can be repaired, and report how:", "tenure check --repair"),
        ("Is the history one that the specification allows?", "tenure check --specification"),
    ),
    short_help="Verify every invariant; --repair fixes faults.",
)
@click.option("--repair", is_flag=True, help="Repair what can be repaired.")
@click.option("--specification", is_flag=True, help="Also replay the journal through the specification.")
def check(session: Session, repair: bool, specification: bool) -> None:
    """Verify that every job is in one state and one index, every lease holds its jobs, and every count is right.

    --specification also replays the journal, event by event, and names the first one that the specification does not
    allow (docs/specification.md). Ends with 1 if something was found; with --repair, if something was found that could
    not be repaired.
    """
    with session.store() as store, progress_bar("Checking") as progress:
        report = store.check(repair, progress, specification=specification)
    if session.json:
        session.out.emit(json_shapes.report(report))
    else:
        _show(session, report, repair)
    if not (report.ok if repair else report.clean):
        raise click.exceptions.Exit(NO)


def _show(session: Session, report: Report, repair: bool) -> None:
    looked_at = ", ".join(
        plural(count, noun)
        for count, noun in (
            (report.queues, "queue"),
            (report.jobs, "job"),
            (report.leases, "lease"),
            (report.events, "event"),
        )
    )
    if report.clean:
        session.out.say(Text("clean", style="green"), f": {looked_at}")
        return
    session.out.say(Text(plural(len(report.findings), "finding"), style="red"), f" in {looked_at}")
    if report.truncated:
        session.out.say("there is more: this is the beginning")
    for finding in report.findings:
        where = queue_label(finding.tenant or "", finding.queue) if finding.queue else ""
        session.out.say("")
        session.out.facts(
            {
                "rule": strong(finding.rule),
                "where": where,
                "job": finding.job_id,
                "detail": clean(finding.detail),
                "repair": _repaired(finding.repair, repair),
            }
        )
    if not repair:
        session.out.hint("\nRepair what can be repaired: tenure check --repair")


def _repaired(what: str | None, repair: bool) -> Cell | None:
    if what is not None:
        return Text(clean(what), style="green")
    return Text("nothing could be done", style="red") if repair else None


@command(
    "cleanup",
    examples=(
        ("Remove done jobs whose retention has passed:", "tenure cleanup"),
        (
            "Remove all done and dead jobs that ended more than 30 days ago:",
            "tenure cleanup --before 30d --limit 1000000",
        ),
    ),
    short_help="Remove done jobs past their retention.",
)
@click.option(
    "--before", type=PAST_TIME, help="All done and dead jobs that ended before this moment (30d: 30 days ago)."
)
@click.option("--limit", "-n", type=int, default=100_000, show_default=True, help="At most this many.")
def cleanup(session: Session, before: float | None, limit: int) -> None:
    """Remove done jobs past their retention; with --before, done and dead jobs that ended before then."""
    with session.store() as store, progress_bar("Cleaning up") as progress:
        removed = store.cleanup(before, limit, progress)
    if session.json:
        session.out.emit({"removed": removed})
    else:
        session.out.say("removed ", strong(plural(removed, "job")))
        if removed >= limit:
            session.out.hint("The limit was reached: run it again for more.")


@command(
    "sweep",
    examples=(("Process what is due, if no program has the store open:", "tenure sweep"),),
    short_help="Process expired leases, ttl and retention.",
)
def sweep(session: Session) -> None:
    """Process everything that is due: take back expired leases, remove jobs past their ttl or retention, forget old
    keys.

    A program that has the store open does this by itself, every second.
    """
    with session.store() as store, progress_bar("Sweeping") as progress:
        total = Swept()
        while True:
            swept = store.sweep()
            total = _sum(total, swept)
            progress(total.total)
            if not swept.more:
                break
    if session.json:
        session.out.emit(json_shapes.swept(total))
        return
    session.out.facts(
        {
            "leases expired": f"{total.leases:,}: {plural(total.jobs_back, 'job')} back, {total.jobs_dead:,} dead",
            "jobs retired": f"{total.retired:,}",
            "jobs past their ttl": f"{total.ttl_passed:,}",
            "keys forgotten": f"{total.keys_forgotten:,}",
            "claims forgotten": f"{total.claims_forgotten:,}",
            "staged writes forgotten": f"{total.writes_forgotten:,}",
            "events trimmed": f"{total.events_trimmed:,}",
        }
    )


def _sum(one: Swept, other: Swept) -> Swept:
    names = [name for name in Swept.__struct_fields__ if name != "more"]
    return Swept(**{name: getattr(one, name) + getattr(other, name) for name in names})


@command(
    "snapshot",
    examples=(
        ("A copy of the store, which can be opened as a store:", "tenure snapshot backups/monday"),
        ("Look into it:", "tenure queues --store rocksdb:backups/monday"),
    ),
    short_help="Write a copy of the store.",
)
@click.argument("path")
def snapshot(session: Session, path: str) -> None:
    """Write a copy of the store, as of now, to PATH, a new folder."""
    with session.store() as store, progress_bar(f"Writing {path}"):
        store.snapshot(path)
    if session.json:
        session.out.emit({"path": path})
    else:
        session.out.say("written to ", strong(path))


@command(
    "upgrade",
    examples=(("Upgrade a store of an older Tenure:", "tenure upgrade rocksdb:./data"),),
    short_help="Upgrade an older store to this format.",
)
@click.argument("url", required=False)
def upgrade(session: Session, url: str | None) -> None:
    """Upgrade the store to the current on-disk format, step by step.

    A newer format is refused. Stop its users first.
    """
    session.url = url or session.url
    engine, path = session.where()
    if path is None:
        raise click.UsageError(f"A {engine} store has nothing on disk to upgrade.")
    folder = Folder(path, engine)
    found = found_format(folder)
    steps = steps_from(found)
    for step in steps:
        with progress_bar(step.says) as progress:
            step.run(folder, progress)
        session.out.note(f"format {step.start} → {step.start + 1}: {step.says}")
    if session.json:
        session.out.emit({"path": str(folder.path), "engine": engine, "from": found, "format": FORMAT})
    elif steps:
        session.out.say(f"{folder.path} is now at ", strong(f"format {FORMAT}"))
    else:
        session.out.say(f"{folder.path} is already at ", strong(f"format {FORMAT}"))
