"""`archive` and `restore`: jobs that ended long ago out of the store into Parquet, and back.

    ROOT/_log/000000000001.json           one entry a run, created once: what it archived counts from then on
    ROOT/_log/000000000001.removed.json   the run has removed from the store all that was unchanged
    ROOT/_log/.lock                       held by the run that is at work, on a disk
    ROOT/jobs/run=1/3f9a…/part-….parquet  the table `jobs`, every column
    ROOT/jobs/run=1/3f9a…/_steps, …/_parents   their rows of the tables `steps` and `parents`, if there are any

A run writes its files, verifies them, logs them, and only then removes the jobs from the store, where state and token
are still what was archived. A run that finds an entry whose jobs were not all removed does that first, and refuses to
in a store that is not the entry's. So a crash loses nothing: before the log entry the jobs are in the store, after it
in the archive, and they leave the store before anything is archived again. Runs on one root exclude each other, and a
run removes no folder but its own attempt's and those that stopped runs left. Where there are no locks (an object
store), the log still decides: of two runs with one number one commits, and the other raises RunConflict with nothing
removed from the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec
from pyspark.sql import DataFrame, DataFrameReader, SparkSession, Window
from pyspark.sql import functions as F

from tenure.analysis.commit_log import CommitLog, new_attempt
from tenure.analysis.root import Root, open_root
from tenure.bulk.journal_reader import At
from tenure.errors import Corrupt, InvalidArgument, TenureError
from tenure.spark.jobs import journal, root_tables
from tenure.spark.jobs.rows import OUTCOME, PARENTS, STEPS, RestoringFiles
from tenure.spark.jobs.summary import Summary, Told, quietly
from tenure.spark.lineage import traced
from tenure.spark.pipelines.migration import checksum, parents_of_jobs, steps_of_jobs
from tenure.spark.snapshots import snapshot

BATCH = 500
#: The note of a run whose jobs are out of the store.
_REMOVED = "removed"
#: Row groups of at most so many bytes, looked at from the first row on: some payloads are 8 MiB, and Spark's writer and
#: readers hold a row group in memory. Snappy, Spark's default, would hold a page and its compressed bytes outside Java's
#: heap as well; and archives on object stores are compressed with zstd, too.
_SMALL_GROUPS = {
    "parquet.block.size": str(8 * 1024 * 1024),
    "parquet.block.size.row.check.min": "1",
    "parquet.page.size.row.check.min": "1",
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
}


class ArchiveBusy(TenureError):
    """Another run is at work on this archive. Run again when it has ended."""

    code = "archive_busy"


class Archived(msgspec.Struct, kw_only=True):
    """A run's commit."""

    version: int = 1
    number: int
    store: str
    before: str
    place: str
    jobs: int
    checksum: str
    #: Where the store's journal ended, which tells the store from others; entries of older versions have none.
    journal_end: At | None = None


