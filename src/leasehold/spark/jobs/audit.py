"""`audit`: every law of the store and of its history, over one snapshot; what breaks one is a row."""

from __future__ import annotations

import time

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.storagelevel import StorageLevel

from leasehold.spark.jobs import journal
from leasehold.spark.jobs.sizing import sized
from leasehold.spark.jobs.summary import Summary, Told, quietly
from leasehold.spark.pipelines import audit as laws
from leasehold.spark.snapshots import snapshot

SHOWN = 1000


def audit(
    spark: SparkSession, url: str, *, output: str | None = None, shown: int = SHOWN, told: Told = quietly
) -> Summary:
    """Look for violations; they are in `facts["violations"]`, up to `shown` of them, and all in Parquet at `output`."""
    began = time.monotonic()
    with journal.there(url):
        pass
    with snapshot(url, name="audit") as snap:
        told("reading one snapshot")
        tables = {name: _table(spark, url, snap.id, name) for name in laws.NEEDED}
        for name in ("jobs", "events"):
            tables[name] = tables[name].persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counted = {name: tables[name].count() for name in ("jobs", "events")}
            told(f"{counted['jobs']:,} jobs and {counted['events']:,} events: looking for what breaks a law")
            with sized(spark, sum(counted.values())):
                rows, total = _look(tables, output, shown, told)
        finally:
            for name in ("jobs", "events"):
                tables[name].unpersist()
    violations = [row.asDict() for row in rows[:shown]]
    return Summary(
        job="audit",
        read=sum(counted.values()),
        written=total if output is not None else 0,
        rejected=total,
        seconds=time.monotonic() - began,
        facts={**counted, "rules": len(laws.RULES), "violations": violations, "output": output},
    )


def _look(tables: laws.Tables, output: str | None, shown: int, told: Told) -> tuple[list[Row], int]:
    """The first violations, and how many there are."""
    found = laws.violations(tables).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows = found.orderBy("rule", "tenant", "queue", "job_id", "lease_id").limit(shown + 1).collect()
        total = len(rows) if len(rows) <= shown else found.count()
        if output is not None:
            told(f"writing {total:,} violations")
            found.coalesce(1).write.mode("error").parquet(output)
    finally:
        found.unpersist()
    return rows, total


def _table(spark: SparkSession, url: str, snap: str, name: str) -> DataFrame:
    reader = spark.read.format("leasehold").option("url", url).option("table", name).option("snapshot", snap)
    return reader.option("columns", ",".join(laws.NEEDED[name])).load()
