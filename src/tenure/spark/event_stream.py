"""The journal as a stream: `readStream` of the table `events`.

An offset names the store and a place of each of its shards: {"0": {"commit": 42, "number": 1234, "after": 1796…},
"store": "9f…"}, the first commit that was not read, the number of its first event, and the time of the commit before it
in milliseconds. All are compared with what the store has, so that a stream does not go on in another store.
`latestOffset` only looks; the offsets alone say what is read, so that a batch that runs again after a crash reads the
same events. A small batch travels inside its partition, a large one is read from a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tenure.bulk.events import SHARD
from tenure.bulk.journal_reader import At, Journal
from tenure.errors import InvalidArgument, JournalTrimmed, TenureError
from tenure.model.names import checked as checked_name
from tenure.spark.options import checked, flag, url_of, whole
from tenure.spark.table_reader import ROWS, TTL_SECONDS, TablePartition, in_schema, moment, query_of
from tenure.spark.task_process import spare_collections

OPTIONS = frozenset(
    {"url", "table", "tenant", "queue", "columns", "rowsPerPartition", "snapshotTtl", "startingOffsets",
     "maxEventsPerTrigger", "consumer", "token", "failOnDataLoss"}
)  # fmt: skip


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    return EventStream(checked(options, OPTIONS, "a stream of events"), schema)


class EventsLost(JournalTrimmed):
    """The journal no longer reaches back to where the stream is. The message has an offset to start again from."""

    def __init__(self, url: str, at: At, oldest: At, cursor: str) -> None:
        super().__init__(cursor)
        text = (
            f"the journal of {url} is kept from commit {oldest.commit} on, and this stream is at {at.commit}: "
            f"{oldest.commit - at.commit} commits are lost to it. To go on from the oldest one, set failOnDataLoss=false, "
            f"or start a new checkpoint with startingOffsets={json.dumps(_offset(oldest))}. A consumer's name keeps the "
            "journal for one stream, the setting storage.journal_retention keeps it longer for all"
        )
        self.args = (text,)


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
        self._starting = options.get("startingOffsets", "earliest").strip()
        self._fail_on_loss = flag(options, "failOnDataLoss", True)
        self._query = query_of(options, schema, "events")
        self._schema = schema
        ttl_ms = 1000 * whole(options, "snapshotTtl", TTL_SECONDS)
        self._url = url_of(options)
        self._journal = Journal(self._url, ttl_ms, options.get("token"))
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
        if self._starting.lower() in ("earliest", "latest"):
            return self._journal.ends()[self._starting.lower() == "latest"]
        if self._starting.startswith("{"):
            at = _position(_json(self._starting))
            with self._as_events_lost(at):
                found = self._journal.at_commit(self._kept(at).commit)
                self._journal.check(at if at.commit == found.commit else found, found)
            return found
        time_ms = moment("startingOffsets", {"startingOffsets": self._starting})
        assert time_ms is not None
        return self._journal.at_time(time_ms)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the journal. The store stays open if there are new events, since Spark plans them next."""
        at, found = _position(start), None
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        try:
            self._journal.read_up_to(at)
            with self._as_events_lost(at):
                found, self._latest = self._journal.after(self._kept(at), self._target, most)
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
            with self._as_events_lost(first):
                kept = self._kept(first)
                if kept.commit >= stop.commit:
                    return []
                self._journal.check(kept, stop)
            fetched = self._journal.fetch_few(self._query, kept, stop)
            if fetched is not None:
                return [FetchedPartition(_packed(fetched, self._query.schema))]
            place, parts = self._journal.parts(kept, stop, self._rows)
            return [TablePartition(place, self._query, part) for part in parts]
        finally:
            self._journal.release()

    def _kept(self, at: At) -> At:
        """That place; with failOnDataLoss=false, the oldest that is kept where the journal was trimmed past it."""
        if self._fail_on_loss:
            return at
        found = self._journal.oldest_after(at)
        if found.commit != at.commit:
            from tenure.telemetry import Telemetry

            Telemetry(self._url).warning("events_lost", from_commit=at.commit, to_commit=found.commit)
        return found

    @contextmanager
    def _as_events_lost(self, at: At) -> Iterator[None]:
        """Raise JournalTrimmed of the block as EventsLost, which has an offset that works. `at` is where the stream is."""
        try:
            yield
        except JournalTrimmed as trimmed:
            raise EventsLost(self._url, at, self._journal.ends()[0], trimmed.oldest) from trimmed

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        spare_collections()
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
    place = {"commit": at.commit, "number": at.number, **({"after": at.after_ms} if at.after_ms else {})}
    return {SHARD: place, **({"store": at.store} if at.store else {})}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _position(offset: Any) -> At:
    try:
        found, store = offset[SHARD], str(offset.get("store", ""))
        if isinstance(found, int):  # as a person writes it
            return At(found, 0, store)
        return At(int(found["commit"]), int(found["number"]), store, int(found.get("after", 0)))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InvalidArgument(
            f'{offset!r} is not an offset of this stream: {{"0": {{"commit": 42, "number": 1234}}}}, or {{"0": 42}}'
        ) from None


def _packed(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