class Archive:
    def __init__(self, root: str) -> None:
        self.root = open_root(root)
        self.log = CommitLog(self.root, Archived)

    def entries(self) -> list[Archived]:
        return self.log.entries()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep other runs out. Raises ArchiveBusy."""
        with self.log.lock() as held:
            if not held:
                raise ArchiveBusy(f"another run is at work on the archive {self.root.address}")
            yield

    def removed(self, entry: Archived) -> bool:
        return self.log.has_note(entry, _REMOVED)

    def set_removed(self, entry: Archived, removed: int, changed: int) -> None:
        self.log.add_note(entry, _REMOVED, {"removed": removed, "changed": changed})

    def find(self, spark: SparkSession, where: str) -> DataFrame | None:
        """Where each archived job for which the SQL predicate `where` holds was archived last: `file` and `id`.

        None if nothing is archived. On a disk Spark reads only the columns that names and predicate need: no payload of
        8 MiB passes through Java's memory unless the predicate is about payloads.
        """
        places = [entry.place for entry in self.entries() if entry.jobs]
        if not places:
            return None
        rows = root_tables.read_with_file(spark, self.root, places)
        if len(places) > 1:
            run = F.regexp_extract("file", r"/run=(\d+)/", 1).cast("int")
            newest = Window.partitionBy("tenant", "queue", "id").orderBy(F.desc("token"), run.desc())
            named = rows.select("tenant", "queue", "id", "token", "file").withColumn(
                "_place", F.row_number().over(newest)
            )
            older = named.where("_place > 1").select("tenant", "queue", "id", "file")
            rows = rows.join(F.broadcast(older), ["tenant", "queue", "id", "file"], "left_anti")
        return rows.where(F.expr(where)).select("file", "id")

    def vacuum(self) -> None:
        """Remove the files of attempts that can no longer be committed: those whose number is taken."""
        entries = self.entries()
        self.log.vacuum(
            {entry.place for entry in entries}, lambda label: label.isdigit() and int(label) <= len(entries)
        )


@traced(reads=("url",), writes=("root",))
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
    """Move jobs that ended before a moment out of the store and into `root`.

    Raises ArchiveBusy, RunConflict, Corrupt, and InvalidArgument if a run that was stopped there is of another store, or
    of this one before it was restored.
    """
    if before.tzinfo is None:
        raise InvalidArgument(f"before={before!r} has no time zone")
    if not states or not set(states) <= {"done", "dead"}:
        raise InvalidArgument(f"states {states!r}: done, dead, or both")
    kept = Archive(root)
    with journal.there(url):
        pass
    kept.root.check_create()
    with kept.at_work():
        return _archive(spark, url, kept, before, states, tenant, queue, told)


def _archive(
    spark: SparkSession,
    url: str,
    kept: Archive,
    before: datetime,
    states: tuple[str, ...],
    tenant: str | None,
    queue: str | None,
    told: Told,
) -> Summary:
    began = time.monotonic()
    kept.vacuum()
    unfinished = [entry for entry in kept.entries() if not kept.removed(entry)]
    for entry in unfinished:
        if entry.journal_end is not None:
            journal.check(url, entry.journal_end, f"run {entry.number} of the archive {kept.root.address}")
    finished = [_remove(kept, url, entry, told) for entry in unfinished]
    number = len(kept.entries()) + 1
    place = f"jobs/run={number}/{new_attempt()}"
    with snapshot(url, name="archive") as snap:
        end = journal.end(url)

        def table(name: str) -> DataFrameReader:
            reader = spark.read.format("tenure").option("url", url).option("table", name).option("snapshot", snap.id)
            chosen = {name: value for name, value in (("tenant", tenant), ("queue", queue)) if value is not None}
            return reader.options(**chosen)

        ended = F.col("ended_at") < F.lit(before)
        chosen = table("jobs").option("state", ",".join(states)).load().where(ended)
        told("writing the archive")
        root_tables.write(chosen, kept.root, place, _SMALL_GROUPS)
        columns = "tenant,queue,id,ended_at"
        owners = table("jobs").option("state", ",".join(states)).option("columns", columns).load().where(ended)
        attached = _write_attached(table("steps").load(), table("parents").load(), owners, kept.root, place)
        told("verifying it")
        wanted = checksum(chosen, *_sums(attached)).collect()[0]
        with _row_by_row(spark):
            written = {name: root_tables.read(spark, kept.root, [f"{place}/{name}"]) for name in attached}
            got = checksum(root_tables.read(spark, kept.root, [place]), *_sums(written)).collect()[0]
        if tuple(wanted) != tuple(got) or root_tables.row_count(kept.root, place) != wanted["count"]:
            raise Corrupt(
                f"{kept.root.address}/{place} does not hold what was read: {got} instead of {wanted}; nothing was removed"
            )
    jobs = wanted["count"]
    facts: dict[str, object] = {"root": kept.root.address, "finished_before": sum(done for done, _ in finished)}
    removed = changed = 0
    if jobs:
        entry = Archived(
            number=number,
            store=url,
            before=before.isoformat(),
            place=place,
            jobs=jobs,
            checksum=f"{int(wanted.total):x}",
            journal_end=end,
        )
        told(f"committing {jobs:,} jobs")
        kept.log.commit(entry)
        removed, changed = _remove(kept, url, entry, told)
        facts["run"] = number
    else:
        kept.log.discard(place)
    return Summary(
        job="archive",
        read=jobs,
        written=jobs,
        rejected=changed,
        seconds=time.monotonic() - began,
        facts={**facts, "removed": removed},
    )


def _write_attached(
    steps: DataFrame, parents: DataFrame, owners: DataFrame, root: Root, place: str
) -> dict[str, DataFrame]:
    """Write the steps and parents of these jobs beside them; those of the two that have rows, by the folder's name."""
    ids = owners.select("tenant", "queue", F.col("id").alias("job_id"))
    found = {}
    for name, rows in ((STEPS, steps), (PARENTS, parents)):
        if not rows.isEmpty():
            found[name] = rows.join(ids, ["tenant", "queue", "job_id"], "left_semi")
            root_tables.write(found[name], root, f"{place}/{name}", _SMALL_GROUPS)
    return found


