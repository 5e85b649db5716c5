"""Through a server: what executors on other machines do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tenure
import tenure.spark
from tenure import bulk
from tenure.api.store import Store
from tenure.backends.owner.listener import Listener
from tenure.protocol.dispatcher import Dispatcher
from tenure.protocol.snapshot_readers import READERS
from tests.bulk.filling import fill
from tests.spark.test_read import load, seen
from tests.spark.test_stream import Bronze, stream


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with tenure.open(f"rocksdb:{tmp_path_factory.mktemp('served') / 'data'}", sweep=False) as store:
        fill(store)
        for _ in range(21):  # more than travels with a plan
            store.queue("bulk").enqueue_many([b"x"] * 1000)
        yield store
        READERS.close()


@pytest.fixture(scope="module")
def url(behind: Store) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener(listening, Dispatcher(behind._backend))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listener.stop()


def test_a_table_in_parts(spark: SparkSession, behind: Store, url: str):
    with tenure.spark.snapshot(url) as snap:
        frame = load(spark, url, queue="emails", snapshot=snap.id, rowsPerPartition=150)
        truth = bulk.read(behind, "jobs", queue="emails", snapshot=snap.id).to_pylist()
        assert seen(frame) == [row | {"headers": dict(row["headers"])} for row in truth]
        assert frame.rdd.getNumPartitions() == 3
    assert behind.snapshots() == []
    with pytest.raises(Exception, match="is no longer kept"):
        frame.count()


def test_the_journal(spark: SparkSession, behind: Store, url: str, tmp_path: Path):
    bronze = Bronze(spark, tmp_path)
    bronze.drain(stream(spark, url, columns="commit, index"))
    assert bronze.keys() == [(event.commit, event.index) for event in behind.events(limit=10**6)]
    assert len(bronze.keys()) > 21_000
    behind.queue("emails", tenant="acme").enqueue(b"one more")
    bronze.drain(stream(spark, url, columns="commit, index"))
    assert bronze.keys() == [(event.commit, event.index) for event in behind.events(limit=10**6)]
    assert behind.snapshots() == []
