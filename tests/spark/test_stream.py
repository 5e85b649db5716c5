"""The journal as a stream: every event once, in batches that can run again."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

import tenure
from tenure import ManualClock
from tenure.api.store import Store
from tenure.bulk import journal_reader
from tenure.errors import InvalidArgument, JournalTrimmed, SettingsError
from tenure.spark.datasource import TenureSource
from tenure.spark.event_stream import EventStream
from tenure.spark.table_reader import TablePartition
from tenure.storage import keyspace
from tenure.testing.harness import engine_of
from tests.bulk.filling import fill
from tests.spark.made import schema_of

Key = tuple[int, int]


def stream(spark: SparkSession, url: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("tenure").option("url", url).option("table", "events")
    for name, value in options.items():
        reader = reader.option(name, value)  # type: ignore[arg-type]
    return reader.load()


class Bronze:
    """A sink that writes a folder a batch, and writes it again if the batch runs again."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.folder = folder

    def drain(self, frame: DataFrame, checkpoint: str = "checkpoint") -> list[Any]:
        """Run to the end; the progress of each batch."""
        query = (
            frame.writeStream.foreachBatch(self._write)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300), "it did not come to an end"
        return [json.loads(progress.json) for progress in query.recentProgress if progress.numInputRows]

    def _write(self, batch: DataFrame, id: int) -> None:
        batch.write.mode("overwrite").parquet(str(self.folder / "bronze" / f"batch={id}"))

    def rows(self) -> list[dict[str, Any]]:
        found = self._spark.read.parquet(str(self.folder / "bronze")).drop("batch").toArrow().to_pylist()
        return sorted(found, key=lambda row: (row["commit"], row["index"]))

    def keys(self) -> list[Key]:
        return [(row["commit"], row["index"]) for row in self.rows()]


@pytest.fixture
def bronze(spark: SparkSession, tmp_path: Path) -> Bronze:
    return Bronze(spark, tmp_path)


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(made, sweep=False, durability="os") as store:
        fill(store)
    return made


def with_store(url: str, then: Callable[[Store], Any]) -> Any:
    with tenure.open(url, sweep=False) as store:
        return then(store)


def all_keys(url: str) -> list[Key]:
    return with_store(url, lambda store: [(e.commit, e.index) for e in store.events(limit=10**6)])  # type: ignore[no-any-return]


def test_it_drains_to_the_end_and_goes_on_from_there(spark: SparkSession, url: str, bronze: Bronze):
    frame = stream(spark, url, maxEventsPerTrigger=299)
    progress = bronze.drain(frame)
    truth = all_keys(url)
    assert bronze.keys() == truth
    assert [batch["numInputRows"] for batch in progress] != [len(truth)], "several batches"
    # Rows are never split: a row of 300 events is a batch by itself.
    assert max(batch["numInputRows"] for batch in progress) <= 300
    last = progress[-1]["sources"][0]
    assert last["endOffset"] == last["latestOffset"]
    assert last["endOffset"]["0"]["number"] == len(truth) + 1
    with_store(url, lambda store: store.queue("more").enqueue_many([b"x"] * 50))
    bronze.drain(frame)
    assert bronze.keys() == all_keys(url)
    assert len(bronze.keys()) == len(truth) + 51


def test_a_large_batch_is_read_in_parts_and_its_snapshot_dropped(spark: SparkSession, url: str, bronze: Bronze):
    with_store(url, lambda store: [store.queue("bulk").enqueue_many([b"x"] * 1000) for _ in range(25)])
    bronze.drain(stream(spark, url, rowsPerPartition=9000))
    assert bronze.keys() == all_keys(url)
    files = list((bronze.folder / "bronze" / "batch=0").glob("*.parquet"))
    assert len(files) == 3
    assert with_store(url, lambda store: store.snapshots()) == []


def test_columns_and_queues_are_chosen(spark: SparkSession, url: str, bronze: Bronze):
    bronze.drain(stream(spark, url, tenant="zebra", columns="commit, index, tenant, type"))
    rows = bronze.rows()
    assert {row["tenant"] for row in rows} == {"zebra"}
    assert list(rows[0]) == ["commit", "index", "tenant", "type"]
    assert len(rows) == 2 + 20 + 6 + 6


