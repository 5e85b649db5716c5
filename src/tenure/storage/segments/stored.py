"""A segment as it is stored, and what a claim takes of one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from tenure.model.ids import NO_ID
from tenure.storage.engine import Row, Space
from tenure.storage.keyspace import (
    GROUP_READY,
    GROUPED,
    READY,
    SEGMENT_GROUPS,
    SEGMENT_READY,
    STATE,
    group_ready_from,
    queue_of,
    ready_from,
)
from tenure.storage.records import NewSegment, SegmentStateRecord, segment_state_rows

#: The indexes of waiting jobs that a segment may stand in, and where it is marked in their stead.
MARKS: dict[Space, Space] = {READY: SEGMENT_READY, GROUP_READY: SEGMENT_GROUPS}


class StoredSegment:
    """A segment as it is stored now. `places` are the positions of the jobs that are still in it."""

    __slots__ = ("_mark", "_ready", "body", "key", "places", "prefix", "state")

    def __init__(self, key: bytes, state: SegmentStateRecord, body: NewSegment) -> None:
        self.key, self.prefix = key, key[:4]
        self.state, self.body = state, body
        #: How the keys of its jobs in `ready` begin, once that is asked for.
        self._ready: bytes | None = None
        self._mark: bytes | None = None
        self.places: Sequence[int] = range(state.first, body.count)
        if state.gone != NO_ID:
            gone = int.from_bytes(state.gone, "big")
            self.places = [place for place in self.places if not gone >> place & 1]

    def reduced(self, places: Sequence[int]) -> StoredSegment:
        """The same segment with the jobs at these of its places only."""
        gone = 0
        if not isinstance(places, range):
            for place in set(range(places[0], self.body.count)).difference(places):
                gone |= 1 << place
        first = places[0]
        state = self.state._replace(first=first, first_job=self.body.job(first), gone=gone.to_bytes(16, "big"))
        return StoredSegment(self.key, state, self.body)

    @property
    def job(self) -> bytes:
        """Its last job, by which it is known within its queue."""
        return self.key[4:]

    @property
    def jobs(self) -> list[bytes]:
        return self.jobs_at(self.places)

    def jobs_at(self, places: Sequence[int]) -> list[bytes]:
        jobs = self.body.jobs
        return jobs[places.start : places.stop] if isinstance(places, range) else [jobs[place] for place in places]

    def payloads_at(self, places: Sequence[int]) -> list[bytes]:
        payloads = self.body.payloads(places[0], places[-1] + 1)
        return payloads if len(payloads) == len(places) else [payloads[place - places[0]] for place in places]

    def events_at(self, places: Sequence[int]) -> Sequence[int]:
        """The last event of each."""
        base = self.state.last_event
        if isinstance(places, range):
            return range(base + places.start, base + places.stop)
        return [base + place for place in places]

    @property
    def count(self) -> int:
        return len(self.places)

    def place(self, job: bytes) -> int:
        """Where a job is; -1 if it is not in it."""
        place = self.body.place(job)
        return place if place in self.places else -1

    @property
    def indexes(self) -> tuple[Space, ...]:
        """The indexes that its jobs stand in while they wait."""
        return (READY, GROUP_READY) if self.state.group else (READY,)

    def before(self, space: Space) -> bytes:
        """How the keys of its jobs in a space begin: the job follows. Requires, of `group_ready`: they have a group."""
        state = self.state
        if space == READY:
            if self._ready is None:
                grouped = GROUPED if state.group else 0
                self._ready = ready_from(queue_of(self.prefix), state.priority, state.visible_at_ms, grouped)
            return self._ready
        if space == GROUP_READY:
            return group_ready_from(queue_of(self.prefix), state.group, 9 - state.priority, state.visible_at_ms)
        return self.prefix

    def mark(self, space: Space) -> bytes:
        """The key of its mark for one of its `indexes`: that of its first job there."""
        if space != READY:
            return self.before(space) + self.state.first_job
        mark = self._mark
        if mark is None:
            mark = self._mark = self.before(READY) + self.state.first_job
        return mark

    def keys(self, space: Space, places: Sequence[int]) -> list[bytes]:
        before = self.before(space)
        return [before + job for job in self.jobs_at(places)]

    def value(self, space: Space, place: int) -> bytes:
        return self.values(space, range(place, place + 1))[0]

    def values(self, space: Space, places: Sequence[int]) -> list[bytes]:
        if not places or space in MARKS:
            return [b""] * len(places)
        first, end = places[0], places[-1] + 1
        made = segment_state_rows(self.state, first, end) if space == STATE else self.body.job_rows(first, end)
        return made if len(made) == len(places) else [made[place - first] for place in places]

    def rows_at(self, space: Space, places: Sequence[int]) -> list[Row]:
        return list(zip(self.keys(space, places), self.values(space, places), strict=True))

    def rows(self, space: Space, begin: bytes, end: bytes) -> list[Row]:
        """Its rows between two keys."""
        return self.rows_at(space, self.between(begin, end, before=self.before(space)))

    def between(
        self, begin: bytes, end: bytes, places: Sequence[int] | None = None, before: bytes | None = None
    ) -> Sequence[int]:
        """Which of its places lie between two keys, that begin with the queue, or with `before`."""
        places = self.places if places is None else places
        before = self.prefix if before is None else before
        first, last = before + self.body.job(places[0]), before + self.body.job(places[-1])
        if begin <= first and last < end:
            return places
        keys = [before + job for job in self.jobs_at(places)]
        return places[bisect_left(keys, begin) : bisect_left(keys, end)]


class SegmentRows:
    """The rows of one space that some jobs of a segment stand for: a run of a `storage.engine.Walk`."""

    __slots__ = ("places", "segment", "space")

    def __init__(self, segment: StoredSegment, space: Space, places: Sequence[int]) -> None:
        """`space` is `jobs` or `state`."""
        self.segment, self.space, self.places = segment, space, places

    def __len__(self) -> int:
        return len(self.places)

    def key(self, index: int) -> bytes:
        return self.segment.prefix + self.segment.body.job(self.places[index])

    def rows(self) -> list[Row]:
        return self.segment.rows_at(self.space, self.places)


class SegmentShare(NamedTuple):
    """A segment, and how many of its first jobs a claim takes."""

    segment: StoredSegment
    taken: int

    @property
    def places(self) -> Sequence[int]:
        places = self.segment.places
        return places if self.taken == len(places) else places[: self.taken]

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self.segment.payloads_at(self.places)))
