"""The table `jobs`: the rows of `state` and `jobs` side by side, with notes and leases where a query has their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np
import pyarrow as pa

from tenure.bulk import arrays, blocks, job_columns, layouts
from tenure.bulk.arrays import Bools, Fields
from tenure.bulk.blocks import Block
from tenure.bulk.job_columns import KEY_BYTES, JobColumns, StateColumns
from tenure.bulk.query import Query, StoreView
from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.storage import keyspace, records
from tenure.storage.engine import Row, Snapshot, Space, Walk

#: Columns that need more than the state's row.
FROM_JOBS = ("created_at", "key", "group", "headers", "payload")
FROM_NOTES = ("error", "result", "progress", "progress_note")

#: A batch is kept small enough for the processor's cache, on both sides of the socket. Spark's Java reads it into a buffer
#: whose size is a power of two: one of 4 MiB is kept and used again, a larger one is new memory each time.
_FIRST_ROWS, _MOST_ROWS, _BATCH_BYTES = 64, 8192, 15 * 256 * 1024
#: The assumed size of a job's notes, which may be three times as much, and of a result in several parts, before they are
#: read.
_NOTE_BYTES, _RESULT_BYTES = 32 * 1024, 8 * 1024 * 1024
#: Below this share of wanted rows, each wanted job is looked up, instead of reading past the payloads of all others.
_SPARSE = 0.2
#: Rows that are looked up one by one for one chunk: at most 64 KiB each.
_SPARSE_ROWS = 1024
_SHOWN = ("gone", "ready", "leased", "done", "dead", "blocked", "scheduled")
_REASONS = (None, "max_attempts", "failed")


def read(moment: StoreView, query: Query, begin: bytes, end: bytes) -> Iterator[pa.RecordBatch]:
    size = _FIRST_ROWS
    states = moment.reader.walk(keyspace.STATE, begin, end)
    jobs = _Jobs(moment.reader, end, payloads="payload" in query.columns)
    while True:
        rows = left = job_columns.states(states, size)
        seen = 0
        while len(left):
            chunk = _Chunk(moment, query, left, begin, jobs)
            made = 0
            for batch in chunk.batches():
                made += batch.nbytes
                yield batch
            seen += max(made, chunk.bytes_seen)
            begin = left.keys[(chunk.taken - 1) * KEY_BYTES : chunk.taken * KEY_BYTES] + b"\0"
            left = left.part(chunk.taken, len(left))
        if len(rows) < size:
            if _reads_jobs(query):
                jobs.none_left(begin)
            return
        size = int(max(_FIRST_ROWS, min(_MOST_ROWS, 8 * size, size * _BATCH_BYTES // max(1, seen))))


def _reads_jobs(query: Query) -> bool:
    """Whether the rows of `jobs` are read side by side with those of `state`.

    For the column `group` alone they are not: states tell which jobs have one (`_Chunk._looked_up_groups`).
    """
    timed = query.since_ms is not None or query.until_ms is not None
    return timed or any(name in query.columns for name in FROM_JOBS if name != "group")


class _Jobs:
    """The rows of `jobs` that go with those of `state`, with or without the payloads of segments."""

    def __init__(self, reader: Snapshot, end: bytes, *, payloads: bool) -> None:
        self._reader, self._end, self._payloads = reader, end, payloads
        self._walk: Walk | None = None
        self._at = b""

    def following(self, begin: bytes, states: StateColumns) -> JobColumns:
        """The rows of these states, from the key `begin` on. Where they are large, only the first of them.

        Raises Corrupt if a row is missing, or has no state.
        """
        keys = states.keys
        found = job_columns.jobs(self._from(begin), len(states), _BATCH_BYTES, states, payloads=self._payloads)
        if len(found.data) >= _BATCH_BYTES:
            keys = keys[: len(found.keys)]
        self._at = keys[-KEY_BYTES:] + b"\0"
        return _matched(found, keys)

    def few(self, keys: bytes) -> JobColumns:
        """The rows at these keys, looked up one by one. Raises Corrupt if one is missing."""
        return _matched(job_columns.jobs_of(_found(self._reader, keyspace.JOBS, keys)), keys)

    def none_left(self, begin: bytes) -> None:
        """Raise Corrupt if there is a job from the key `begin` on. Called where no state is left."""
        for key, _ in self._from(begin).take(1):
            raise Corrupt("its state is missing", key[4:].hex(), key=key)

    def _from(self, begin: bytes) -> Walk:
        if self._walk is None or self._at != begin:
            self._walk, self._at = self._reader.walk(keyspace.JOBS, begin, self._end), begin
        return self._walk


def _split(keys: bytes) -> list[bytes]:
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def _voids(keys: bytes) -> Fields:
    return np.frombuffer(keys, f"V{KEY_BYTES}")


def _found(reader: Snapshot, space: Space, keys: bytes) -> list[Row]:
    """The rows at these keys, without those that are not there."""
    wanted = _split(keys)
    found = zip(wanted, reader.get_many(space, wanted), strict=True)
    return [(key, value) for key, value in found if value is not None]


def _matched(rows: JobColumns, keys: bytes) -> JobColumns:
    if rows.keys != keys:
        wanted = {*_split(keys)}
        there = {rows.key(at) for at in range(len(rows))}
        first = min(wanted ^ there)  # behind a row too few or too many, others are shifted
        what = "payload" if first in wanted else "state"
        raise Corrupt(f"its {what} is missing", first[4:].hex(), key=first)
    return rows


_NO_JOBS = job_columns.jobs_of([])


class _Chunk:
    """Some rows of `state`, and one method for each column.

    `taken` and `bytes_seen` are final once all of its batches were read.
    """

    def __init__(self, moment: StoreView, query: Query, rows: StateColumns, begin: bytes, jobs: _Jobs) -> None:
        self._moment = moment
        self._query = query
        self._rows = rows
        self._begin = begin
        self._job_rows = jobs
        #: The rows of `jobs` that go with those wanted of `state`; none where no column needs them.
        self._jobs = _NO_JOBS
        #: How many of the rows of `state` the chunk covers: fewer than it was given where their jobs are large.
        self.taken = len(rows)
        self.bytes_seen = len(rows) * layouts.STATE.itemsize

    def batches(self) -> Iterator[pa.RecordBatch]:
        rows, query = self._rows, self._query
        self._all_keys = arrays.keys_as(rows.keys, layouts.OF_QUEUE)
        if rows.heads["state"].max() > max(State):
            numbers = rows.each(rows.heads["state"])
            at = int(numbers.argmax())
            raise Corrupt(f"its state is {numbers[at]}, which is none", self._hex(at))
        keep = self._wanted()
        if keep is not None and not keep.any():
            return
        if _reads_jobs(query):
            keep = self._read_jobs(keep)
        self._keys: Fields = self._all_keys if keep is None else self._all_keys[keep]
        self._states = self._rows if keep is None else self._rows.chosen(keep)
        yield from self._in_batches(np.arange(self.taken) if keep is None else np.flatnonzero(keep))

    def _read_jobs(self, keep: Bools | None) -> Bools | None:
        """Read the rows of `jobs`, up to the bytes of a batch, and cut the chunk there. Returns which rows are kept."""
        if keep is not None and keep.sum() < _SPARSE * len(keep):
            places = np.flatnonzero(keep)[:_SPARSE_ROWS]
            self._jobs = self._job_rows.few(self._all_keys[places].tobytes())
            count = len(keep) if len(places) == keep.sum() else int(places[-1]) + 1
        else:
            self._jobs = self._job_rows.following(self._begin, self._rows)
            count = len(self._jobs)
            if keep is not None:
                self._jobs = self._jobs.chosen(keep[:count])
        self.bytes_seen += len(self._jobs.data)
        if count < self.taken:
            self.taken = count
            self._rows = self._rows.part(0, count)
            self._all_keys = self._all_keys[:count]
        return None if keep is None else keep[:count]

    def _in_batches(self, places: arrays.Ints) -> Iterator[pa.RecordBatch]:
        """The chunk's kept rows as one batch, or as several where they are large. `places` are their places in the chunk."""
        ends = np.cumsum(self._weights())
        begin = 0
        while begin < len(places):
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + 2 * _BATCH_BYTES, "right")))
            whole = begin == 0 and end >= len(places)
            batch = (self if whole else self._slice(places, begin, min(end, len(places))))._batch()
            # Of the last batch: what it leaves out behind its last row is not wanted.
            self._moment.covered(self._rows.key(int(places[end - 1]) if end < len(places) else self.taken - 1))
            yield batch
            begin = end

    def _weights(self) -> arrays.Ints:
        """About how many bytes each row's payload and notes have, before they are read."""
        flags, query = self._flags, self._query
        weights = np.zeros(len(self._states), np.int64)
        if "payload" in query.columns:
            weights += self._heads["payload_bytes"].astype(np.int64)
        if query.wants(FROM_NOTES):
            weights += _NOTE_BYTES * ((flags & records.HAS_NOTES) > 0)
        if "result" in query.columns:
            weights += _RESULT_BYTES * ((flags & records.HAS_RESULT_PARTS) > 0)
        return weights

    def _slice(self, places: arrays.Ints, begin: int, end: int) -> _Chunk:
        first, last = int(places[begin]), int(places[end - 1])
        rows = self._rows.part(first, last + 1)
        made = _Chunk(self._moment, self._query, rows, rows.keys[:KEY_BYTES], self._job_rows)
        made._keys, made._states = self._keys[begin:end], self._states.part(begin, end)
        if self._jobs is not _NO_JOBS:
            made._jobs = self._jobs.part(begin, end)
        return made

    def _batch(self) -> pa.RecordBatch:
        columns = [getattr(self, f"column_{name}")() for name in self._query.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._query.schema)
        return arrays.filtered(batch, self._in_time())

    # ── which rows ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _wanted(self) -> Bools | None:
        if not self._query.states:
            return None
        numbers = [_SHOWN.index(state) for state in self._query.states]
        return np.isin(self._rows.each(self._shown(self._rows)), numbers)

    def _in_time(self) -> Bools | None:
        query = self._query
        if query.since_ms is None and query.until_ms is None:
            return None
        created = self._heads["created_at_ms"].astype(np.int64)
        return np.asarray(
            (created >= (query.since_ms or 0)) & (created < (2**62 if query.until_ms is None else query.until_ms))
        )

    def _shown(self, states: StateColumns) -> arrays.Ints:
        """The state that each head of these rows shows, as a place in `_SHOWN`."""
        number = states.heads["state"].astype(np.int64)
        scheduled = (number == State.WAITING) & (states.heads["visible_at_ms"] > self._moment.now_ms)
        return np.where(scheduled, _SHOWN.index("scheduled"), number)

    def _hex(self, at: int) -> str:
        return self._rows.key(at)[4:].hex()

    # ── of the state ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _numbers(self, make: Callable[[arrays.Array], pa.Array], field: str) -> pa.Array:
        """A column of a field of `state`."""
        values, count = self._states.heads[field], len(self._states)
        if (values == values[0]).all():
            return arrays.alike(make, int(values[0]), count)
        return make(self._states.each(values))

    def _words(self, words: Sequence[str | None], which: arrays.Ints) -> pa.Array:
        """A word for each head, by its place in `words`, for each of the rows that share it."""
        if (which == which[0]).all():
            return arrays.constant(words[int(which[0])], len(self._states))
        return arrays.texts(words, self._states.each(which))

    @cached_property
    def _flags(self) -> arrays.Array:
        return self._states.each(self._states.heads["flags"])

    @cached_property
    def _names(self) -> tuple[pa.Array, pa.Array]:
        return self._moment.names.columns(self._keys["queue"])

    def column_tenant(self) -> pa.Array:
        return self._names[0]

    def column_queue(self) -> pa.Array:
        return self._names[1]

    def column_queue_number(self) -> pa.Array:
        return arrays.longs(self._keys["queue"])

    def column_id(self) -> pa.Array:
        return arrays.hex_ids(self._keys["id"])

    def column_state(self) -> pa.Array:
        return self._words(_SHOWN, self._shown(self._states))

    def column_priority(self) -> pa.Array:
        return self._numbers(arrays.ints, "priority")

    def column_attempt(self) -> pa.Array:
        return self._numbers(arrays.longs, "attempt")

    def column_max_attempts(self) -> pa.Array:
        return self._numbers(arrays.longs, "max_attempts")

    def column_replays(self) -> pa.Array:
        return self._numbers(arrays.longs, "replays")

    def column_token(self) -> pa.Array:
        return self._numbers(arrays.longs, "token")

    def column_visible_at(self) -> pa.Array:
        return self._numbers(arrays.times, "visible_at_ms")

    def column_ended_at(self) -> pa.Array:
        return self._numbers(arrays.times_or_none, "ended_at_ms")

    def column_due_at(self) -> pa.Array:
        return self._numbers(arrays.times_or_none, "due_at_ms")

    def column_reason(self) -> pa.Array:
        heads = self._states.heads
        return self._words(_REASONS, np.where(heads["state"] == State.DEAD, np.minimum(heads["reason"], 2), 0))

    def column_lease_id(self) -> pa.Array:
        if not self._leased.any():
            return pa.nulls(len(self._states), pa.string())
        return arrays.hex_ids(self._states.each(self._states.heads["lease"]), ~self._leased)

    def column_last_lease_id(self) -> pa.Array:
        leases = np.ascontiguousarray(self._states.heads["lease"])
        if not leases.any():
            return pa.nulls(len(self._states), pa.string())
        return arrays.hex_ids(self._states.each(leases), self._states.each(arrays.no_id(leases)))

    def column_last_commit(self) -> pa.Array:
        return arrays.longs(self._states.last_events >> records.REF_BITS)

    def column_last_index(self) -> pa.Array:
        return arrays.ints(self._states.last_events & (1 << records.REF_BITS) - 1)

    # ── of the lease ─────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _leased(self) -> Bools:
        return self._states.each(np.asarray(self._states.heads["state"] == State.LEASED))

    @cached_property
    def _leases(self) -> tuple[Fields, arrays.Ints]:
        """The leases that hold jobs here, and for each leased job which of them it is."""
        held = np.zeros(int(self._leased.sum()), layouts.OF_QUEUE)
        held["queue"] = self._keys["queue"][self._leased]
        held["id"] = self._states.each(self._states.heads["lease"])[self._leased]
        unique, which = np.unique(held.view("V20"), return_inverse=True)
        keys = [bytes(key) for key in unique]
        values = self._moment.reader.get_many(keyspace.LEASES, keys)
        for at, value in enumerate(values):
            if value is None:
                job = int(np.flatnonzero(self._leased)[int((which == at).argmax())])
                raise Corrupt(
                    f"its lease {keys[at][4:].hex()} is missing", self._keys["id"][job].tobytes().hex(), key=keys[at]
                )
        rows = blocks.block([(key, value or b"") for key, value in zip(keys, values, strict=True)], KEY_BYTES, "leases")
        arrays.check(
            rows, layouts.LEASE.itemsize - 4, lambda at: _ignore(records.decode_lease(rows.value(at), keys[at][4:]))
        )
        return arrays.fields(rows.data, layouts.LEASE, "leases"), which

    def column_lease_until(self) -> pa.Array:
        if not self._leased.any():
            return pa.nulls(len(self._states), arrays.TIME)
        until = np.zeros(len(self._states), np.uint64)
        leases, which = self._leases
        until[self._leased] = leases["expires_at_ms"][which]
        return arrays.times(until, ~self._leased)

    def column_worker(self) -> pa.Array:
        if not self._leased.any():
            return pa.nulls(len(self._states), pa.string())
        leases, which = self._leases
        words: list[str | None] = [worker(raw) for raw in leases["worker"]]
        at = np.full(len(self._states), len(words), np.int64)
        at[self._leased] = which
        return arrays.texts([*words, None], at)

    # ── of the job ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _heads(self) -> Fields:
        return self._jobs.heads

    def column_created_at(self) -> pa.Array:
        return arrays.times(self._heads["created_at_ms"])

    def column_key(self) -> pa.Array:
        sizes = self._heads["key_bytes"].astype(np.int64)
        for at, group in self._groups.items():
            sizes[at] -= len(group) + 1  # the group and the zero byte before it
        return arrays.as_text(arrays.cut(self._jobs.data, self._jobs.starts, sizes, sizes == 0))

    @cached_property
    def _groups(self) -> dict[int, bytes]:
        """The group of each row that has one, by its place. Such rows have version 2."""
        if not _reads_jobs(self._query):
            return self._looked_up_groups()
        grouped = np.flatnonzero(self._heads["version"] == records.V2).tolist()
        return {at: self._jobs.group(at) for at in grouped}

    def _looked_up_groups(self) -> dict[int, bytes]:
        """The same, for queries that read no rows of `jobs`: only jobs that have a group are looked up, few at a time."""
        grouped = np.flatnonzero(self._flags & records.HAS_GROUP)
        found: dict[int, bytes] = {}
        for begin in range(0, len(grouped), _SPARSE_ROWS):
            places = grouped[begin : begin + _SPARSE_ROWS]
            rows = self._job_rows.few(self._keys[places].tobytes())
            found.update((place, rows.group(at)) for at, place in enumerate(places.tolist()))
        return found

    def column_group(self) -> pa.Array:
        found = self._groups
        if not found:
            return pa.nulls(len(self._states), pa.string())
        return pa.array([found[at].decode() if at in found else None for at in range(len(self._states))], pa.string())

    def column_headers(self) -> pa.Array:
        sizes = self._heads["headers_bytes"].astype(np.int64)
        offsets = np.zeros(len(sizes) + 1, np.int32)
        names: list[str] = []
        values: list[str] = []
        if not sizes.any():
            return pa.MapArray.from_arrays(
                pa.array(offsets), pa.array(names, pa.string()), pa.array(values, pa.string())
            )
        starts = self._jobs.starts + self._heads["key_bytes"].astype(np.int64)
        counts = np.zeros(len(sizes), np.int32)
        for at in np.flatnonzero(sizes).tolist():
            raw = self._jobs.data[starts[at] : starts[at] + sizes[at]]
            found = records.decode_headers(raw, self._jobs.key(at)[4:])
            names += found.keys()
            values += found.values()
            counts[at] = len(found)
        np.cumsum(counts, out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), pa.array(names, pa.string()), pa.array(values, pa.string()))

    def column_payload(self) -> pa.Array:
        heads, rows = self._heads, self._jobs
        before = heads["key_bytes"].astype(np.int64) + heads["headers_bytes"].astype(np.int64)
        sizes = rows.lengths - before
        whole = heads["payload_bytes"].astype(np.int64)
        split = heads["parts"] > 0
        wrong = (sizes < 0) | (~split & (sizes != whole))
        if wrong.any():
            at = int(wrong.argmax())
            raise Corrupt("its payload is not as long as it says", rows.key(at)[4:].hex(), key=rows.key(at))
        pieces = arrays.cut(rows.data, rows.starts + before, sizes)
        if not split.any():
            return pieces
        payloads = pieces.to_pylist()
        for at in np.flatnonzero(split).tolist():
            payloads[at] = self._joined(
                rows.key(at), payloads[at], 1, int(heads["parts"][at]), int(whole[at]), "payload"
            )
            self.bytes_seen += len(payloads[at])
        return pa.array(payloads, pa.binary())

    def _joined(self, key: bytes, first: bytes, part: int, count: int, total: int, what: str) -> bytes:
        queue, job = keyspace.split_of_queue(key)
        rows = self._moment.reader.scan(keyspace.PAYLOAD, *keyspace.payload_range(queue, job, part, count), count)
        if len(rows) != count:
            raise Corrupt(f"a part of its {what} is missing", job.hex(), key=key)
        return records.join_parts(first, [value for _, value in rows], total, job, what)

    # ── of the notes ─────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _noted_rows(self) -> arrays.Ints:
        """Which jobs have notes."""
        return np.flatnonzero(self._flags & records.HAS_NOTES)

    @cached_property
    def _notes(self) -> list[records.Notes]:
        """The notes of those jobs, decoded all at once."""
        at = self._noted_rows
        if not len(at):
            return []
        keys: bytes = self._keys[at].tobytes()
        if len(at) < _SPARSE * len(self._rows):
            found = blocks.block(_found(self._moment.reader, keyspace.NOTES, keys), KEY_BYTES, "notes")
        else:
            end = self._rows.keys[-KEY_BYTES:] + b"\0"
            walk = self._moment.reader.walk(keyspace.NOTES, self._begin, end)
            found = blocks.gather(walk, len(self._rows) + 1, KEY_BYTES, "notes", 2**62, blocks.STEP)
            if found.keys != keys:  # rows that are not wanted have notes, too
                found = found.chosen(np.isin(_voids(found.keys), _voids(keys)))
        if found.keys != keys:
            missing = min({*_split(keys)} - {*_split(found.keys)})
            raise Corrupt("its notes are missing", missing[4:].hex(), key=missing)
        self.bytes_seen += len(found.data)
        return _decoded_notes(found)

    def _noted(self, values: Sequence[object], kind: pa.DataType) -> pa.Array:
        """A column that has these values for the jobs with notes, in their order, and null for all others."""
        if not values:
            return pa.nulls(len(self._states), kind)
        made = pa.array(values, kind)
        if len(values) == len(self._states):
            return made
        place = np.full(len(self._states), -1)
        place[self._noted_rows] = np.arange(len(values))
        return made.take(pa.array(place, mask=place < 0))

    def column_error(self) -> pa.Array:
        return self._noted([notes.error for notes in self._notes], pa.string())

    def column_progress(self) -> pa.Array:
        return self._noted([notes.progress for notes in self._notes], pa.float64())

    def column_progress_note(self) -> pa.Array:
        return self._noted([notes.progress_note for notes in self._notes], pa.string())

    def column_result(self) -> pa.Array:
        results = [notes.result for notes in self._notes]
        for number, notes in enumerate(self._notes):
            if notes.result is not None and notes.result_bytes > len(notes.result):
                key = self._keys[int(self._noted_rows[number])].tobytes()
                parts = -(-(notes.result_bytes - len(notes.result)) // records.PART_BYTES)
                results[number] = self._joined(
                    key, notes.result, keyspace.RESULT_PARTS, parts, notes.result_bytes, "result"
                )
                self.bytes_seen += notes.result_bytes
        return self._noted(results, pa.binary())


#: Made while the module is imported, by one thread: see `records.structs`.
_decode_notes = msgspec.msgpack.Decoder(list[records.Notes]).decode


def _decoded_notes(rows: Block) -> list[records.Notes]:
    """All checksums at once, then all values as one MessagePack array."""

    def decode(at: int) -> None:
        _ignore(records.decode_struct(records.Notes, rows.value(at), "its notes", rows.key(at)[4:]))

    arrays.check(rows, 1, decode)
    starts, ends = (rows.starts + 1).tolist(), (rows.starts + rows.lengths - 4).tolist()
    bodies = [rows.data[start:end] for start, end in zip(starts, ends, strict=True)]
    try:
        return _decode_notes(b"".join((b"\xdd", len(rows).to_bytes(4, "big"), *bodies)))
    except msgspec.DecodeError:
        for at in range(len(rows)):
            decode(at)  # raises what is wrong, and of which job
        raise


def worker(raw: arrays.Bytes) -> str | None:
    return raw.tobytes().rstrip(b"\0").decode("utf-8", "replace") or None


def _ignore(_: object) -> None:
    """Discard a decoded value: the decoder was called for the error that it raises."""
