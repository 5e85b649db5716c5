"""The journal as a stream: `readStream` of the table `events`.

An offset is a place of each shard: {"0": {"commit": 42, "number": 1234}}, the first row that was not read, and its first
event's number. `latestOffset` only looks; what is to be read is in the offsets alone, so that a batch that runs again
after a crash reads the same events. A small batch travels inside its partition, a large one is read from a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tenure.bulk.events import SHARD
from tenure.bulk.journal_reader import FEW, At, Journal
from tenure.errors import InvalidArgument, TenureError
from tenure.model.names import checked as checked_name
from tenure.spark.options import checked, url_of, whole
from tenure.spark.table_reader import ROWS, TTL_SECONDS, TablePartition, in_schema, moment, query_of

OPTIONS = frozenset(
    {"url", "table", "tenant", "queue", "columns", "rowsPerPartition", "snapshotTtl", "startingOffsets",
     "maxEventsPerTrigger", "consumer", "token"}
)  # fmt: skip


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    return EventStream(checked(options, OPTIONS, "a stream of events"), schema)


class FetchedPartition(InputPartition):
    """Events that came along with the plan, as an Arrow stream."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(None)
        self.stream = stream


class EventStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._rows = whole(options, "rowsPerPartition", ROWS)
        self._most = whole(options, "maxEventsPerTrigger", 0) or None
        self._consumer = options.get("consumer")
        if self._consumer is not None:
            checked_name("consumer", self._consumer)
        self._starting = options.get("startingOffsets", "earliest")
        self._query = query_of(options, schema, "events")
        self._schema = schema
        ttl_ms = 1000 * whole(options, "snapshotTtl", TTL_SECONDS)
        self._journal = Journal(url_of(options), ttl_ms, options.get("token"))
        #: With Trigger.AvailableNow: where to stop.
        self._target: At | None = None
        self._latest: At | None = None

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def initialOffset(self) -> dict[str, Any]:
        try:
            start = self._start()
            if self._consumer is not None:
                self._journal.register(self._consumer, start)
            return _offset(start)
        finally:
            self._journal.release()

    def _start(self) -> At:
        if self._starting in ("earliest", "latest"):
            return self._journal.ends()[self._starting == "latest"]
        if self._starting.lstrip().startswith("{"):
            return self._journal.at_commit(_position(json.loads(self._starting)).commit)
        time_ms = moment("startingOffsets", {"startingOffsets": self._starting})
        assert time_ms is not None
        return self._journal.at_time(time_ms)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Look, and keep the store open if there is something to plan: Spark asks for that next."""
        at, found = _position(start), None
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        try:
            self._journal.read_up_to(at)
            found, self._latest = self._journal.after(at, self._target, most)
            return _offset(found) if found.commit > at.commit else start
        finally:
            if found is None or found.commit <= at.commit:
                self._journal.release()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """As of the last look, which was just now."""
        return None if self._latest is None else _offset(self._latest)

    def prepareForTriggerAvailableNow(self) -> None:
        try:
            self._target = self._latest = self._journal.ends()[1]
        finally:
            self._journal.release()

    # ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, stop = _position(start), _position(end)
        if first.commit >= stop.commit:
            return []
        try:
            if stop.number - first.number <= FEW:
                return [FetchedPartition(_packed(self._journal.fetch(self._query, first, stop), self._query.schema))]
            place, parts = self._journal.parts(first, stop, self._rows)
            return [TablePartition(place, self._query, part) for part in parts]
        finally:
            self._journal.release()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, FetchedPartition):
            with pa.ipc.open_stream(partition.stream) as stream:
                yield from in_schema(stream, self._schema)
        elif isinstance(partition, TablePartition):
            yield from in_schema(partition.place.read(partition.query, partition.part), self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        if self._consumer is not None:
            try:
                self._journal.register(self._consumer, _position(end))
            finally:
                self._journal.release()

    def stop(self) -> None:
        try:
            self._journal.drop()
            self._journal.release()
        except TenureError:
            return  # it goes by itself when its time has come


def _offset(at: At) -> dict[str, Any]:
    return {SHARD: {"commit": at.commit, "number": at.number}}


def _position(offset: dict[str, Any]) -> At:
    try:
        found = offset[SHARD]
        if isinstance(found, int):  # as a person writes it
            return At(found, 0)
        return At(int(found["commit"]), int(found["number"]))
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument(
            f'{offset!r} is not an offset of this stream: {{"0": {{"commit": 42, "number": 1234}}}}'
        ) from None


def _packed(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
