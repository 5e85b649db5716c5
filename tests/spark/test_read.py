"""Tables as DataFrames: what Spark reads is what the store's own tables are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import tenure
import tenure.spark
from tenure import bulk
from tenure.bulk.schemas import TABLES
from tenure.errors import TenureError
from tenure.spark.datasource import TenureSource
from tests.bulk.filling import fill
from tests.bulk.flow_filling import fill_flows
from tests.spark.made import schema_of


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = f"rocksdb:{tmp_path_factory.mktemp('read') / 'data'}"
    with tenure.open(made, sweep=False) as store:
        fill(store)
        fill_flows(store)
    return made


def load(spark: SparkSession, url: str, table: str = "jobs", **options: object) -> DataFrame:
    reader = spark.read.format("tenure").option("url", url).option("table", table)
    for name, value in options.items():
        reader = reader.option(name, value)  # type: ignore[arg-type]
    return reader.load()


def truth(url: str, table: str, **which: Any) -> list[dict[str, Any]]:
    with tenure.open(url, sweep=False) as store:
        return [_plain(row) for row in bulk.read(store, table, **which).to_pylist()]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return row | ({"headers": dict(row["headers"])} if "headers" in row else {})


def seen(frame: DataFrame) -> list[dict[str, Any]]:
    """By Arrow, whose times have a zone, as `bulk`'s have."""
    return [_plain(row) for row in frame.toArrow().to_pylist()]


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_read_whole_in_parts(spark: SparkSession, url: str, table: str):
    frame = load(spark, url, table, rowsPerPartition=150)
    assert seen(frame) == truth(url, table)
    if table == "jobs":
        assert frame.rdd.getNumPartitions() == 3


def test_options_choose_rows_and_columns(spark: SparkSession, url: str):
    frame = load(spark, url, tenant="acme", queue="emails", state="dead, done", columns="id, state, error")
    assert frame.columns == ["id", "state", "error"]
    expected = truth(url, "jobs", tenant="acme", state=["dead", "done"], columns=["id", "state", "error"])
    assert seen(frame) == expected
    assert len(expected) == 16
    times = truth(url, "events", columns=["time"])
    middle = sorted(row["time"] for row in times)[len(times) // 2]
    since = load(spark, url, "events", since=middle.isoformat(), columns="time")
    assert since.count() == sum(row["time"] >= middle for row in times)


def test_filters_of_one_use_are_not_those_of_another(spark: SparkSession, url: str):
    """Spark 4.3 kept pushed filters with the DataFrame: a count of everything after a filtered one left rows out."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, url, columns="id, state")
        dead, everything = frame.where("state = 'dead'"), len(truth(url, "jobs"))
        assert (dead.count(), frame.count()) == (len(truth(url, "jobs", state="dead")), everything)
        assert dead.union(frame).count() == dead.count() + everything
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_dataframe_is_one_moment(spark: SparkSession, tmp_path: Path):
    """Each use of a DataFrame took a snapshot of its own: 15 filtered counts were of 15 moments, and left 15 behind."""
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        store.queue("a").enqueue_many([b"x"] * 10)
        frame = load(spark, url)
        assert frame.count() == 10
        store.queue("a").enqueue_many([b"y"] * 5)
        assert frame.where("state = 'ready'").count() == frame.alias("l").join(frame.alias("r"), "id").count() == 10
        assert load(spark, url, "JOBS", state="Ready").count() == 15, "another DataFrame is another moment"
        assert len(store.snapshots()) == 2
        assert tenure.spark.release() >= 2
        assert store.snapshots() == []
        with pytest.raises(Exception, match="is no longer kept"):
            frame.count()


def test_one_moment_for_several_reads(spark: SparkSession, tmp_path: Path):
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        store.queue("a").enqueue_many([b"x"] * 10)
        with tenure.spark.snapshot(store, ttl=600) as snap:
            store.queue("a").enqueue_many([b"y"] * 5)
            # The store is open here, and nobody needs it to read a snapshot that was taken.
            assert load(spark, url, snapshot=snap.id).count() == 10
            assert load(spark, url, "events", snapshot=snap.id).where("type = 'enqueued'").count() == 10
            frame = load(spark, url, snapshot=snap.id)
        assert store.snapshots() == []
        with pytest.raises(Exception, match="is no longer kept"):
            frame.count()
        with pytest.raises(Exception, match=r"SnapshotExpired.*is no longer kept"):
            load(spark, url, snapshot=snap.id).count()
    with tenure.spark.snapshot(url) as snap:
        assert load(spark, url, snapshot=snap.id).count() == 15
    assert load(spark, url).count() == 15


@pytest.mark.parametrize("scheme", ["rocksdb", "lmdb"])
def test_a_store_is_read_while_it_is_open(spark: SparkSession, tmp_path: Path, scheme: str):
    """RocksDB through its owner's socket, which is asked for a snapshot and no more."""
    url = f"{scheme}:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        fill(store)
        whole = [_plain(row) for row in bulk.read(store, "jobs").to_pylist()]
        assert seen(load(spark, url, rowsPerPartition=200)) == whole


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": None}, "no store is named"),
        ({"nosuch": "1"}, "unknown option 'nosuch'"),
        ({"table": "nope"}, "unknown table 'nope'"),
        ({"columns": "id, nope"}, "no column 'nope'"),
        ({"state": "waiting"}, "state 'waiting'"),
        ({"since": "yesterday"}, "is not a time"),
        ({"rowsPerPartition": "0"}, "rowsPerPartition"),
        ({"pushdown": "true"}, "gave wrong answers"),
        ({"url": "memory:"}, "lives in its own process"),
        ({"url": "rocksdb:/nowhere/at/all"}, "holds no store"),
        ({"url": "nosuch:x"}, "nosuch"),
        ({"snapshot": "../../etc"}, "is no longer kept"),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong(spark: SparkSession, url: str, options: dict[str, str | None], said: str):
    """As Spark calls the source, in its own processes; of an error there it shows the text."""
    source = TenureSource({name: value for name, value in ({"url": url} | options).items() if value is not None})
    with pytest.raises(TenureError, match=said):
        source.reader(schema_of(source)).partitions()


def test_spark_shows_the_text_of_an_error(spark: SparkSession, url: str):
    with pytest.raises(Exception, match="unknown option 'nosuch'"):
        load(spark, url, nosuch="1").count()
