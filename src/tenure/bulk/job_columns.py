"""The rows of `state` and `jobs` as columns.

Stored rows are joined, checked and viewed as arrays. Jobs of a segment are never made into rows: what they share is
repeated, and their ids and payloads are taken from the segment as they lie there, many segments at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from tenure.bulk import arrays, blocks, layouts
from tenure.bulk.arrays import Bools, Fields, Ints
from tenure.storage import records
from tenure.storage.engine import Row, Run, Walk
from tenure.storage.segments import SegmentRows

KEY_BYTES = layouts.OF_QUEUE.itemsize
#: Jobs of segments that are taken at once: some twenty segments. Of stored rows it is fewer (`blocks.STEP`).
_STEP = 2048
_NO_SUM = bytes(4)
T = TypeVar("T")


class StateColumns:
    """Rows of `state`: their keys, joined, and their fields. The checksums of a segment's jobs are 0."""

    def __init__(self, keys: bytes, fields: Fields) -> None:
        self.keys, self.fields = keys, fields

    def __len__(self) -> int:
        return len(self.fields)

    def key(self, at: int) -> bytes:
        return self.keys[at * KEY_BYTES : (at + 1) * KEY_BYTES]

    def part(self, begin: int, end: int) -> StateColumns:
        return StateColumns(self.keys[begin * KEY_BYTES : end * KEY_BYTES], self.fields[begin:end])


class JobColumns:
    """Rows of `jobs`: their keys, joined, their heads, and where the rest of each lies in `data`.

    The rest is the idempotency key, the headers and the payload, one after another.
    """

    def __init__(self, keys: bytes, heads: Fields, data: bytes, starts: Ints, lengths: Ints) -> None:
        self.keys, self.heads, self.data, self.starts, self.lengths = keys, heads, data, starts, lengths

    def __len__(self) -> int:
        return len(self.heads)

    def key(self, at: int) -> bytes:
        return self.keys[at * KEY_BYTES : (at + 1) * KEY_BYTES]

    def stored(self, at: int) -> bytes:
        """The whole value of a job that is stored as a row."""
        before = self.starts[at] - layouts.JOB.itemsize
        return self.data[before : self.starts[at] + self.lengths[at] + len(_NO_SUM)]

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
    pieces = _gathered(walk, limit, 2**62, _stored_states, _segment_states, lambda piece: 0)
    if len(pieces) == 1:
        return pieces[0]
    return StateColumns(
        b"".join([piece.keys for piece in pieces]),
        np.concatenate([piece.fields for piece in pieces]) if pieces else np.zeros(0, layouts.STATE),
    )


def jobs(walk: Walk, limit: int, most_bytes: int) -> JobColumns:
    """The next rows of `jobs`; fewer than `limit` only at the walk's end, or where they are more than `most_bytes`."""
    return _joined(_gathered(walk, limit, most_bytes, _stored_jobs, _segment_jobs, lambda piece: len(piece.data)))


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
) -> list[T]:
    pieces: list[T] = []
    size, step = 0, blocks.STEP
    while limit > 0 and size < most_bytes:
        wanted = min(limit, step)
        runs = walk.runs(wanted)
        step = blocks.STEP
        whole: list[SegmentRows] = []
        for run in [*runs, None]:
            if run is not None and _is_column(run):
                whole.append(run)  # type: ignore[arg-type]  # a list of rows is none
                continue
            if whole:
                pieces.append(of_segments(whole))
                size += size_of(pieces[-1])
                whole = []
                step = _STEP
            if run is not None:
                pieces.append(of_rows(run if isinstance(run, list) else run.rows()))
                size += size_of(pieces[-1])
        if sum(map(len, runs)) < wanted:
            break
        limit -= wanted
    return pieces


def _is_column(run: Run) -> bool:
    """Whether it is neighbouring jobs of a segment that is stored and sound; others become rows, and are checked."""
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
    return StateColumns(block.keys, arrays.heads(block, layouts.STATE))


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


class _Together:
    """Jobs of several segments: what is the same for both spaces."""

    def __init__(self, runs: Sequence[SegmentRows]) -> None:
        self.runs = runs
        self.counts = np.array([len(run.places) for run in runs])
        prefixes = np.frombuffer(b"".join([run.segment.prefix for run in runs]), np.uint8).reshape(-1, 4)
        ids = b"".join([body.packed_ids(run.places[0], run.places[-1] + 1) for run, body in self.bodies()])
        keys = np.empty((int(self.counts.sum()), KEY_BYTES), np.uint8)
        keys[:, :4] = prefixes.repeat(self.counts, axis=0)
        keys[:, 4:] = np.frombuffer(ids, np.uint8).reshape(-1, 16)
        self.keys = keys.tobytes()

    def bodies(self) -> list[tuple[SegmentRows, records.Segment]]:
        return [(run, run.segment.body) for run in self.runs]  # type: ignore[misc]  # stored ones (`_is_column`)

    def each(self, values: Sequence[int]) -> Ints:
        """A value of each segment for each of its jobs."""
        return np.array(values, np.int64).repeat(self.counts)


def _segment_states(runs: Sequence[SegmentRows]) -> StateColumns:
    """What a segment's state says, for each job; last events stand side by side."""
    together = _Together(runs)
    heads = b"".join([records.segment_state_row(run.segment.state) + _NO_SUM for run in runs])
    fields = np.frombuffer(heads, layouts.STATE).repeat(together.counts)
    firsts = together.each([run.segment.state.last_event + run.places[0] for run in runs])
    fields["last_event"] = firsts + _index_in_each(together.counts)
    return StateColumns(together.keys, fields)


def _segment_jobs(runs: Sequence[SegmentRows]) -> JobColumns:
    together = _Together(runs)
    sizes, rests = [], []
    named = [records.key_and_group(b"", run.segment.body.group) for run in runs]
    for (run, body), group in zip(together.bodies(), named, strict=True):
        first, end = run.places[0], run.places[-1] + 1
        sizes.append(body.packed_sizes(first, end))
        rests.append(group + group.join(body.payloads(first, end)) if group else body.packed_payloads(first, end))
    payload_bytes = np.frombuffer(b"".join(sizes), ">u4").astype(np.int64)
    group_bytes = together.each(list(map(len, named)))
    lengths = payload_bytes + group_bytes
    heads = np.zeros(len(lengths), layouts.JOB)
    heads["version"] = np.where(group_bytes, records.V2, records.V1)
    heads["created_at_ms"] = together.each([run.segment.body.created_at_ms for run in runs])
    heads["key_bytes"] = group_bytes
    heads["payload_bytes"] = payload_bytes
    return JobColumns(together.keys, heads, b"".join(rests), np.cumsum(lengths) - lengths, lengths)


def _index_in_each(counts: Ints) -> Ints:
    """0, 1, 2, … anew for each group of so many."""
    return np.arange(int(counts.sum())) - (np.cumsum(counts) - counts).repeat(counts)
