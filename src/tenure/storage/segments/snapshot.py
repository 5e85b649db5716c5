"""A moment, held, in which some rows stand for jobs of a segment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from tenure.errors import Corrupt
from tenure.storage.engine import Extent, Row, Run, Snapshot, Space, Steps, Walk
from tenure.storage.keyspace import JOBS, LAST, SEGMENT_SPACES, SEGMENT_STATE, SEGMENTS, STATE
from tenure.storage.segments.reader import MADE, SegmentedReader
from tenure.storage.segments.stored import MARKS, SegmentRows, StoredSegment


class SegmentedSnapshot(SegmentedReader, Snapshot):
    """`storage.engine.Snapshot` on another one."""

    inner: Snapshot
    segment_spaces = SEGMENT_SPACES

    def walk(self, space: Space, begin: bytes, end: bytes) -> Walk:
        if not self.there or space not in MADE or begin >= end:
            return self.inner.walk(space, begin, end)
        if space in MARKS:
            return Steps(self, space, begin, end)
        return SegmentedWalk(self, self.inner.walk(space, begin, end), space, begin, end)

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        """Segments that cannot be read are passed over: they are not rows, and looked for as what they are
        (`segments`).
        """
        rows, damage = self.inner.salvage(space, begin, limit)
        if not self.there or space not in MADE:
            return rows, damage
        made: list[Row] = []
        marked = space in MARKS
        for kept in self.marked(space, begin, LAST, limit) if marked else self.lying(begin, LAST, limit, False):
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

    def close(self) -> None:
        self.inner.close()


class SegmentedWalk(Walk):
    """Stored rows and those that a segment stands for, in one order."""

    def __init__(self, reader: SegmentedReader, stored: Walk, space: Space, begin: bytes, end: bytes) -> None:
        self._stored, self._space, self._begin, self._end = stored, space, begin, end
        self._segments: Iterator[StoredSegment | Corrupt] | None = reader.lying(begin, end, 1 << 20, False)
        #: Stored rows that were read and not yet returned, and whether there are more.
        self._rows: list[Row] = []
        self._more = True
        #: The rows of the next segment that were not yet returned.
        self._next: SegmentRows | None = None

    def take(self, limit: int) -> list[Row]:
        rows: list[Row] = []
        for run in self.runs(limit):
            rows += run if isinstance(run, list) else run.rows()
        return rows

    def runs(self, limit: int) -> list[Run]:
        runs: list[Run] = []
        while limit > 0:
            if self._next is None and self._segments is not None:
                self._find_next()
            if not self._rows and self._more:
                self._rows = self._stored.take(limit)
                self._more = len(self._rows) == limit
            run = self._run(limit)
            if not run:
                break
            runs.append(run)
            limit -= len(run)
        return runs

    def _find_next(self) -> None:
        """Make `_next` the first rows of the next segment that has any in the range."""
        assert self._segments is not None
        for segment in self._segments:
            if isinstance(segment, Corrupt):
                raise segment
            places = segment.between(self._begin, self._end)
            if places:
                self._next = SegmentRows(segment, self._space, places)
                return
        self._segments = None

    def _run(self, limit: int) -> Run:
        """The next rows, all stored or all of one segment; empty at the end."""
        if self._next is None:
            rows, self._rows = self._rows[:limit], self._rows[limit:]
            return rows
        segment, places = self._next.segment, self._next.places
        if self._rows:
            before = bisect_left(self._rows, self._next.key(0), key=_key)
            if before:
                rows, self._rows = self._rows[: min(limit, before)], self._rows[min(limit, before) :]
                return rows
            limit = min(limit, len(segment.between(b"", self._rows[0][0], places)))
        left = places[limit:]
        self._next = SegmentRows(segment, self._space, left) if left else None
        return SegmentRows(segment, self._space, places[:limit])


def _key(row: Row) -> bytes:
    return row[0]
