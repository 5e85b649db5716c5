"""The table `events`: the events of many journal rows, decoded as one array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np
import pyarrow as pa

from tenure.bulk import arrays, blocks, layouts
from tenure.bulk.arrays import Bools, Fields, Ints
from tenure.bulk.blocks import Block
from tenure.bulk.extents import even
from tenure.bulk.query import Names, Query, StoreView
from tenure.errors import Corrupt, InvalidArgument, JournalTrimmed
from tenure.model.lifecycle import Change, State
from tenure.queueing import journal
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Row

SHARD = "0"
"""The one journal of a store that has one."""

_FIRST_ROWS, _MOST_ROWS, _BATCH_EVENTS = 16, 16_384, 32_768
#: A row has one event or a thousand, and each may have an error's text: rows are read few at a time, up to these bytes.
_BATCH_BYTES, _STEP = 4 * 1024 * 1024, 128
_TYPES = [f"type_{number}" for number in range(256)]
for _change in Change:
    _TYPES[_change] = _change.name.lower()
_STATES = [str(number) for number in range(256)]
for _state in State:
    _STATES[_state] = _state.name.lower()
_REASONS = (None, "max_attempts", "failed")


def _among(*changes: Change) -> Bools:
    made = np.zeros(256, np.bool_)
    made[list(changes)] = True
    return made


_VISIBLE = _among(Change.ENQUEUED, Change.RETRIED, Change.RELEASED, Change.EXPIRED, Change.REPLAYED, Change.REPAIRED,
                  Change.RESTORED, Change.UNBLOCKED, Change.SIGNALLED)  # fmt: skip
_LEASED = _among(Change.CLAIMED, Change.EXTENDED)
_WORKER = _among(Change.CLAIMED)
_ERROR = _among(Change.RETRIED, Change.DIED, Change.RESTORED)
_PACKED = _among(Change.QUEUE_CREATED, Change.QUEUE_CONFIGURED)
_KNOWN = _among(*Change)


def read(moment: StoreView, query: Query, begin: bytes, end: bytes) -> Iterator[pa.RecordBatch]:
    """The events of the journal rows with keys in [begin, end). Raises Corrupt if a row is missing or damaged."""
    size = _FIRST_ROWS
    at: int | None = keyspace.split_commit(begin) if len(begin) == 8 else None
    stop = keyspace.split_commit(end) if len(end) == 8 else None
    walk = moment.reader.walk(keyspace.JOURNAL, begin, end)
    while True:
        rows = blocks.gather(walk, size, layouts.COMMIT.itemsize, "journal", _BATCH_BYTES, _STEP)
        if at is None and len(rows):
            at = keyspace.split_commit(rows.key(0))
        made = 0
        if at is not None and len(rows):
            chunk = _Chunk(rows, at, lambda: moment.names)
            batch = chunk.batch(query)
            if batch is not None:
                yield batch
            made = len(chunk.events)
            at += len(rows)
        if len(rows) < size and len(rows.data) < _BATCH_BYTES:
            if at is not None and stop is not None and at < stop:
                raise Corrupt(f"journal row {at} is missing")
            return
        size = int(max(_FIRST_ROWS, min(_MOST_ROWS, 4 * size, size * _BATCH_EVENTS // max(1, made))))


def decode(rows: Sequence[Row], begin: int, query: Query, names: Callable[[], Names]) -> pa.RecordBatch | None:
    """The events of rows that must be numbered from `begin` on without a gap; None if none is wanted."""
    return _Chunk(_block(rows), begin, names).batch(query)


def queue_numbers(rows: Sequence[Row]) -> Ints:
    """The queues that these rows are about."""
    return np.unique(
        _Chunk(_block(rows), keyspace.split_commit(rows[0][0]), lambda: Names(())).events["queue"].astype(np.int64)
    )


def _block(rows: Sequence[Row]) -> Block:
    return blocks.block(rows, layouts.COMMIT.itemsize, "journal")


def _each_event(body: bytes) -> bytes:
    """The events of a row of version 2: its one event for each of its jobs (`records.alike_events` as one array)."""
    jobs = np.frombuffer(body, layouts.EVENT["job"], offset=layouts.EVENT.itemsize)
    events = np.frombuffer(body, layouts.EVENT, 1).repeat(len(jobs))
    events["job"] = jobs
    return events.tobytes()


class _Chunk:
    """Some journal rows, and one method a column."""

    def __init__(self, block: Block, begin: int, names: Callable[[], Names]) -> None:
        numbers = arrays.keys_as(block.keys, layouts.COMMIT).astype(np.int64)
        gap = numbers != np.arange(begin, begin + len(numbers))
        if gap.any():
            raise Corrupt(f"journal row {begin + int(gap.argmax())} is missing")
        head, event, job = layouts.JOURNAL.itemsize, layouts.EVENT.itemsize, layouts.EVENT["job"].itemsize

        def damage(at: int) -> None:
            records.decode_journal(block.value(at), begin + at)

        arrays.check(block, head, damage, records.V2)
        self._heads = arrays.heads(block, layouts.JOURNAL)
        counts = self._heads["events"].astype(np.int64)
        alike = self._heads["version"] == records.V2
        sizes = np.where(alike, event + counts * job, counts * event)
        room = block.lengths - head - 4 - sizes
        short = (room < 0) | (alike & (room != 0))
        if short.any():
            raise Corrupt(f"journal row {begin + int(short.argmax())} is cut short")
        begins = (block.starts + head).tolist()
        bodies = [block.data[at : at + size] for at, size in zip(begins, sizes.tolist(), strict=True)]
        for at in np.flatnonzero(alike).tolist():
            bodies[at] = _each_event(bodies[at])
        self.events: Fields = arrays.fields(b"".join(bodies), layouts.EVENT, "journal")
        #: For each event its row, and its place in it.
        self._row: Ints = np.repeat(np.arange(len(block)), counts)
        self._index: Ints = np.arange(len(self.events)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._numbers = numbers
        self._block = block
        self._tails = block.starts + head + sizes
        self._room = room
        self._name_source = names

    def batch(self, query: Query) -> pa.RecordBatch | None:
        """None if no event is wanted."""
        keep = self._wanted(query)
        if not len(self.events) or (keep is not None and not keep.any()):
            return None
        columns = [getattr(self, f"column_{name}")() for name in query.columns]
        return arrays.filtered(pa.RecordBatch.from_arrays(columns, schema=query.schema), keep)

    def _wanted(self, query: Query) -> Bools | None:
        chosen = self._name_source().chosen(query.tenant, query.queue) if query.tenant or query.queue else None
        return None if chosen is None else np.isin(self.events["queue"].astype(np.int64), chosen)

    # ── where and when ───────────────────────────────────────────────────────────────────────────────────────────────

    def column_shard(self) -> pa.Array:
        return arrays.constant(SHARD, len(self.events))

    def column_commit(self) -> pa.Array:
        return arrays.longs(self._numbers[self._row])

    def column_index(self) -> pa.Array:
        return arrays.ints(self._index)

    def column_number(self) -> pa.Array:
        return arrays.longs(self._heads["first_number"].astype(np.int64)[self._row] + self._index)

    def column_time(self) -> pa.Array:
        return arrays.times(self._heads["time_ms"][self._row])

    # ── what ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _names(self) -> tuple[pa.Array, pa.Array]:
        return self._name_source().columns(self.events["queue"])

    @cached_property
    def _no_job(self) -> Bools:
        return arrays.no_id(self.events["job"])

    def column_type(self) -> pa.Array:
        return arrays.texts(_TYPES, self.events["change"])

    def column_tenant(self) -> pa.Array:
        return self._names[0]

    def column_queue(self) -> pa.Array:
        return self._names[1]

    def column_queue_number(self) -> pa.Array:
        return arrays.longs(self.events["queue"])

    def column_job_id(self) -> pa.Array:
        return arrays.hex_ids(self.events["job"], self._no_job)

    def column_state(self) -> pa.Array:
        return arrays.texts([*_STATES, None], np.where(self._no_job, 256, self.events["state"].astype(np.int64)))

    def column_priority(self) -> pa.Array:
        return arrays.ints(self.events["priority"])

    def column_attempt(self) -> pa.Array:
        return arrays.longs(self.events["attempt"])

    def column_max_attempts(self) -> pa.Array:
        return arrays.longs(self.events["max_attempts"])

    def column_token(self) -> pa.Array:
        return arrays.longs(self.events["token"])

    def column_lease_id(self) -> pa.Array:
        return arrays.hex_ids(self.events["lease"], arrays.no_id(self.events["lease"]))

    def column_visible_at(self) -> pa.Array:
        return arrays.times(self.events["at_ms"], ~_VISIBLE[self.events["change"]])

    def column_lease_until(self) -> pa.Array:
        return arrays.times(self.events["at_ms"], ~_LEASED[self.events["change"]])

    def column_reason(self) -> pa.Array:
        reason = self.events["reason"]
        return arrays.texts(_REASONS, np.where(reason > 2, 0, reason))

    def column_previous_commit(self) -> pa.Array:
        return arrays.longs(self.events["previous"] >> np.uint64(records.REF_BITS), self.events["previous"] == 0)

    def column_previous_index(self) -> pa.Array:
        index = self.events["previous"] & np.uint64((1 << records.REF_BITS) - 1)
        return arrays.ints(index, self.events["previous"] == 0)

    # ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _sizes(self) -> Ints:
        sizes = self.events["text_bytes"].astype(np.int64)
        beyond = self.events["text_at"].astype(np.int64) + sizes > self._room[self._row]
        if (beyond & (sizes > 0)).any():
            row = int(self._row[int((beyond & (sizes > 0)).argmax())])
            raise Corrupt(f"journal row {self._numbers[row]} has a text that goes past its end")
        return sizes

    def _texts_of(self, among: Bools) -> pa.Array:
        """The text of events of some types; null where there is none."""
        null = ~among[self.events["change"]] | (self._sizes == 0)
        if null.all():
            return pa.nulls(len(self.events), pa.binary())
        starts = np.where(null, 0, self._tails[self._row] + self.events["text_at"].astype(np.int64))
        return arrays.cut(self._block.data, starts, np.where(null, 0, self._sizes), null)

    def column_worker(self) -> pa.Array:
        return arrays.as_text(self._texts_of(_WORKER))

    def column_error(self) -> pa.Array:
        return arrays.as_text(self._texts_of(_ERROR))

    def column_text(self) -> pa.Array:
        plain = self._texts_of(~(_WORKER | _ERROR | _PACKED))
        packed = self._texts_of(_PACKED)
        if packed.null_count == len(packed):
            return arrays.as_text(plain)
        shown = arrays.as_text(plain).to_pylist()
        for at in np.flatnonzero(~packed.is_null().to_numpy(zero_copy_only=False)).tolist():
            shown[at] = msgspec.json.encode(msgspec.msgpack.decode(packed[at].as_py())).decode()
        return pa.array(shown, pa.string())

    def column_raw(self) -> pa.Array:
        unknown = ~_KNOWN[self.events["change"]]
        if not unknown.any():
            return pa.nulls(len(self.events), pa.binary())
        made: list[bytes | None] = [None] * len(self.events)
        for at in np.flatnonzero(unknown).tolist():
            start = int(self._tails[self._row[at]]) + int(self.events["text_at"][at])
            made[at] = self.events[at].tobytes() + self._block.data[start : start + int(self._sizes[at])]
        return pa.array(made, pa.binary())


# ── where to cut ─────────────────────────────────────────────────────────────────────────────────────────────────────


def span(reader: Reader, since_ms: int | None = None, until_ms: int | None = None) -> tuple[int, int]:
    """The commits [begin, end) of a time, found by bisection: times never decrease."""
    oldest, newest = journal.bounds(reader)
    begin = oldest if since_ms is None else journal.first_at(reader, since_ms, oldest, newest)
    end = newest + 1 if until_ms is None else journal.first_at(reader, until_ms, oldest, newest)
    return begin, max(begin, end)


def cuts(reader: Reader, begin: int, end: int, events: int) -> list[tuple[int, int]]:
    """[begin, end) cut into parts of about equal size, at most about `events` events each. Raises JournalTrimmed.

    Every row has the number of its first event, so the cuts are found by bisection and nothing is scanned.
    """
    if begin >= end:
        return []
    oldest, _ = journal.bounds(reader)
    if begin < oldest:
        raise JournalTrimmed(journal.cursor(oldest, 0))
    if events < 1:
        raise InvalidArgument("a part has at least one event")
    first = head(reader, begin).first_number
    last = head(reader, end - 1)
    total = last.first_number + last.events - first
    parts: list[tuple[int, int]] = []
    at = begin
    count = even(total, events)
    for part in range(1, count):
        cut = _at_number(reader, first + part * total // count, at + 1, end)
        if cut >= end:
            break
        parts.append((at, cut))
        at = cut
    return [*parts, (at, end)]


def _at_number(reader: Reader, number: int, low: int, high: int) -> int:
    """The first row of [low, high) whose first event has that number or a later one."""
    while low < high:
        middle = (low + high) // 2
        if head(reader, middle).first_number < number:
            low = middle + 1
        else:
            high = middle
    return low


def head(reader: Reader, commit: int) -> records.JournalHeader:
    raw = reader.get(keyspace.JOURNAL, keyspace.commit(commit))
    if raw is None:
        raise Corrupt(f"journal row {commit} is missing")
    return records.decode_journal_header(raw)
