"""migrate: copy every job of a store into another."""

from __future__ import annotations

import click
from rich.text import Text

import tenure
from tenure.api import migration
from tenure.cli.command import NO, command
from tenure.cli.output import plural, strong
from tenure.cli.progress import progress_bar
from tenure.cli.session import Session
from tenure.errors import InvalidArgument, OpenError
from tenure.settings import parse_url
from tenure.storage.folder import Folder
from tenure.telemetry import configure_logging

LISTED = 20
#: Engines whose store is a folder on this machine.
FOLDERS = ("rocksdb", "lmdb")


@command(
    "migrate",
    examples=(
        ("Move a store to another engine:", "tenure migrate rocksdb:./data lmdb:./moved"),
        ("One queue of one tenant:", "tenure migrate rocksdb:./data lmdb:./moved --queue emails --tenant acme"),
        ("Stopped half-way? Run it again:", "tenure migrate rocksdb:./data lmdb:./moved"),
    ),
    short_help="Copy every job of a store into another.",
)
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@click.option("--queue", "-q", help="Only queues of this name.")
@click.option("--no-verify", is_flag=True, help="Do not read both stores again to compare them.")
def migrate(session: Session, source: str, target: str, queue: str | None, no_verify: bool) -> None:
    """Copy every job of the store SOURCE into the store TARGET, creating it if needed, and compare the two.

    Jobs keep their ids, states, attempts, tokens, times, steps, signals and parents; leased jobs arrive as ready.
    Schedules are copied, too. Queues keep their policies, and stay paused in TARGET until all jobs are copied and
    compared. Do not use either store meanwhile. Existing jobs are skipped, so an interrupted migration can be run
    again. Ends with 1 if the two differ.
    """
    log = session.settings.log
    configure_logging("debug" if session.debug else log.level, "json" if session.json else log.format)
    if _same(source, target):
        raise InvalidArgument(f"{source} and {target} are one store")
    _must_exist(source)
    with (
        tenure.open(source, sweep=False) as here,
        tenure.open(target, sweep=False) as there,
        progress_bar(f"Moving to {target}") as progress,
    ):
        moved = migration.migrate(
            here, there, tenant=session.given_tenant, queue=queue, verify=not no_verify, progress=progress
        )
    if session.json:
        session.out.emit(
            {
                "queues": moved.queues,
                "jobs": moved.jobs,
                "added": moved.added,
                "there": moved.there,
                "refused": moved.refused,
                "source_checksum": moved.source,
                "target_checksum": moved.target,
                "verified": None if no_verify else moved.verified,
            }
        )
    else:
        _show(session, moved, no_verify)
    if moved.refused or not (no_verify or moved.verified):
        raise click.exceptions.Exit(NO)


def _show(session: Session, moved: migration.Moved, unseen: bool) -> None:
    session.out.say(
        "moved ",
        strong(plural(moved.added, "job")),
        f" of {plural(moved.queues, 'queue')}; {moved.there:,} were there already",
    )
    for job, why in list(moved.refused.items())[:LISTED]:
        session.out.say(f"refused {job}: {why}")
    if len(moved.refused) > LISTED:
        session.out.say(f"and {len(moved.refused) - LISTED:,} more")
    if unseen:
        return
    if moved.verified:
        session.out.say(Text("verified", style="green"), f": both hold {moved.source}")
    else:
        session.out.say(
            Text("the two differ", style="red"), f": {moved.source} at the source, {moved.target} at the target"
        )
        session.out.say("The target's queues stay paused. Let the source rest, and run it again.")


def _same(source: str, target: str) -> bool:
    try:
        (engine, path), (other, elsewhere) = parse_url(source), parse_url(target)
    except tenure.UnknownEngine:
        return source == target
    if engine != other or engine not in FOLDERS or path is None or elsewhere is None:
        return source == target
    return Folder(path, engine).path.resolve() == Folder(elsewhere, engine).path.resolve()


def _must_exist(url: str) -> None:
    """Refuse a source path without a store: opening it would create an empty one."""
    try:
        engine, path = parse_url(url)
    except tenure.UnknownEngine:
        return  # opening it reports the error
    if engine in FOLDERS and path is not None and not Folder(path, engine).check():
        raise OpenError(f"there is no store at {path}")