def _sums(attached: Mapping[str, DataFrame]) -> list[DataFrame]:
    sums = {STEPS: steps_of_jobs, PARENTS: parents_of_jobs}
    return [sums[name](rows) for name, rows in attached.items()]


@contextmanager
def _row_by_row(spark: SparkSession) -> Iterator[None]:
    """Read Parquet a row at a time: Spark's vectorized reader holds up to 4,096 payloads of 8 MiB in memory at once."""
    name = "spark.sql.parquet.enableVectorizedReader"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "false")
    try:
        yield
    finally:
        spark.conf.set(name, before)


def _remove(kept: Archive, url: str, entry: Archived, told: Told) -> tuple[int, int]:
    """Remove what was archived from the store, where it is still what it was; (how many, how many were not)."""
    removed = 0
    with journal.there(url) as store:
        for (tenant, queue, state), tokens in _batches(kept.root, entry.place):
            removed += len(store.queue(queue, tenant).discard(tokens, state))
            told(f"removed {removed:,} of {entry.jobs:,}")
    kept.set_removed(entry, removed, entry.jobs - removed)
    return removed, entry.jobs - removed


def _batches(root: Root, place: str) -> Iterator[tuple[tuple[str, str, str], dict[str, int]]]:
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for batch in root.dataset([place]).to_batches(columns=["tenant", "queue", "state", "id", "token"]):
        for row in batch.to_pylist():
            name = (row["tenant"], row["queue"], row["state"])
            tokens = found.setdefault(name, {})
            tokens[row["id"]] = row["token"]
            if len(tokens) == BATCH:
                yield name, found.pop(name)
    yield from found.items()


@traced(reads=("root",), writes=("url",))
def restore(spark: SparkSession, url: str, root: str, where: str = "true", *, told: Told = quietly) -> Summary:
    """Put archived jobs for which the SQL predicate `where` holds back into the store; those that are there are left."""
    began = time.monotonic()
    kept = Archive(root)
    found = kept.find(spark, where)
    if found is None:
        raise InvalidArgument(f"nothing is archived at {root}")
    told("restoring")
    # A RocksDB has one owner: side by side, tasks would only wait for each other.
    tasks = 1 if url.startswith("rocksdb") else int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    by_file = found.repartition(tasks, "file").groupBy("file")
    restoring = RestoringFiles(kept.root.address, url)
    # A function of one argument: of an object's method PySpark counts `self`, and hands it the group's key as well.
    moved = by_file.applyInArrow(lambda chosen: restoring(chosen), OUTCOME).collect()
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
