"""`audit`: every law of the store and of its history, over one snapshot; what breaks one is a row."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.storagelevel import StorageLevel

from tenure.spark.jobs import journal
from tenure.spark.jobs.sizing import sized
from tenure.spark.jobs.summary import Summary, Told, quietly
from tenure.spark.pipelines import audit as laws
from tenure.spark.snapshots import snapshot

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
        # Reading is quick, and keeping what was read is not: each law reads what it needs.
        counted = {
            name: _table(spark, url, snap.id, name, (column,)).count()
            for name, column in (("jobs", "queue_number"), ("events", "number"))
        }
        told(f"{counted['jobs']:,} jobs and {counted['events']:,} events: looking for what breaks a law")
        tables = {name: _table(spark, url, snap.id, name, columns) for name, columns in laws.NEEDED.items()}
        tables |= {view: _table(spark, url, snap.id, name, columns) for view, (name, columns) in laws.VIEWS.items()}
        with sized(spark, sum(counted.values())):
            rows, total = _look(tables, output, shown, told)
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
    kept: list[DataFrame] = []

    def keep(rows: DataFrame) -> DataFrame:
        kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return kept[-1]

    found = keep(laws.violations(tables, keep))
    try:
        rows = found.orderBy("rule", "tenant", "queue", "job_id", "lease_id").limit(shown + 1).collect()
        total = len(rows) if len(rows) <= shown else found.count()
        if output is not None:
            told(f"writing {total:,} violations")
            found.coalesce(1).write.mode("error").parquet(output)
    finally:
        for one in kept:
            one.unpersist()
    return rows, total


def _table(spark: SparkSession, url: str, snap: str, name: str, columns: Sequence[str]) -> DataFrame:
    reader = spark.read.format("tenure").option("url", url).option("table", name).option("snapshot", snap)
    return reader.option("columns", ",".join(columns)).load()
