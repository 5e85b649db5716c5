"""A moment, held, in which some rows stand for jobs of a segment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from types import TracebackType

from tenure.errors import Corrupt
from tenure.storage.engine import Extent, Row, Snapshot, Space, Steps, Walk
from tenure.storage.keyspace import JOBS, LAST, READY, SEGMENT_STATE, SEGMENTS, STATE
from tenure.storage.segments.reader import MADE, SegmentedReader
from tenure.storage.segments.stored import StoredSegment


class SegmentedSnapshot(SegmentedReader):
    """`storage.engine.Snapshot` on another one."""

    inner: Snapshot

    def walk(self, space: Space, begin: bytes, end: bytes) -> Walk:
        if not self.there or space not in MADE or begin >= end:
            return self.inner.walk(space, begin, end)
        if space == READY:
            return Steps(self, space, begin, end)
        return SegmentedWalk(self, self.inner.walk(space, begin, end), space, begin, end)

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        """Segments that cannot be read are passed over: they are not rows, and looked for as what they are (`segments`)."""
        rows, damage = self.inner.salvage(space, begin, limit)
        if not self.there or space not in MADE:
            return rows, damage
        made: list[Row] = []
        for kept in self.marked(begin, LAST, limit) if space == READY else self.lying(begin, LAST, limit, False):
            if isinstance(kept, bytes):
                made.append((kept, b""))
            elif isinstance(kept, StoredSegment):
                made += kept.rows(space, begin, LAST)
            if len(made) >= limit:
                break
        if not made:
            return rows, damage
        merged = sorted(rows + made)
        stop = sorted([*(key for key, _ in merged), *(found.key or b"" for found in damage)])[:limit][-1]
        return [row for row in merged if row[0] <= stop], [found for found in damage if (found.key or b"") <= stop]

    def segments(self, begin: bytes, limit: int) -> list[tuple[bytes, StoredSegment | Corrupt]]:
        """The next segments from a key on, as such, or what is wrong with them."""
        return [
            (key, self._read_or_damage(key, raw)) for key, raw in self.inner.scan(SEGMENT_STATE, begin, LAST, limit)
        ]

    def extents(self, space: Space) -> list[Extent]:
        extents = self.inner.extents(space)
        if not self.there or space not in (JOBS, STATE):
            return extents
        return extents + [self._widened(extent) for extent in self.inner.extents(SEGMENTS)]

    def _widened(self, extent: Extent) -> Extent:
        """As many jobs for each segment as its first one has."""
        for kept in self.lying(extent.first, LAST, 1, False):
            if isinstance(kept, StoredSegment):
                return Extent(kept.prefix + kept.state.first_job, extent.last, extent.rows * kept.count)
        return extent

    def entries(self, space: Space) -> int | None:
        return None if space in MADE and self.there else self.inner.entries(space)

    def __enter__(self) -> SegmentedSnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.inner.close()


Piece = list[Row] | tuple[StoredSegment, Sequence[int]]
"""Rows as they are stored, or the places of a segment that stand for some."""


class SegmentedWalk:
    """Stored rows and those that a segment stands for, in one order."""

    def __init__(self, reader: SegmentedReader, stored: Walk, space: Space, begin: bytes, end: bytes) -> None:
        self._stored, self.space, self._begin, self._end = stored, space, begin, end
        self._segments: Iterator[StoredSegment | Corrupt] | None = reader.lying(begin, end, 1 << 20, False)
        #: Stored rows that were taken and not yet given, and whether there are more.
        self._rows: list[Row] = []
        self._more = True
        #: The next segment, and which of its places are not yet given.
        self._next: tuple[StoredSegment, Sequence[int]] | None = None

    def take(self, limit: int) -> list[Row]:
        rows: list[Row] = []
        for piece in self.pieces(limit):
            rows += piece if isinstance(piece, list) else piece[0].rows_at(self.space, piece[1])
        return rows

    def pieces(self, limit: int) -> list[Piece]:
        """As `take`, for who can do something with a segment as such."""
        given: list[Piece] = []
        while limit > 0:
            if self._next is None and self._segments is not None:
                self._look_on()
            if not self._rows and self._more:
                self._rows = self._stored.take(limit)
                self._more = len(self._rows) == limit
            piece = self._piece(limit)
            if not piece:
                break
            given.append(piece)
            limit -= len(piece) if isinstance(piece, list) else len(piece[1])
        return given

    def _look_on(self) -> None:
        assert self._segments is not None
        for kept in self._segments:
            if isinstance(kept, Corrupt):
                raise kept
            places = kept.between(self._begin, self._end)
            if places:
                self._next = kept, places
                return
        self._segments = None

    def _piece(self, limit: int) -> Piece | None:
        """What comes next, of one kind; nothing at the end."""
        if self._next is None:
            rows, self._rows = self._rows[:limit], self._rows[limit:]
            return rows
        kept, places = self._next
        if self._rows:
            before = bisect_left(self._rows, kept.prefix + kept.body.job(places[0]), key=_key)
            if before:
                rows, self._rows = self._rows[: min(limit, before)], self._rows[min(limit, before) :]
                return rows
            limit = min(limit, len(kept.between(b"", self._rows[0][0], places)))
        taken, left = places[:limit], places[limit:]
        self._next = (kept, left) if left else None
        return kept, taken


def _key(row: Row) -> bytes:
    return row[0]
