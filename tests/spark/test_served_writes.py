"""Writing and working through a server: executors share no folder with the store, and no memory with its owner."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tenure
import tenure.spark
from tenure.api.store import Store
from tenure.backends.owner.listener import Listener
from tenure.protocol.dispatcher import Dispatcher


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False) as made:
        yield made
        assert made.check().clean


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener(listening, Dispatcher(store._backend))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listener.stop()


def test_a_write_is_staged_in_the_store_and_drained_from_it(
    spark: SparkSession, store: Store, url: str, tmp_path: Path
) -> None:
    rows = spark.range(0, 3_000, 1, 2).select(F.col("id").cast("string").alias("payload"))
    rows = rows.withColumn("priority", F.when(F.col("payload") == "7", 70).otherwise(1))
    for _ in range(2):
        writing = rows.write.format("tenure").mode("append").option("url", url).option("queue", "work")
        writing.option("writeId", "nightly").option("quarantinePath", str(tmp_path / "bad")).save()
    assert store.queue("work").counts().ready == 2_999
    bad = [row for file in (tmp_path / "bad").iterdir() for row in pq.read_table(file).to_pylist()]
    assert [row["payload"] for row in bad] == ["7"]
    assert not list((tmp_path / "data" / "staging").iterdir()), "nothing is left behind"

    outcomes = tenure.spark.drain(spark, url, "work", lambda job: "dead" if job.payload == b"8" else None)
    assert Counter(row.verdict for row in outcomes.collect()) == {"ok": 2_998, "dead": 1}
    assert store.queue("work").counts().removed == 2_998


def test_a_bulk_load_needs_the_folder(spark: SparkSession, url: str) -> None:
    rows = spark.range(1).select(F.col("id").cast("string").alias("payload"))
    writing = rows.write.format("tenure").mode("append").option("url", url).option("queue", "work")
    with pytest.raises(Exception, match="share the store's folder"):
        writing.option("mode", "bulk").save()
