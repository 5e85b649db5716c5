"""The rows of `state` and `jobs` as columns.

Stored rows are joined, checked and viewed as arrays. Jobs of a segment do not become rows: the fields they share are
repeated, and their ids and payloads are copied from many segments at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeGuard, TypeVar

import numpy as np

from tenure.bulk import arrays, blocks, layouts
from tenure.bulk.arrays import Array, Bools, Fields, Ints
from tenure.errors import Corrupt
from tenure.storage import records
from tenure.storage.engine import Row, Run, Walk
from tenure.storage.segments import SegmentRows

KEY_BYTES = layouts.OF_QUEUE.itemsize
#: Jobs that are taken from segments in one step (some twenty segments). A step of stored rows is `blocks.STEP`.
_STEP = 2048
_NO_SUM = bytes(4)
T = TypeVar("T")


class StateColumns:
    """Rows of `state`: their keys, joined, and their fields.

    Neighbours that differ in their last event alone, as jobs of a segment do, share a record of `heads`.
    """

    def __init__(
        self,
        keys: bytes,
        heads: Fields,
        last_events: Ints,
        counts: Ints | None = None,
        runs: Sequence[SegmentRows] = (),
    ) -> None:
        """`counts` says how many rows share each head; None: each row has its own. `runs` are the segments they are of.

        The heads of rows that share one have no last event and no checksum: both are 0.
        """
        self.keys, self.heads, self.last_events, self._counts, self._runs = keys, heads, last_events, counts, runs

    def __len__(self) -> int:
        return len(self.last_events)

    def key(self, at: int) -> bytes:
        return self.keys[at * KEY_BYTES : (at + 1) * KEY_BYTES]

    def each(self, values: Array) -> Array:
        """A value of each head, for each of the rows that share it."""
        return values if self._counts is None else values.repeat(self._counts, axis=0)

    def counts(self) -> Ints:
        return np.ones(len(self.heads), np.int64) if self._counts is None else self._counts

    def part(self, begin: int, end: int) -> StateColumns:
        if begin == 0 and end == len(self):
            return self
        keys = self.keys[begin * KEY_BYTES : end * KEY_BYTES]
        return StateColumns(keys, self.each(self.heads)[begin:end], self.last_events[begin:end])

    def chosen(self, keep: Bools) -> StateColumns:
        """The rows that `keep` marks."""
        keys = np.frombuffer(self.keys, f"V{KEY_BYTES}")[keep].tobytes()
        return StateColumns(keys, self.each(self.heads)[keep], self.last_events[keep])

    def keys_of(self, runs: Sequence[SegmentRows]) -> bytes | None:
        """The joined keys of the jobs in `runs`, if these rows begin with the same runs; else None."""
        if len(runs) > len(self._runs):
            return None
        for mine, other in zip(self._runs, runs, strict=False):
            if mine.segment is not other.segment or mine.places != other.places:
                return None
        return self.keys[: KEY_BYTES * sum(map(len, runs))]


class JobColumns:
    """Rows of `jobs`: their keys, joined, their heads, and where the rest of each lies in `data`.

    The rest is the idempotency key, the headers and the payload, one after another. Jobs of a segment that were read
    without their payloads have none there (`jobs`).
    """

    def __init__(self, keys: bytes, heads: Fields, data: bytes, starts: Ints, lengths: Ints) -> None:
        self.keys, self.heads, self.data, self.starts, self.lengths = keys, heads, data, starts, lengths

    def __len__(self) -> int:
        return len(self.heads)

    def key(self, at: int) -> bytes:
        return self.keys[at * KEY_BYTES : (at + 1) * KEY_BYTES]

    def group(self, at: int) -> bytes:
        """The name of the group of a job whose head has version 2. Raises Corrupt if it has none."""
        start = int(self.starts[at])
        group = records.named_group(self.data[start : start + int(self.heads["key_bytes"][at])])
        if not group:
            raise Corrupt("its group is missing", self.key(at)[4:].hex(), key=self.key(at))
        return group

    def part(self, begin: int, end: int) -> JobColumns:
        """The rows from one place to another; `data` stays as it is."""
        keys = self.keys[begin * KEY_BYTES : end * KEY_BYTES]
        return JobColumns(keys, self.heads[begin:end], self.data, self.starts[begin:end], self.lengths[begin:end])

    def chosen(self, keep: Bools) -> JobColumns:
        """The rows that `keep` marks; `data` stays as it is."""
        keys = np.frombuffer(self.keys, f"V{KEY_BYTES}")[keep].tobytes()
        return JobColumns(keys, self.heads[keep], self.data, self.starts[keep], self.lengths[keep])


# ── from a walk ──────────────────────────────────────────────────────────────────────────────────────────────────────


def states(walk: Walk, limit: int) -> StateColumns:
    """The next rows of `state`; fewer than `limit` only at the walk's end. Raises Corrupt for a damaged row."""
    pieces = _gathered(walk, limit, 2**62, _stored_states, _segment_states, _no_bytes, _no_bytes)
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return StateColumns(b"", np.zeros(0, layouts.STATE), np.zeros(0, np.int64))
    return StateColumns(
        b"".join([piece.keys for piece in pieces]),
        np.concatenate([piece.heads for piece in pieces]),
        np.concatenate([piece.last_events for piece in pieces]),
        np.concatenate([piece.counts() for piece in pieces]),
    )


