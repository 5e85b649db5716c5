"""`report` on Spark: a history's hourly numbers, merged, as one HTML file."""

from __future__ import annotations

import time

from pyspark.sql import DataFrame, SparkSession

from tenure.analysis import metrics
from tenure.analysis.report.facts import Facts
from tenure.analysis.report.gathering import Gathering
from tenure.analysis.report.history import History
from tenure.analysis.report.job import TITLE, said_runs, written
from tenure.analysis.summary import Summary, Told, quietly
from tenure.errors import InvalidArgument
from tenure.spark.jobs.lake import Lake
from tenure.spark.jobs.sizing import sized
from tenure.spark.lineage import traced
from tenure.spark.statements import SparkEngine

_PAUSED = "SELECT tenant, queue, CAST(sum(paused_ms) AS BIGINT) AS ms FROM {paused} GROUP BY tenant, queue"


@traced(reads=("root",), writes=("path",))
def report(spark: SparkSession, root: str, path: str, *, title: str = TITLE, told: Told = quietly) -> Summary:
    """Write the report of the history at `root` to the file `path`."""
    began = time.monotonic()
    return written(facts_of(spark, root, title=title, told=told), path, began, told)


def facts_of(spark: SparkSession, root: str, *, title: str = TITLE, told: Told = quietly) -> Facts:
    """What the report of the history at `root` shows."""
    lake = Lake(root)
    entries = lake.entries()
    if not entries:
        raise InvalidArgument(f"there is no history at {lake.root.address}: run tenure spark history first")
    engine = SparkEngine(spark)
    with sized(spark, sum(entry.rows["bronze"] for entry in entries)):
        try:
            return Gathering(engine, _history(spark, engine, lake), told).facts(title)
        finally:
            engine.close()


def _history(spark: SparkSession, engine: SparkEngine, lake: Lake) -> History:
    entries = lake.entries()

    def read(table: str) -> DataFrame:
        found = lake.read(spark, table)
        assert found is not None, "there is at least one run"
        return found

    paused = engine.rows(_PAUSED, paused=read("gold/paused"))
    return History(
        store=entries[-1].store,
        source=said_runs(len(entries)),
        slo_seconds=entries[-1].slo,
        end_ms=entries[-1].end_ms,
        events=read("bronze"),
        attempts=read("silver/attempts"),
        lives=read("silver/lives"),
        carry=read("silver/carry"),
        partials={name: read(f"gold/{name}") for name in metrics.TABLES},
        paused={(row["tenant"], row["queue"]): row["ms"] for row in paused},
        exact=False,
    )
