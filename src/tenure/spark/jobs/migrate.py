"""`migrate`: any store to any store, part by part side by side, from one snapshot; verified by checksums."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec
from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql import functions as F

from tenure.api import migration
from tenure.api.queue import Queue
from tenure.errors import InvalidArgument
from tenure.model.job import Counts, Job, QueueInfo
from tenure.model.retry import Policy
from tenure.settings import parse_url
from tenure.spark.connections import opened
from tenure.spark.jobs import journal
from tenure.spark.jobs.rows import OUTCOME, Restoring
from tenure.spark.jobs.summary import Summary, Told, quietly
from tenure.spark.lineage import traced
from tenure.spark.pipelines.migration import checksum, parents_of_jobs, steps_of_jobs
from tenure.spark.snapshots import snapshot

_NOTHING = Counts(ready=0, scheduled=0, leased=0, done=0, dead=0, enqueued=0, removed=0)
ROWS = 20_000


@traced(reads=("source",), writes=("target",))
def migrate(spark: SparkSession, source: str, target: str, *, told: Told = quietly) -> Summary:
    """Copy every job of `source` into `target`; run again, it goes on where it stopped.

    The queues of the target are paused until both hold the same. What happens at the source after the snapshot was
    taken is not copied: let it rest.
    """
    began = time.monotonic()
    if source == target:
        raise InvalidArgument(f"{source} and {target} are one store")
    with journal.there(source):
        pass
    with snapshot(source, name="migrate") as snap:
        jobs = _jobs(spark, source, snap.id)
        queues = _queues(spark, source, snap.id)
        told(f"preparing {len(queues)} queues")
        with opened(target) as store:
            migration.prepare(store, queues)
        told("copying jobs")
        listed = _with_attached(spark, source, snap.id)
        moved = _into(_without(jobs, listed), target).agg(
            F.sum("jobs").alias("jobs"), F.sum("added").alias("added"), F.sum("there").alias("there"),
            F.collect_list(F.when(F.col("refused") != "{}", F.col("refused"))).alias("refused"),
        ).collect()[0]  # fmt: skip
        copied = _copy_listed(source, target, queues, listed) if listed else None
        told("comparing both stores")
        with snapshot(target, name="migrate") as other:
            sums = [
                _checksum(spark, url, at, queues).collect()[0] for url, at in ((source, snap.id), (target, other.id))
            ]
    refused = {} if copied is None else copied.refused
    for said in moved.refused:
        refused |= msgspec.json.decode(said, type=dict[str, str])
    same = tuple(sums[0]) == tuple(sums[1])
    if same and not refused:
        with opened(source) as here, opened(target) as store:
            migration.copy_schedules(here, store, queues)
            migration.finish(store, queues)
    return Summary(
        job="migrate",
        read=(moved.jobs or 0) + (0 if copied is None else copied.jobs),
        written=(moved.added or 0) + (0 if copied is None else copied.added),
        rejected=len(refused),
        seconds=time.monotonic() - began,
        facts={
            "queues": len(queues),
            "there": (moved.there or 0) + (0 if copied is None else copied.there),
            "refused": dict(list(refused.items())[:20]),
            "source": _said(sums[0]),
            "target": _said(sums[1]),
            "verified": same and not refused,
        },
    )


def _into(jobs: DataFrame, target: str) -> DataFrame:
    # A RocksDB has one owner: side by side, tasks would only wait for each other.
    one = parse_url(target)[0] == "rocksdb" if target.startswith(("rocksdb", "lmdb")) else False
    return (jobs.coalesce(1) if one else jobs).mapInArrow(Restoring(target), OUTCOME)


def _jobs(spark: SparkSession, url: str, snap: str) -> DataFrame:
    return _table(spark, url, snap, "jobs").option("rowsPerPartition", ROWS).load()


def _table(spark: SparkSession, url: str, snap: str, table: str) -> DataFrameReader:
    return spark.read.format("tenure").option("url", url).option("table", table).option("snapshot", snap)


#: (queue, tenant) → state → the ids of jobs that have steps or parents.
_Listed = dict[tuple[str, str], dict[str, list[str]]]


def _with_attached(spark: SparkSession, url: str, snap: str) -> _Listed:
    """The jobs that have steps or parents. They are few, and only their ids come to the driver."""
    owners = [
        _table(spark, url, snap, table)
        .option("columns", "tenant,queue,job_id")
        .load()
        .withColumnRenamed("job_id", "id")
        for table in ("steps", "parents")
    ]
    ids = owners[0].unionAll(owners[1]).distinct().cache()
    try:
        if ids.isEmpty():
            return {}
        states = _table(spark, url, snap, "jobs").option("columns", "tenant,queue,id,state").load()
        listed: _Listed = {}
        for row in states.join(F.broadcast(ids), ["tenant", "queue", "id"], "left_semi").toLocalIterator():
            listed.setdefault((row.queue, row.tenant), {}).setdefault(row.state, []).append(row.id)
        return listed
    finally:
        ids.unpersist()


def _without(jobs: DataFrame, listed: _Listed) -> DataFrame:
    if not listed:
        return jobs
    ids = [(tenant, queue, id) for (queue, tenant), states in listed.items() for some in states.values() for id in some]
    left_out = jobs.sparkSession.createDataFrame(ids, "tenant STRING, queue STRING, id STRING")
    return jobs.join(F.broadcast(left_out), ["tenant", "queue", "id"], "left_anti")


def _copy_listed(source: str, target: str, queues: list[QueueInfo], listed: _Listed) -> migration.Copied:
    """Copy these jobs from the driver, in an order in which parents come before the jobs that wait for them."""

    def jobs(queue: Queue, states: Sequence[str]) -> Iterator[Job]:
        found = listed.get((queue.name.queue, queue.name.tenant), {})
        for id in [id for state in states for id in found.get(state, ())]:
            if (job := queue.get(id)) is not None:
                yield job

    with opened(source) as here, opened(target) as there:
        return migration.copy(here, there, queues, jobs=jobs)


def _checksum(spark: SparkSession, url: str, snap: str, queues: list[QueueInfo]) -> DataFrame:
    """Over the jobs of these queues, their steps and their parents."""
    frames = [_table(spark, url, snap, table).load() for table in ("steps", "parents")]
    frames.insert(0, _jobs(spark, url, snap))
    if queues:
        names = [F.struct(F.lit(info.tenant), F.lit(info.queue)) for info in queues]
        frames = [frame.where(F.struct("tenant", "queue").isin(*names)) for frame in frames]
    return checksum(frames[0], steps_of_jobs(frames[1]), parents_of_jobs(frames[2]))


def _queues(spark: SparkSession, url: str, snap: str) -> list[QueueInfo]:
    reader = _table(spark, url, snap, "queues")
    return [
        QueueInfo(
            tenant=row.tenant,
            queue=row.queue,
            number=row.queue_number,
            paused=row.paused,
            policy=msgspec.json.decode(row.policy, type=Policy),
            counts=_NOTHING,
        )
        for row in reader.load().collect()
    ]


def _said(row: Row) -> str:
    return f"{row['count']} jobs, {int(row['total']):x}"