def jobs(walk: Walk, limit: int, most_bytes: int, known: StateColumns, *, payloads: bool = True) -> JobColumns:
    """The next rows of `jobs`; fewer than `limit` only at the walk's end, or where they are more than `most_bytes`.

    `known` are the states that should go with them, whose keys are not made a second time. Without `payloads`, those of
    segments are neither copied nor counted.
    """
    of_segments = partial(_segment_jobs, known=known, payloads=payloads)
    weigh = _payload_bytes if payloads else _no_bytes
    return _joined(_gathered(walk, limit, most_bytes, _stored_jobs, of_segments, lambda piece: len(piece.data), weigh))


def _no_bytes(_: object) -> int:
    return 0


def _payload_bytes(run: SegmentRows) -> int:
    return sum([body.payload_bytes(first, end) for first, end, body in _bodies([run])])


def jobs_of(rows: Sequence[Row]) -> JobColumns:
    """Rows of `jobs` that were looked up one by one. Raises Corrupt for a damaged row."""
    return _stored_jobs(rows) if rows else _joined([])


def _gathered(
    walk: Walk,
    limit: int,
    most_bytes: int,
    of_rows: Callable[[Sequence[Row]], T],
    of_segments: Callable[[Sequence[SegmentRows]], T],
    size_of: Callable[[T], int],
    size_of_run: Callable[[SegmentRows], int],
) -> list[T]:
    """The next rows, as pieces of stored rows and of neighbouring segments.

    It stops once they weigh `most_bytes`, by `size_of` a piece of stored rows and `size_of_run` rows of a segment.
    """
    pieces: list[T] = []
    size, step = 0, blocks.STEP
    segments: list[SegmentRows] = []
    while limit > 0 and size < most_bytes:
        wanted = min(limit, step)
        runs = walk.runs(wanted)
        step = blocks.STEP
        for run in runs:
            if _is_column(run):
                segments.append(run)
                size += size_of_run(run)
                step = _STEP
                continue
            if segments:
                pieces.append(of_segments(segments))
                segments = []
            pieces.append(of_rows(run if isinstance(run, list) else run.rows()))
            size += size_of(pieces[-1])
        if sum(map(len, runs)) < wanted:
            break
        limit -= wanted
    if segments:
        pieces.append(of_segments(segments))
    return pieces


def _is_column(run: Run) -> TypeGuard[SegmentRows]:
    """Whether a run can be decoded as columns: neighbouring jobs of a stored, undamaged segment. Other runs become rows."""
    if isinstance(run, list):
        return False
    body = run.segment.body
    return isinstance(run.places, range) and isinstance(body, records.Segment) and body.whole


# ── stored rows ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _stored_states(rows: Sequence[Row]) -> StateColumns:
    block = blocks.block(rows, KEY_BYTES, "state")

    def damage(at: int) -> None:
        records.decode_state(block.value(at), block.key(at)[4:])

    arrays.check(block, layouts.STATE.itemsize - 4, damage)
    if block.lengths.max() != layouts.STATE.itemsize:
        damage(int((block.lengths != layouts.STATE.itemsize).argmax()))
    heads = arrays.heads(block, layouts.STATE)
    return StateColumns(block.keys, heads, heads["last_event"].astype(np.int64))


