"""A server that asks for a token: each format takes it by the option `token`, and says what is missing without it.

What Spark's processes call is called here, without Java.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

import tenure.spark
from tenure.errors import TenureError
from tenure.spark import claim_stream, event_stream, job_writer, table_reader, verdict_writer
from tenure.spark.session import READS, reads_folder
from tests.server.running import Running, running, token

JOBS = StructType().add("id", "string").add("payload", "binary")
PAYLOAD = StructType().add("payload", "binary")
VERDICTS = StructType().add("receipt", "string").add("verdict", "string")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(url=f"rocksdb:{tmp_path_factory.mktemp('tokens') / 'data'}") as made:
        made.store.queue("work").enqueue(b"first")
        yield made


def options(served: Running, **more: str) -> dict[str, str]:
    held = token(None, "operator admin produce consume")["Authorization"].removeprefix("Bearer ")
    return {"url": served.url, "queue": "work", "token": held, **more}


def without(found: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if name != "token"}


def test_tables(served: Running) -> None:
    given = options(served, columns="id, payload")
    reader = table_reader.reader(given, JOBS, "a-load")
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert b"first" in pa.Table.from_batches(batches).column("payload").to_pylist()
    with pytest.raises(TenureError, match="token"):
        table_reader.reader(without(given), JOBS, "another").partitions()


def test_a_snapshot_is_released_with_the_token_of_its_read(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that releases it may have no token of its own."""
    monkeypatch.setenv(READS, str(reads_folder()))
    table_reader.reader(options(served, columns="id, payload"), JOBS, "released").partitions()
    before = len(served.store.snapshots())
    assert tenure.spark.release() == 1
    assert len(served.store.snapshots()) == before - 1


def test_events(served: Running) -> None:
    given = options(served, table="events", startingOffsets="earliest")
    reader = event_stream.stream_reader(given, StructType())
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(100)) != start
    with pytest.raises(TenureError, match="token"):
        event_stream.stream_reader(without(given), StructType()).initialOffset()


def test_writes(served: Running, tmp_path: Path) -> None:
    given = options(served)
    writer = job_writer.writer(given, PAYLOAD, False)
    staged = writer.write(iter([pa.RecordBatch.from_pydict({"payload": pa.array([b"second"])})]))
    writer.commit([staged])
    assert served.store.queue("work").counts().enqueued == 2
    with pytest.raises(TenureError, match="token"):
        job_writer.writer(without(given), PAYLOAD, False)


def test_claims_and_verdicts(served: Running) -> None:
    given = options(served)
    reader = claim_stream.stream_reader(given, StructType())
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(1)) != start
    with pytest.raises(TenureError, match="token"):
        claim_stream.stream_reader(without(given), StructType()).latestOffset(start, ReadMaxRows(1))
    assert verdict_writer.planned(given | {"table": "verdicts"}, VERDICTS, False).token == given["token"]
