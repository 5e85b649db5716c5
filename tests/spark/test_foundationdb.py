"""Spark on a simulated FoundationDB cluster: its processes reach it by its cluster file, and read its key ranges."""

from __future__ import annotations

import sys
import time

import pytest
from pyspark.sql import functions as f

import tenure
from tenure.spark.jobs.history import history
from tenure.testing import fdb
from tenure.testing.conformance.world import assert_sound
from tenure.testing.fdb import shared
from tenure.testing.fdb.cluster import Cluster


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fdb", fdb)
    with shared.serve(Cluster(time_us=lambda: time.monotonic_ns() // 10_000), tmp_path) as cluster_file:
        yield f"foundationdb:{cluster_file}"


def test_jobs_are_written_and_read_by_key_ranges(spark, url, tmp_path):
    rows = spark.range(1_200).select(f.col("id").cast("string").cast("binary").alias("payload"))
    write = (
        rows.write.format("tenure").option("url", url).option("queue", "work").option("staging", str(tmp_path / "s"))
    )
    write.option("writeId", "load-1").mode("append").save()
    write.option("writeId", "load-1").mode("append").save()  # repeated: nothing is added
    with tenure.open(url, sweep=False) as store:
        assert store.queue("work").counts().ready == 1_200
        store.queue("work").ack_many(store.queue("work").claim(limit=200))
        assert_sound(store)
    jobs = spark.read.format("tenure").option("url", url).option("table", "jobs").load()
    assert jobs.rdd.getNumPartitions() == 2, "the rows of two shards"
    found = jobs.select(f.col("payload").cast("string").cast("int").alias("n"), "state").collect()
    assert sorted(row.n for row in found) == list(range(200, 1_200))
    events = spark.read.format("tenure").option("url", url).option("table", "events").load()
    told = {row.type: row["count"] for row in events.groupBy("type").count().collect()}
    assert (told["enqueued"], told["claimed"], told["done"]) == (1_200, 200, 200)
    assert history(spark, url, str(tmp_path / "history")).read == sum(told.values())
