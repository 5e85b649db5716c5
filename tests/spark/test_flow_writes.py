"""Flows out of a DataFrame: the example of docs/spark.md, repeated under its id; and rows that are scattered."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tenure
from tests.docs.blocks import DOCS, blocks
from tests.spark.made import small_plans

(EXAMPLE,) = (block for block in blocks(DOCS / "spark.md") if "sortWithinPartitions" in block.body)


@pytest.mark.timeout(400)  # a busy machine: the shared JVM may have to compile all of it first
def test_the_example_of_the_page(spark: SparkSession, tmp_path: Path) -> None:
    names = {"spark": spark, "url": f"lmdb:{tmp_path / 'data'}"}
    with small_plans(spark):
        for _ in range(2):
            exec(compile(EXAMPLE.body, "spark.md", "exec"), names)
    ran = []
    with tenure.open(str(names["url"]), sweep=False) as store:
        queue = store.queue("site")
        assert (queue.counts().enqueued, queue.counts().blocked) == (3, 2)
        while claim := queue.claim(limit=5):
            ran.append([delivery.payload for delivery in claim])
            queue.ack_many(claim)
        assert store.check().clean
    assert ran == [[b"fetch"], [b"parse"], [b"index"]]


@pytest.mark.timeout(400)
def test_rows_of_a_flow_that_are_scattered_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path / 'data'}"
    rows = [("f", "parent", "p", None), ("f", "child", None, ["#p"])]
    partitions = spark.sparkContext.parallelize(rows, 2)
    scattered = spark.createDataFrame(partitions, "flow STRING, payload STRING, name STRING, after ARRAY<STRING>")
    writing = scattered.write.format("tenure").mode("append").option("url", url).option("queue", "site")
    with small_plans(spark):
        with pytest.raises(PySparkException, match="takes no flows"):
            writing.option("mode", "bulk").save()
        with pytest.raises(PySparkException, match="flow 'f' is not whole"):
            writing.option("mode", "auto").save()
    with tenure.open(url, sweep=False) as store:
        assert store.queue("site").counts().enqueued == 0
