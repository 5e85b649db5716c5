"""`audit` on Spark: the laws of `tenure.analysis.laws` over one snapshot; each row is a violation.

A small store is judged by DuckDB in the driver (`tenure.analysis.audit`), by the same statements.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.storagelevel import StorageLevel

from tenure import bulk
from tenure.analysis import audit as local
from tenure.analysis import laws
from tenure.analysis.audit import SHOWN, check_output, summary
from tenure.analysis.summary import Summary, Told, quietly
from tenure.bulk.journal_reader import events_kept
from tenure.contract.queue_infos import all_queues
from tenure.spark.jobs import journal
from tenure.spark.jobs.sizing import FEW, sized
from tenure.spark.lineage import traced
from tenure.spark.snapshots import snapshot
from tenure.spark.statements import run

_STORED = ("blocked", "waiting", "leased", "done", "dead")


@traced(reads=("url",), writes=("output",))
def audit(
    spark: SparkSession, url: str, *, output: str | None = None, shown: int = SHOWN, told: Told = quietly
) -> Summary:
    """Look for violations; up to `shown` are in `facts["violations"]`, all of them in Parquet at `output`.

    Where there is little to look at and DuckDB is installed, this process judges it by itself: it takes a second, and
    Spark many to plan the same statements.
    """
    began = time.monotonic()
    check_output(output)
    if judged_here(url):
        return local.audit(url, output=output, shown=shown, told=told)
    with snapshot(url, name="audit") as snap:
        told("reading one snapshot")
        counted = _counts(url, snap.id)
        told(f"{counted['jobs']:,} jobs and {counted['events']:,} events: looking for what breaks a law")
        with sized(spark, sum(counted.values())):
            rows, total = _look(spark, _read(spark, url, snap.id), output, shown, told)
    violations = [row.asDict() for row in rows[:shown]]
    return summary(counted, violations, total, output, time.monotonic() - began)


def judged_here(url: str) -> bool:
    """Whether the audit needs no Spark: there is little to look at, and DuckDB is installed. Raises OpenError."""
    return is_short(url) and find_spec("duckdb") is not None


def is_short(url: str) -> bool:
    """Whether there is so little to look at that starting Java takes most of the time. Needs no Spark. Raises OpenError."""
    with journal.there(url) as store:
        kept = [info.counts for info in all_queues(store.backend, None)]
        jobs = sum([counts.blocked + counts.waiting + counts.leased + counts.done + counts.dead for counts in kept])
        return jobs + events_kept(store.backend) <= FEW


def _counts(url: str, snapshot: str) -> dict[str, int]:
    """How much there is to look at, as the store itself counts it: nothing is scanned."""
    counters = bulk.read(url, "counters", columns=["counter", "value"], snapshot=snapshot).to_pylist()
    jobs = sum(row["value"] for row in counters if row["counter"] in _STORED)
    with journal.there(url) as store:
        return {"jobs": jobs, "events": events_kept(store.backend)}


def _read(spark: SparkSession, url: str, snapshot: str) -> dict[str, DataFrame]:
    """Read by the executors. Reading is quick and keeping what was read is not: each law reads what it needs."""
    asked = laws.NEEDED | {view: columns for view, (_, columns) in laws.VIEWS.items()}
    return {
        name: _table(spark, url, snapshot, laws.VIEWS[name][0] if name in laws.VIEWS else name, columns)
        for name, columns in asked.items()
    }


def _table(spark: SparkSession, url: str, snapshot: str, name: str, columns: Sequence[str]) -> DataFrame:
    reader = spark.read.format("tenure").option("url", url).option("table", name).option("snapshot", snapshot)
    return reader.option("columns", ",".join(columns)).load()


def _look(
    spark: SparkSession, tables: Mapping[str, DataFrame], output: str | None, shown: int, told: Told
) -> tuple[list[Row], int]:
    """The first violations, and how many there are."""
    # Few rows of many, looked at by several laws: worked out once.
    marked = run(spark, laws.MARKED, **tables).persist(StorageLevel.MEMORY_AND_DISK)
    grouped = run(spark, laws.GROUPED, **tables).persist(StorageLevel.MEMORY_AND_DISK)
    judged = run(spark, laws.VIOLATIONS, marked=marked, grouped=grouped, **tables)
    found = judged.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows = run(spark, laws.ORDERED, violations=found).limit(shown + 1).collect()
        total = len(rows) if len(rows) <= shown else found.count()
        if output is not None:
            told(f"writing {total:,} violations")
            found.coalesce(1).write.mode("error").parquet(output)
    finally:
        for one in (found, grouped, marked):
            one.unpersist()
    return rows, total