def test_where_it_starts(spark: SparkSession, url: str, tmp_path: Path):
    truth = with_store(url, lambda store: list(store.events(limit=10**6)))
    middle = truth[len(truth) // 2]
    when = datetime.fromtimestamp(middle.time_ms / 1000, UTC)
    expected = {
        "earliest": len(truth),
        "latest": 0,
        when.isoformat(): sum(event.time_ms >= middle.time_ms for event in truth),
        '{"0": 5}': sum(event.commit >= 5 for event in truth),
    }
    for starting, count in expected.items():
        reader = events_of(url, startingOffsets=starting)
        first = reader.initialOffset()
        parts = reader.partitions(first, reader.latestOffset(first, ReadAllAvailable()))
        assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == count, starting
        reader.stop()
    progress = Bronze(spark, tmp_path / "by-spark").drain(stream(spark, url, startingOffsets=starting))
    assert sum(batch["numInputRows"] for batch in progress) == count


def test_a_gap_is_named(spark: SparkSession, url: str, bronze: Bronze):
    with_store(url, lambda store: engine_of(store).transact(lambda tx: tx.delete(keyspace.JOURNAL, keyspace.commit(4))))
    with pytest.raises(StreamingQueryException, match="journal row 4 is missing"):
        bronze.drain(stream(spark, url))


def test_what_was_trimmed_is_an_error_and_a_consumer_prevents_it(spark: SparkSession, url: str, bronze: Bronze):
    bronze.drain(stream(spark, url, consumer="bronze"))
    for _ in range(3):
        with_store(url, lambda store: store.queue("more").enqueue_many([b"x"] * 5))
    end = all_keys(url)[-1][0]
    # The consumer is remembered where the last batch but one ended; nothing from there on may go.
    with_store(url, lambda store: engine_of(store).transact(lambda tx: tx.delete_range(
        keyspace.JOURNAL, keyspace.commit(1), keyspace.commit(end))))  # fmt: skip
    seen = len(bronze.keys())
    with pytest.raises(StreamingQueryException, match=rf"EventsLost.*kept from commit {end} on.*failOnDataLoss=false"):
        bronze.drain(stream(spark, url, consumer="bronze"))
    bronze.drain(stream(spark, url, failOnDataLoss="False"))
    assert len(bronze.keys()) == seen + 5, "it went on with the oldest commit that is kept"


def test_offsets_of_another_store_are_refused(spark: SparkSession, url: str, bronze: Bronze, tmp_path: Path):
    """The other store has more commits than were read of the first: by their numbers alone the stream would go on."""
    bronze.drain(stream(spark, url))
    with tenure.open(f"rocksdb:{tmp_path / 'other'}", sweep=False) as other:
        for _ in range(all_keys(url)[-1][0] + 10):
            other.queue("a").enqueue(b"x")
    shutil.move(tmp_path / "data", tmp_path / "away")
    shutil.move(tmp_path / "other", tmp_path / "data")
    with pytest.raises(StreamingQueryException, match="another store lies there now"):
        bronze.drain(stream(spark, url))


def events_of(url: str, **options: str) -> EventStream:
    """The stream's reader as Spark's own process holds it, without Spark."""
    columns = StructType().add("commit", "long").add("index", "integer")
    return EventStream({"url": url, "table": "events", **options}, columns)


def test_an_offset_names_the_store_and_the_event(url: str, tmp_path: Path):
    reader = events_of(url)
    first = reader.initialOffset()
    end = reader.latestOffset(first, ReadAllAvailable())
    assert len(reader.partitions(first, end)) == 1
    store = with_store(url, lambda store: store._backend.journal_slice(None, None, 0).store)
    assert first == {"0": {"commit": 1, "number": 1}, "store": store}
    # A copy is the same store, and one that was restored from it goes on; a checkpoint of an older version names none.
    with_store(url, lambda store: store.snapshot(tmp_path / "copy"))
    copy = events_of(f"rocksdb:{tmp_path / 'copy'}")
    assert copy.latestOffset(end, ReadAllAvailable()) == end
    older = {"0": end["0"]}
    assert reader.latestOffset(older, ReadAllAvailable()) == older
    # Then both go on, and differently: the commit is there in both, its first event is another.
    with_store(url, lambda store: [store.queue("a").enqueue_many([b"x"] * n) for n in (3, 1, 1)])
    with_store(f"rocksdb:{tmp_path / 'copy'}", lambda store: [store.queue("a").enqueue(b"x") for _ in range(5)])
    moved = reader.latestOffset(end, ReadMaxRows(3))
    reader.stop()
    with pytest.raises(InvalidArgument, match=r"begins with event \d+, and the offset says"):
        copy.latestOffset(moved, ReadAllAvailable())
    with pytest.raises(InvalidArgument, match="begins with event"):
        copy.partitions(end, moved)  # a batch that runs again after a restart


def test_a_store_that_was_restored_and_went_on_is_told_by_time(url: str, tmp_path: Path):
    """Commit by commit, with as many events: neither the store's id nor the numbers differ."""
    with_store(url, lambda store: store.snapshot(tmp_path / "copy"))
    for which in (url, f"rocksdb:{tmp_path / 'copy'}"):
        with_store(which, lambda store: [store.queue("a").enqueue(b"x") for _ in range(5)])
        time.sleep(0.01)
    reader = events_of(url)
    first = reader.initialOffset()
    middle = reader.latestOffset(first, ReadMaxRows(len(all_keys(url)) - 2))
    end = reader.latestOffset(middle, ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()
    with_store(url, lambda store: store.queue("a").enqueue(b"x"))
    assert len(reader.partitions(middle, end)) == 1, "the store that was read goes on"
    copy = events_of(f"rocksdb:{tmp_path / 'copy'}")
    for offset in (middle, end):
        with pytest.raises(InvalidArgument, match=r"was written at .* and the offset says"):
            copy.latestOffset(offset, ReadAllAvailable())
    with pytest.raises(InvalidArgument, match="was written at"):
        copy.partitions(first, middle)
    older = {"0": {"commit": end["0"]["commit"], "number": end["0"]["number"]}, "store": end["store"]}
    assert copy.latestOffset(older, ReadAllAvailable()) == older, "a checkpoint of an older version has no time"


def test_the_error_of_a_trimmed_journal_has_an_offset_that_works(url: str):
    reader = events_of(url)
    first = reader.initialOffset()
    with_store(url, lambda store: engine_of(store).transact(lambda tx: tx.delete_range(
        keyspace.JOURNAL, keyspace.commit(1), keyspace.commit(9))))  # fmt: skip
    with pytest.raises(JournalTrimmed) as lost:
        reader.latestOffset(first, ReadAllAvailable())
    usable = re.search(r"startingOffsets=(\{.*?\}, \"store\": \"\w+\"\})", str(lost.value))
    assert usable is not None
    assert events_of(url, startingOffsets=usable[1]).initialOffset()["0"]["commit"] == 9
    going_on = events_of(url, failOnDataLoss="false")
    end = going_on.latestOffset(first, ReadAllAvailable())
    (part,) = going_on.partitions(first, end)
    assert min(commit for batch in going_on.read(part) for commit in batch.column("commit").to_pylist()) == 9
    assert events_of(url, startingOffsets="LATEST").initialOffset() == end


def test_a_few_events_that_are_large_are_read_from_a_snapshot(url: str, monkeypatch: pytest.MonkeyPatch):
    """What travels inside a partition is bounded by bytes, not only by its number of events."""
    reader = events_of(url)
    first = reader.initialOffset()
    end = reader.latestOffset(first, ReadAllAvailable())
    monkeypatch.setattr(journal_reader, "FEW_BYTES", 1000)
    parts = reader.partitions(first, end)
    assert all(isinstance(part, TablePartition) for part in parts)
    keys = [
        key for part in parts for batch in reader.read(part) for key in zip(*batch.to_pydict().values(), strict=True)
    ]
    assert keys == all_keys(url)
    reader.stop()


def test_journal_retention_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENURE_STORAGE_JOURNAL_RETENTION", "7200")
    clock = ManualClock()
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", clock=clock, sweep=False) as store:
        for _ in range(3):
            store.queue("a").enqueue(b"x")
            clock.advance(4000)
        store.sweep()
        assert store._backend.journal_slice(None, None, 0).oldest == 3
    monkeypatch.setenv("TENURE_STORAGE_JOURNAL_RETENTION", "60")
    with pytest.raises(SettingsError, match="journal_retention"):
        tenure.open("memory:")


def test_a_running_query_follows_and_tells_its_lag(spark: SparkSession, bronze: Bronze, tmp_path: Path):
    url = f"rocksdb:{tmp_path / 'live'}"
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("live")
        queue.enqueue(b"first")
        query = (
            stream(spark, url, maxEventsPerTrigger=10)
            .writeStream.foreachBatch(bronze._write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            for _ in range(6):
                queue.enqueue_many([b"x"] * 5)
                queue.ack_many(queue.claim(limit=5).deliveries)
            deadline = time.monotonic() + 300  # some ten batches, each a few jobs of Spark
            while (
                not query.lastProgress
                or query.lastProgress.sources[0].endOffset != query.lastProgress.sources[0].latestOffset
                or query.status["isDataAvailable"]
            ):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            query.stop()
        truth = [(e.commit, e.index) for e in store.events(limit=10**6)]
    bronze.drain(stream(spark, url, maxEventsPerTrigger=10))
    assert bronze.keys() == truth


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"state": "dead"}, "unknown option 'state'"),
        ({"startingOffsets": "soon"}, "is not a time"),
        ({"startingOffsets": '{"0": 99999}'}, "past the end"),
        ({"startingOffsets": '{"1": 3}'}, "not an offset"),
        ({"maxEventsPerTrigger": "0"}, "maxEventsPerTrigger"),
        ({"table": "jobs"}, "readStream needs"),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong(spark: SparkSession, url: str, options: dict[str, str], said: str):
    """As Spark calls the source, in its own processes; of an error there it shows the text."""
    source = TenureSource({"url": url, "table": "events"} | options)
    with pytest.raises(InvalidArgument, match=said):
        source.streamReader(schema_of(source)).initialOffset()


def test_spark_shows_the_text_of_an_error(spark: SparkSession, url: str, bronze: Bronze):
    with pytest.raises(Exception, match="past the end"):
        bronze.drain(stream(spark, url, startingOffsets='{"0": 99999}'))
