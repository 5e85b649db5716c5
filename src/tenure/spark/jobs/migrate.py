"""`migrate`: any store to any store, part by part side by side, from one snapshot; verified by checksums."""

from __future__ import annotations

import time

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tenure.api import migration
from tenure.errors import InvalidArgument
from tenure.model.job import Counts, QueueInfo
from tenure.model.retry import Policy
from tenure.settings import parse_url
from tenure.spark.connections import opened
from tenure.spark.jobs import journal
from tenure.spark.jobs.rows import OUTCOME, Restoring
from tenure.spark.jobs.summary import Summary, Told, quietly
from tenure.spark.lineage import traced
from tenure.spark.pipelines.migration import checksum
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
        moved = _into(jobs, target).agg(
            F.sum("jobs").alias("jobs"), F.sum("added").alias("added"), F.sum("there").alias("there"),
            F.collect_list(F.when(F.col("refused") != "{}", F.col("refused"))).alias("refused"),
        ).collect()[0]  # fmt: skip
        told("comparing both stores")
        names = [F.struct(F.lit(info.tenant), F.lit(info.queue)) for info in queues]
        with snapshot(target, name="migrate") as other:
            there = _jobs(spark, target, other.id)
            if names:
                there = there.where(F.struct("tenant", "queue").isin(*names))
            sums = [checksum(frame).collect()[0] for frame in (jobs, there)]
    refused: dict[str, str] = {}
    for said in moved.refused:
        refused |= msgspec.json.decode(said, type=dict[str, str])
    same = tuple(sums[0]) == tuple(sums[1])
    if same and not refused:
        with opened(target) as store:
            migration.finish(store, queues)
    return Summary(
        job="migrate",
        read=moved.jobs or 0,
        written=moved.added or 0,
        rejected=len(refused),
        seconds=time.monotonic() - began,
        facts={
            "queues": len(queues),
            "there": moved.there or 0,
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
    reader = spark.read.format("tenure").option("url", url).option("table", "jobs").option("snapshot", snap)
    return reader.option("rowsPerPartition", ROWS).load()


def _queues(spark: SparkSession, url: str, snap: str) -> list[QueueInfo]:
    reader = spark.read.format("tenure").option("url", url).option("table", "queues").option("snapshot", snap)
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
