"""The journal as a change feed: the block of docs/spark.md that keeps a Delta table of what each job is now."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tenure
from tests.docs.blocks import DOCS, blocks
from tests.spark.made import small_plans

BLOCK = next(block for block in blocks(DOCS / "spark.md") if "def keep_newest" in block.body)


def test_a_delta_table_of_what_each_job_is_now(spark: SparkSession, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    url, table = f"rocksdb:{tmp_path / 'data'}", str(tmp_path / "states")

    def followed() -> dict[str, tuple[str, int]]:
        names = {"spark": spark, "url": url, "table": table, "checkpoint": str(tmp_path / "checkpoint")}
        with small_plans(spark):
            exec(BLOCK.body, names)
        rows = deltalake.DeltaTable(table).to_pyarrow_table().to_pylist()
        return {row["job_id"]: (row["state"], row["attempt"]) for row in rows}

    def stored() -> dict[str, tuple[str, int]]:
        with tenure.open(url, sweep=False) as store:
            states = ("ready", "leased", "done", "dead")
            jobs = [job for state in states for job in store.queue("work").list(state)]
        return {job.id: ("waiting" if job.state == "ready" else job.state, job.attempt) for job in jobs}

    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        queue.configure(tenure.Policy(retention=3600))
        queue.enqueue_many([b"%d" % number for number in range(20)])
        queue.ack_many(list(queue.claim(limit=5)))
    assert followed() == stored()
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        queue.fail(queue.claim()[0], error="no")
        for job in list(queue.list("ready"))[:4]:
            queue.cancel(job.id)
        queue.enqueue(b"new")
    after = followed()
    assert after == stored()
    assert len(after) == 17