def _stored_jobs(rows: Sequence[Row]) -> JobColumns:
    block = blocks.block(rows, KEY_BYTES, "jobs")

    def damage(at: int) -> None:
        records.decode_job(block.value(at), block.key(at)[4:])

    arrays.check(block, layouts.JOB.itemsize, damage, records.V2)
    around = layouts.JOB.itemsize + len(_NO_SUM)
    starts = block.starts + layouts.JOB.itemsize
    return JobColumns(block.keys, arrays.heads(block, layouts.JOB), block.data, starts, block.lengths - around)


def _joined(pieces: Sequence[JobColumns]) -> JobColumns:
    if not pieces:
        none = np.zeros(0, np.int64)
        return JobColumns(b"", np.zeros(0, layouts.JOB), b"", none, none)
    if len(pieces) == 1:
        return pieces[0]
    before = np.cumsum([0, *[len(piece.data) for piece in pieces[:-1]]])
    return JobColumns(
        b"".join([piece.keys for piece in pieces]),
        np.concatenate([piece.heads for piece in pieces]),
        b"".join([piece.data for piece in pieces]),
        np.concatenate([piece.starts + at for piece, at in zip(pieces, before.tolist(), strict=True)]),
        np.concatenate([piece.lengths for piece in pieces]),
    )


# ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _bodies(runs: Sequence[SegmentRows]) -> list[tuple[int, int, records.Segment]]:
    """The (first place, end, segment) of each run."""
    return [(run.places[0], run.places[-1] + 1, run.segment.body) for run in runs]  # type: ignore[misc]  # stored ones (`_is_column`)


def _keys(runs: Sequence[SegmentRows], counts: Ints) -> bytes:
    prefixes = np.frombuffer(b"".join([run.segment.prefix for run in runs]), np.uint8).reshape(-1, 4)
    ids = b"".join([body.packed_ids(first, end) for first, end, body in _bodies(runs)])
    keys = np.empty((int(counts.sum()), KEY_BYTES), np.uint8)
    keys[:, :4] = prefixes.repeat(counts, axis=0)
    keys[:, 4:] = np.frombuffer(ids, np.uint8).reshape(-1, 16)
    return keys.tobytes()


def _segment_states(runs: Sequence[SegmentRows]) -> StateColumns:
    """The states of a segment's jobs: they share the segment's state, and their last events are consecutive."""
    counts = np.array([len(run) for run in runs])
    heads = b"".join([records.segment_state_row(run.segment.state) + _NO_SUM for run in runs])
    firsts = np.array([run.segment.state.last_event + run.places[0] for run in runs], np.int64)
    events = firsts.repeat(counts) + _index_in_each(counts)
    return StateColumns(_keys(runs, counts), np.frombuffer(heads, layouts.STATE), events, counts, runs)


def _segment_jobs(runs: Sequence[SegmentRows], known: StateColumns, *, payloads: bool) -> JobColumns:
    counts = np.array([len(run) for run in runs])
    bodies = _bodies(runs)
    named = [records.key_and_group(b"", body.group) for _, _, body in bodies]
    sizes, rests = list[bytes](), list[bytes | memoryview]()
    for (first, end, body), group in zip(bodies, named, strict=True):
        sizes.append(body.packed_sizes(first, end))
        if not payloads:
            rests.append(group * (end - first))
        else:
            rests.append(group + group.join(body.payloads(first, end)) if group else body.packed_payloads(first, end))
    payload_bytes = np.frombuffer(b"".join(sizes), ">u4").astype(np.int64)
    group_bytes = np.array(list(map(len, named)), np.int64).repeat(counts)
    lengths = payload_bytes + group_bytes if payloads else group_bytes
    heads = np.zeros(len(lengths), layouts.JOB)
    heads["version"] = np.where(group_bytes, records.V2, records.V1)
    heads["created_at_ms"] = np.array([body.created_at_ms for _, _, body in bodies], np.int64).repeat(counts)
    heads["key_bytes"] = group_bytes
    heads["payload_bytes"] = payload_bytes
    keys = known.keys_of(runs) or _keys(runs, counts)
    return JobColumns(keys, heads, b"".join(rests), np.cumsum(lengths) - lengths, lengths)


def _index_in_each(counts: Ints) -> Ints:
    """0, 1, 2, … counted from 0 again in each group; `counts` are the sizes of the groups."""
    return np.arange(int(counts.sum())) - (np.cumsum(counts) - counts).repeat(counts)
