"""`archive` and `restore`: jobs that ended long ago out of the store into Parquet, and back.

    ROOT/_log/000000000001.json           one entry a run, created once: what it archived counts from then on
    ROOT/_log/000000000001.removed.json   all of it that was unchanged is out of the store
    ROOT/jobs/run=1/3f9a…/part-….parquet  the table `jobs`, every column

Written, verified, logged, and only then removed, where state and token are still what was archived. A run that finds an
entry whose jobs were not all removed does that first. So a crash loses nothing: before the log entry the jobs are in
the store, after it in the archive, and they leave the store before anything is archived again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tenure.errors import Corrupt, InvalidArgument
from tenure.spark.jobs import journal
from tenure.spark.jobs.lake import RunConflict, create_once, local, new_attempt, rows_in
from tenure.spark.jobs.migrate import _into
from tenure.spark.jobs.summary import Summary, Told, quietly
from tenure.spark.pipelines.migration import checksum
from tenure.spark.snapshots import snapshot

BATCH = 500


class Archived(msgspec.Struct, kw_only=True):
    """A run's commit."""

    version: int = 1
    number: int
    store: str
    before: str
    place: str
    jobs: int
    checksum: str


class Archive:
    def __init__(self, root: str) -> None:
        self.root = local(root, "an archive")
        self._log = self.root / "_log"

    def entries(self) -> list[Archived]:
        paths = sorted(self._log.glob("[0-9]*[0-9].json"))
        return [msgspec.json.decode(path.read_bytes(), type=Archived) for path in paths]

    def commit(self, entry: Archived) -> None:
        if not create_once(self._log / f"{entry.number:012}.json", msgspec.json.encode(entry)):
            raise RunConflict(entry.number)

    def removed(self, entry: Archived) -> bool:
        return (self._log / f"{entry.number:012}.removed.json").exists()

    def set_removed(self, entry: Archived, removed: int, changed: int) -> None:
        said = msgspec.json.encode({"removed": removed, "changed": changed})
        create_once(self._log / f"{entry.number:012}.removed.json", said)

    def read(self, spark: SparkSession) -> DataFrame | None:
        """Every job archived, as it was archived last."""
        places = [str(self.root / entry.place) for entry in self.entries() if entry.jobs]
        if not places:
            return None
        newest = Window.partitionBy("tenant", "queue", "id").orderBy(F.desc("token"))
        rows = spark.read.parquet(*places).withColumn("_newest", F.row_number().over(newest))
        return rows.where("_newest = 1").drop("_newest")

    def vacuum(self) -> None:
        """Remove what a run left that can no longer be committed."""
        entries = self.entries()
        logged = {entry.place for entry in entries}
        for path in self.root.glob("jobs/run=*/*"):
            number = path.parent.name.removeprefix("run=")
            if (
                path.relative_to(self.root).as_posix() not in logged
                and number.isdigit()
                and int(number) <= len(entries)
            ):
                shutil.rmtree(path, ignore_errors=True)


def archive(
    spark: SparkSession,
    url: str,
    root: str,
    before: datetime,
    *,
    states: tuple[str, ...] = ("done", "dead"),
    tenant: str | None = None,
    queue: str | None = None,
    told: Told = quietly,
) -> Summary:
    """Move jobs that ended before a moment out of the store and into `root`. Raises RunConflict."""
    began = time.monotonic()
    if before.tzinfo is None:
        raise InvalidArgument(f"before={before!r} has no time zone")
    if not states or not set(states) <= {"done", "dead"}:
        raise InvalidArgument(f"states {states!r}: done, dead, or both")
    kept = Archive(root)
    kept.vacuum()
    unfinished = [entry for entry in kept.entries() if not kept.removed(entry)]
    finished = [_remove(kept, url, entry, told) for entry in unfinished]
    with journal.there(url):
        pass
    with snapshot(url, name="archive") as snap:
        reader = spark.read.format("tenure").option("url", url).option("table", "jobs").option("snapshot", snap.id)
        reader = reader.option("state", ",".join(states))
        for name, value in (("tenant", tenant), ("queue", queue)):
            if value is not None:
                reader = reader.option(name, value)
        chosen = reader.load().where(F.col("ended_at") < F.lit(before))
        number = len(kept.entries()) + 1
        place = f"jobs/run={number}/{new_attempt()}"
        path = str(kept.root / place)
        told("writing the archive")
        chosen.write.mode("error").parquet(path)
        told("verifying it")
        wanted, got = checksum(chosen).collect()[0], checksum(spark.read.parquet(path)).collect()[0]
        if tuple(wanted) != tuple(got) or rows_in(path) != wanted["count"]:
            raise Corrupt(f"{path} does not hold what was read: {got} instead of {wanted}; nothing was removed")
    jobs = wanted["count"]
    facts: dict[str, object] = {"root": str(kept.root), "finished_before": sum(done for done, _ in finished)}
    removed = changed = 0
    if jobs:
        entry = Archived(
            number=number,
            store=url,
            before=before.isoformat(),
            place=place,
            jobs=jobs,
            checksum=f"{int(wanted.total):x}",
        )
        told(f"committing {jobs:,} jobs")
        kept.commit(entry)
        removed, changed = _remove(kept, url, entry, told)
        facts["run"] = number
    else:
        shutil.rmtree(kept.root / f"jobs/run={number}", ignore_errors=True)
    return Summary(
        job="archive",
        read=jobs,
        written=jobs,
        rejected=changed,
        seconds=time.monotonic() - began,
        facts={**facts, "removed": removed},
    )


def _remove(kept: Archive, url: str, entry: Archived, told: Told) -> tuple[int, int]:
    """Take what was archived out of the store, where it is still what it was: (how many, how many were not)."""
    removed = 0
    with journal.there(url) as store:
        for (tenant, queue, state), tokens in _batches(kept.root / entry.place):
            removed += len(store.queue(queue, tenant).discard(tokens, state))
            told(f"removed {removed:,} of {entry.jobs:,}")
    kept.set_removed(entry, removed, entry.jobs - removed)
    return removed, entry.jobs - removed


def _batches(place: Path) -> Iterator[tuple[tuple[str, str, str], dict[str, int]]]:
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for batch in ds.dataset(place, format="parquet").to_batches(columns=["tenant", "queue", "state", "id", "token"]):
        for row in batch.to_pylist():
            name = (row["tenant"], row["queue"], row["state"])
            tokens = found.setdefault(name, {})
            tokens[row["id"]] = row["token"]
            if len(tokens) == BATCH:
                yield name, found.pop(name)
    yield from found.items()


def restore(spark: SparkSession, url: str, root: str, where: str = "true", *, told: Told = quietly) -> Summary:
    """Put archived jobs for which the SQL predicate `where` holds back into the store; those that are there are left."""
    began = time.monotonic()
    rows = Archive(root).read(spark)
    if rows is None:
        raise InvalidArgument(f"nothing is archived at {root}")
    told("restoring")
    moved = _into(rows.where(F.expr(where)), url).collect()
    refused: dict[str, str] = {}
    for row in moved:
        refused |= msgspec.json.decode(row.refused, type=dict[str, str])
    return Summary(
        job="restore",
        read=sum(row.jobs for row in moved),
        written=sum(row.added for row in moved),
        rejected=len(refused),
        seconds=time.monotonic() - began,
        facts={"there": sum(row.there for row in moved), "refused": dict(list(refused.items())[:20])},
    )


def moment(text: str) -> datetime:
    """ISO 8601, in UTC unless it says otherwise."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
