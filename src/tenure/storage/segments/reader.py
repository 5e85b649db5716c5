"""Rows of `jobs`, `state`, `ready` and `group_ready`, whether they are stored or stand for a job of a segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.storage.engine import Reader, Row, Space
from tenure.storage.keyspace import FRONTS, JOBS, LAST, READY, SEGMENT_READY, SEGMENT_STATE, SEGMENTS, STATE, digest
from tenure.storage.records import (
    NewSegment,
    Segment,
    SegmentStateRecord,
    decode_segment_mark,
    decode_segment_state,
    encode_segment_mark,
)
from tenure.storage.segments.stored import MARKS, StoredSegment

#: Spaces whose rows may stand for a job of a segment.
MADE = frozenset({JOBS, STATE, *MARKS})
WAITING = int(State.WAITING)
#: Segments read ahead by a scan.
_AHEAD = 16
#: So few rows are looked for as such before it is asked whether they are made of a segment.
_FEW = 7
#: Segments a reader remembers: one that reads states and payloads side by side may be a few thousand jobs ahead in one
#: of them.
_REMEMBERED = 256
#: Of each generation of `RecentSegments`: how many names (two for each that was enqueued, one for each that was leased),
#: and how many bytes of ids and payloads.
_RECENT_NAMES, _RECENT_BYTES = 4_096, 8 << 20


class RecentSegments:
    """The newest segments as they are stored now, in memory: most are claimed and settled soon after they were made.

    Each is found by its own key (queue and last job), by queue and first job, and, while it waits, by its mark in
    `segment_ready`. Two generations: when the younger is full, the older is dropped. Requires: the writer's lock is held.
    """

    def __init__(self) -> None:
        self._young: dict[bytes, StoredSegment] = {}
        self._old: dict[bytes, StoredSegment] = {}
        #: By first job, and by mark: the segment's key.
        self._young_names: dict[bytes, bytes] = {}
        self._old_names: dict[bytes, bytes] = {}
        self._bytes = 0

    def get(self, key: bytes) -> StoredSegment | None:
        """The segment of this key."""
        return self._young.get(key) or self._old.get(key)

    def find(self, name: bytes) -> StoredSegment | None:
        """The segment whose first job, or whose mark, this is."""
        key = self._young_names.get(name) or self._old_names.get(name)
        found = None if key is None else self._young.get(key) or self._old.get(key)
        if found is None or name[-16:] != found.state.first_job:
            return None  # it has changed since
        return found if len(name) == len(found.key) or found.state.state == WAITING else None

    def put(self, segment: StoredSegment) -> None:
        key, state = segment.key, segment.state
        if key in self._young or key in self._old:
            self.delete((key,))
        self._bytes += segment.body.size_bytes
        if len(self._young_names) > _RECENT_NAMES or self._bytes > _RECENT_BYTES:
            self._old, self._old_names = self._young, self._young_names
            self._young, self._young_names, self._bytes = {}, {}, segment.body.size_bytes
        # By name only the key: a segment that is deleted is freed at once.
        names = self._young_names
        names[segment.prefix + state.first_job] = key
        if state.state == WAITING:
            names[segment.mark(READY)] = key
        self._young[key] = segment

    def delete(self, keys: Iterable[bytes]) -> None:
        young, old = self._young, self._old
        for key in keys:
            gone = young.pop(key, None)
            if gone is not None:
                self._bytes -= gone.body.size_bytes
            elif old:
                old.pop(key, None)

    def clear(self) -> None:
        self._young, self._old, self._young_names, self._old_names = {}, {}, {}, {}
        self._bytes = 0


class SegmentedReader:
    """`storage.engine.Reader` on another one. Segments are consulted only when the inner reader misses."""

    #: The last segment that was asked for: its jobs are mostly asked for together.
    _last: StoredSegment | None = None

    def __init__(
        self,
        inner: Reader,
        there: bool,
        recent: RecentSegments | None = None,
        stored: set[bytes] | None = None,
    ) -> None:
        """`stored` collects the keys that were found as rows: their jobs are in no segment."""
        self.inner = inner
        #: Whether there may be segments at all: without, nothing is looked for.
        self.there = there
        self._recent = recent
        self._known: dict[bytes, StoredSegment] = {}
        self._fetched: dict[bytes, bytes | None] = {}
        self._alone = stored

    # ── the seam ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, space: Space, key: bytes) -> bytes | None:
        value = self.inner.get(space, key)
        if self.there and space in MADE:
            if value is None:
                return self._made(space, key)
            if self._alone is not None:
                self._alone.add(key)
        return value

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        if not self.there or space not in MADE or not keys:
            return self.inner.get_many(space, keys)
        left: Sequence[int] = range(len(keys))
        if len(keys) <= _FEW:
            values = self.inner.get_many(space, keys)
        else:
            values = [None] * len(keys)
            left = self._fill(space, keys, values, left)
            for index, value in zip(left, self.inner.get_many(space, [keys[at] for at in left]), strict=True):
                values[index] = value
        missing = [index for index in left if values[index] is None]
        if self._alone is not None:
            self._alone.update([keys[index] for index in left if values[index] is not None])
        while missing:
            rest = self._fill(space, keys, values, missing)
            missing = rest[1:] if len(rest) == len(missing) else rest
        return values

    def _fill(
        self, space: Space, keys: Sequence[bytes], values: list[bytes | None], wanted: Sequence[int]
    ) -> list[int]:
        """Take the values of those keys that are in one segment with the first of them; returns the others' places."""
        first = keys[wanted[0]]
        found = self.holding(first if space not in MARKS else first[:4] + first[-16:])
        if found is None or (space in MARKS and not self._waits_at(found[0], space, first)):
            return list(wanted)
        kept, place = found
        made = {first: kept.value(space, place)} if len(wanted) == 1 else dict(kept.rows(space, b"", LAST))
        left = []
        for index in wanted:
            values[index] = made.get(keys[index])
            if values[index] is None:
                left.append(index)
        return left

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        rows = self.inner.scan(space, begin, end, limit, reverse=reverse, snapshot=snapshot)
        if not self.there or space not in MADE or limit <= 0 or begin >= end:
            return rows
        made = self._made_rows(space, begin, end, limit, reverse)
        return sorted(rows + made, reverse=reverse)[:limit] if made else rows

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        keys = self.inner.keys(space, begin, end, limit, reverse=reverse, snapshot=snapshot)
        if not self.there or space not in MADE or limit <= 0 or begin >= end:
            return keys
        if space in MARKS and limit == 1 and not reverse and not self._in_the_midst(space, begin):
            # A claim asks for the first key only, and often; the segment's mark has it.
            made = self.inner.keys(MARKS[space], begin, end, 1)
        else:
            made = [key for key, _ in self._made_rows(space, begin, end, limit, reverse)]
        return sorted(keys + made, reverse=reverse)[:limit] if made else keys

    # ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def segment(self, key: bytes) -> StoredSegment | None:
        """The segment of that name (queue and last job)."""
        kept = self._known.get(key) or self._from_memory(key)
        if kept is None:
            raw = self.inner.get(SEGMENT_STATE, key)
            kept = None if raw is None else self._read(key, raw)
        return kept

    def _from_memory(self, key: bytes) -> StoredSegment | None:
        return None if self._recent is None else self._recent.get(key)

    def holding(self, at: bytes) -> tuple[StoredSegment, int] | None:
        """The segment that a job (queue and id) is in, and its place there."""
        job, kept = at[4:], self._last
        if kept is not None and kept.prefix == at[:4] and (place := kept.place(job)) >= 0:
            return kept, place
        if self._recent is not None and (kept := self._recent.find(at)) is not None and kept.state.first_job == job:
            self._last = kept
            return kept, kept.places[0]
        for key, raw in self.inner.scan(SEGMENT_STATE, at, LAST, 1):
            if key[:4] != at[:4]:
                break
            kept = self._known.get(key) or self._from_memory(key)
            if (_decoded(key, raw) if kept is None else kept.state).first_job <= job:
                kept = self._last = kept or self._read(key, raw)
                place = kept.place(job)
                return (kept, place) if place >= 0 else None
        return None

    def _read(self, key: bytes, raw: bytes) -> StoredSegment:
        state = _decoded(key, raw)
        body = self.stored_body(key)
        kept = StoredSegment(key, state, body)
        if body.job(body.count - 1) != key[4:] or not kept.places or body.job(kept.places[0]) != state.first_job:
            raise Corrupt("a segment's jobs and its state do not fit", key=key)
        if state.group != (digest(body.group) if body.group else b""):
            raise Corrupt("the group of a segment's jobs and that of its state do not fit", key=key)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[key] = kept
        return kept

    def _fetch(self, keys: Sequence[bytes]) -> None:
        """These will be asked for: one look for all of them is cheaper."""
        keys = [key for key in keys if key not in self._known and self._from_memory(key) is None]
        with suppress(Corrupt):  # then each is looked for by itself
            self._fetched = dict(zip(keys, self.inner.get_many(SEGMENTS, keys), strict=True))

    def stored_body(self, key: bytes) -> NewSegment:
        value = self._fetched.pop(key, None) or self.inner.get(SEGMENTS, key)
        if value is None:
            raise Corrupt("the jobs of a segment are missing", key=key)
        try:
            return Segment(value)
        except Corrupt as exc:
            raise Corrupt(exc.detail, key=key) from None

    def _made(self, space: Space, key: bytes) -> bytes | None:
        found = self.holding(key if space not in MARKS else key[:4] + key[-16:])
        if found is None:
            return None
        kept, place = found
        if space in MARKS and not self._waits_at(kept, space, key):
            return None
        return kept.value(space, place)

    def _waits_at(self, kept: StoredSegment, space: Space, key: bytes) -> bool:
        if kept.state.state != WAITING or space not in kept.indexes or key[:-16] != kept.before(space):
            return False
        return self.inner.get(MARKS[space], kept.mark(space)) == encode_segment_mark(kept.key[4:])

    def _in_the_midst(self, space: Space, key: bytes) -> bool:
        """Whether a segment that waits may begin before this key of an index and go on behind it."""
        width = FRONTS[space]
        if len(key) <= width:
            return False
        for mark, value in self.inner.scan(MARKS[space], key[:width], key, 1, reverse=True):
            try:
                return mark[:-16] + decode_segment_mark(value) >= key
            except Corrupt:
                return True
        return False

    def _made_rows(self, space: Space, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Row]:
        rows: list[Row] = []
        marked = space in MARKS
        for kept in (
            self.marked(space, begin, end, limit, reverse) if marked else self.lying(begin, end, limit, reverse)
        ):
            if isinstance(kept, Corrupt):
                raise kept
            if isinstance(kept, bytes):
                if begin <= kept < end:
                    rows.append((kept, b""))
            else:
                made = kept.rows(space, begin, end)
                rows += reversed(made) if reverse else made
            if len(rows) >= limit:
                break
        return rows[:limit]

    def lying(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> Iterator[StoredSegment | Corrupt]:
        """Segments with a job between two keys of `jobs` or `state`, in order; damage in the place of what is damaged."""
        if reverse:
            over = self.inner.scan(SEGMENT_STATE, end, LAST, 1)
            for key, raw in over + self.inner.scan(SEGMENT_STATE, begin, end, limit, reverse=True):
                if not _begins_behind(key, raw, end):
                    yield self._read_or_damage(key, raw)
            return
        while True:
            found = self.inner.scan(SEGMENT_STATE, begin, LAST, min(limit, _AHEAD))
            if len(found) == _AHEAD:
                self._fetch([key for key, _ in found])
            for key, raw in found:
                if _begins_behind(key, raw, end):
                    return
                yield self._read_or_damage(key, raw)
            if len(found) < min(limit, _AHEAD):
                return
            begin = found[-1][0] + b"\0"

    def _read_or_damage(self, key: bytes, raw: bytes) -> StoredSegment | Corrupt:
        try:
            return self._known.get(key) or self._from_memory(key) or self._read(key, raw)
        except Corrupt as exc:
            return exc

    def marked(
        self, space: Space, begin: bytes, end: bytes, limit: int, reverse: bool = False
    ) -> Iterator[StoredSegment | bytes]:
        """Segments with a job between two keys of an index, in order. A mark that leads nowhere is given as it is."""
        marks, width = MARKS[space], FRONTS[space]
        if reverse:
            for row in self.inner.scan(marks, b"", end, limit + 1, reverse=True):
                yield self._of_mark(space, row)
            return
        if len(begin) > width:  # in the midst of a range: a segment may have begun before
            for row in self.inner.scan(marks, begin[:width], begin, 1, reverse=True):
                kept = self._of_mark(space, row)
                if isinstance(kept, StoredSegment):
                    yield kept
        while True:
            found = self.inner.scan(marks, begin, end, min(limit, _AHEAD))
            for row in found:
                yield self._of_mark(space, row)
            if len(found) < min(limit, _AHEAD):
                return
            begin = found[-1][0] + b"\0"

    def at_mark(self, mark: bytes) -> StoredSegment | bytes:
        """The segment of a key of `segment_ready`; the key, if it leads nowhere."""
        kept = None if self._recent is None else self._recent.find(mark)
        if kept is not None:
            return kept
        value = self.inner.get(SEGMENT_READY, mark)
        return mark if value is None else self._of_mark(READY, (mark, value))

    def read_ahead(self, marks: Sequence[bytes]) -> None:
        """Keep the segments of these neighbours in `segment_ready` in memory. Damage raises where such a segment is used."""
        recent = self._recent
        if recent is None:
            return
        with suppress(Corrupt):
            rows = self.inner.scan(SEGMENT_READY, marks[0], marks[-1] + b"\0", len(marks))
            found = [mark[:4] + decode_segment_mark(value) for mark, value in rows]
            keys = [key for key in found if recent.get(key) is None]
            self._fetch(keys)
            for key, raw in zip(keys, self.inner.get_many(SEGMENT_STATE, keys), strict=True):
                if raw is not None:
                    recent.put(self._read(key, raw))

    def _of_mark(self, space: Space, row: Row) -> StoredSegment | bytes:
        mark, value = row
        try:
            kept = self.segment(mark[:4] + decode_segment_mark(value))
        except Corrupt:
            return mark
        if kept is None or kept.state.state != WAITING or space not in kept.indexes or kept.mark(space) != mark:
            return mark
        return kept


def _begins_behind(key: bytes, raw: bytes, end: bytes) -> bool:
    """Whether no job of it can be before that key."""
    if key < end or end <= key[:4]:
        return key >= end
    try:
        return key[:4] + decode_segment_state(raw).first_job >= end
    except Corrupt:
        return False


def _decoded(key: bytes, raw: bytes) -> SegmentStateRecord:
    try:
        return decode_segment_state(raw)
    except Corrupt as exc:
        raise Corrupt(exc.detail, key=key) from None
