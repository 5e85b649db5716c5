"""A moment, held, in which some rows stand for jobs of a segment."""

from __future__ import annotations

from bisect import bisect_right
from types import TracebackType

from leasehold.errors import Corrupt
from leasehold.storage.engine import Extent, Row, Snapshot, Space, Steps, Walk
from leasehold.storage.keyspace import JOBS, LAST, READY, SEGMENT_STATE, SEGMENTS, STATE
from leasehold.storage.segmented.reader import MADE, Kept, SegmentedReader


class SegmentedSnapshot(SegmentedReader):
    """`storage.engine.Snapshot` on another one."""

    inner: Snapshot

    def walk(self, space: Space, begin: bytes, end: bytes) -> Walk:
        if not self.there or space not in MADE or begin >= end:
            return self.inner.walk(space, begin, end)
        if space == READY:
            return Steps(self, space, begin, end)
        return _Merged(self, self.inner.walk(space, begin, end), space, begin, end)

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        """Segments that cannot be read are passed over: they are not rows, and looked for as what they are (`segments`)."""
        rows, damage = self.inner.salvage(space, begin, limit)
        if not self.there or space not in MADE:
            return rows, damage
        made: list[Row] = []
        for kept in self.marked(begin, LAST, limit) if space == READY else self._lying(begin, LAST, limit, False):
            if isinstance(kept, bytes):
                made.append((kept, b""))
            elif isinstance(kept, Kept):
                made += kept.rows(space, begin, LAST)
            if len(made) >= limit:
                break
        if not made:
            return rows, damage
        merged = sorted(rows + made)
        stop = sorted([*(key for key, _ in merged), *(found.key or b"" for found in damage)])[:limit][-1]
        return [row for row in merged if row[0] <= stop], [found for found in damage if (found.key or b"") <= stop]

    def segments(self, begin: bytes, limit: int) -> list[tuple[bytes, Kept | Corrupt]]:
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
        for kept in self._lying(extent.first, LAST, 1, False):
            if isinstance(kept, Kept):
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


class _Merged:
    """Stored rows and made ones, in one order."""

    def __init__(self, reader: SegmentedReader, stored: Walk, space: Space, begin: bytes, end: bytes) -> None:
        self._stored, self._space, self._begin, self._end = stored, space, begin, end
        self._segments = reader._lying(begin, end, 1 << 20, False)
        #: Taken from either side, and not yet given; and whether there is more to take.
        self._rows: list[Row] = []
        self._made: list[Row] = []
        self._more_rows = self._more_made = True

    def take(self, limit: int) -> list[Row]:
        while self._more_made and len(self._made) < limit:
            kept = next(self._segments, None)
            if kept is None:
                self._more_made = False
            elif isinstance(kept, Corrupt):
                raise kept
            else:
                self._made += kept.rows(self._space, self._begin, self._end)
        if self._more_rows and len(self._rows) < limit:
            wanted = limit - len(self._rows)
            taken = self._stored.take(wanted)
            self._more_rows = len(taken) == wanted
            self._rows = self._rows + taken if self._rows else taken
        if not self._made:
            given, self._rows = self._rows[:limit], self._rows[limit:]
            return given
        if not self._rows:
            given, self._made = self._made[:limit], self._made[limit:]
            return given
        given = sorted(self._rows[:limit] + self._made[:limit])[:limit]
        last = given[-1][0] if given else b""
        self._rows = self._rows[bisect_right(self._rows, last, key=_key) :]
        self._made = self._made[bisect_right(self._made, last, key=_key) :]
        return given


def _key(row: Row) -> bytes:
    return row[0]
