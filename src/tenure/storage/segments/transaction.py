"""Writing where some rows stand for jobs of a segment.

Whoever writes such a row takes its job out of the segment: the other rows it stands for are written when the transaction
ends, except for those it wrote itself. If it claims one while the others still wait, they are all written out: whoever
takes a few will be back for the next. Nothing of a segment is written before the end, so that a transaction may still
look at it, and never reads what it wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import Corrupt
from tenure.model.ids import NO_ID
from tenure.storage.engine import Row, Space, Transaction
from tenure.storage.keyspace import JOBS, READY, SEGMENT_READY, SEGMENT_STATE, SEGMENTS, STATE
from tenure.storage.records import (
    NewSegment,
    SegmentStateRecord,
    encode_segment_mark,
    encode_segment_state,
)
from tenure.storage.segments.reader import MADE, WAITING, Kept, RecentBodies, SegmentedReader


class Habits:
    """Which queues take their jobs apart: there, making segments of them only costs. Never stored."""

    #: So many batches in a row are written as rows, before it is tried again.
    RESTS = 64
    _TRUST = 16

    def __init__(self) -> None:
        #: By queue: how often its segments lived and ended whole; below zero, how many batches it still rests.
        self._scores: dict[bytes, int] = {}

    def worthwhile(self, prefix: bytes) -> bool:
        """Asked for each batch."""
        score = self._scores.get(prefix, 0)
        if score < 0:
            self._scores[prefix] = score + 1
        return score >= 0

    def ended_whole(self, prefix: bytes) -> None:
        score = self._scores.get(prefix, 0)
        if 0 <= score < self._TRUST:
            self._scores[prefix] = score + 1

    def taken_apart(self, prefix: bytes) -> None:
        """Once in a while that is a failed job; each time, it is how its jobs are worked on."""
        score = self._scores.get(prefix, 0)
        if score >= 0:
            self._scores[prefix] = score - 4 if score >= 4 else -self.RESTS


class _Work:
    """What a transaction does to segments, put off until it ends."""

    def __init__(self) -> None:
        #: Segments of which jobs are taken out, and of which places rows were written.
        self.apart: dict[bytes, tuple[Kept, dict[Space, set[int]]]] = {}
        #: Of those, the ones that are written out whole; and queues whose jobs do not stay together.
        self.whole: set[bytes] = set()
        self.queues: set[bytes] = set()
        #: Damaged ones, of which only what can be read is written out, and the jobs whose rows were written instead.
        self.broken: dict[bytes, set[bytes]] = {}
        self.bodies: list[tuple[bytes, NewSegment]] = []
        self.puts: list[tuple[Space, bytes, bytes]] = []
        self.deletes: list[tuple[Space, bytes]] = []


class SegmentedTransaction(SegmentedReader):
    """`storage.engine.Transaction` on another one."""

    #: Jobs in a segment: fewer are no cheaper than their rows, more are read in vain by who takes a few; and a claim of a
    #: hundred, as large as most are, takes it whole. There is a bit for 128. And their bytes.
    LEAST = 8
    MOST = 100
    MOST_BYTES = 64 * 1024

    inner: Transaction

    def __init__(self, inner: Transaction, there: bool, recent: RecentBodies, habits: Habits) -> None:
        # A single job's transaction is short: what most do not need is made by those that do.
        self.inner = inner
        self.there = there
        self._recent: RecentBodies = recent
        self._habits = habits
        self._known = {}
        self._fetched = {}
        self._alone: set[bytes] = set()
        self.add, self.append, self.next_append = inner.add, inner.append, inner.next_append
        self._work: _Work | None = None

    @property
    def _todo(self) -> _Work:
        if self._work is None:
            self._work = _Work()
        return self._work

    # ── the seam ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, space: Space, key: bytes, value: bytes) -> None:
        if self.there and space in MADE:
            self._touch(space, (key,), put=True)
        self.inner.put(space, key, value)

    def put_many(self, space: Space, rows: Sequence[Row]) -> None:
        if self.there and space in MADE:
            self._touch(space, [key for key, _ in rows], put=True)
        self.inner.put_many(space, rows)

    def delete(self, space: Space, key: bytes) -> None:
        if self.there and space in MADE:
            if space == READY and self.inner.get(SEGMENT_READY, key) is not None:
                self._todo.deletes.append((SEGMENT_READY, key))
            if not self._touch(space, (key,)):
                return
        self.inner.delete(space, key)

    def delete_many(self, space: Space, keys: Sequence[bytes]) -> None:
        if self.there and space in MADE:
            keys = self._touch(space, keys)
        self.inner.delete_many(space, keys)

    def guard(self, space: Space, key: bytes) -> None:
        self.inner.guard(space, key)

    def delete_range(self, space: Space, begin: bytes, end: bytes) -> None:
        if space in MADE:
            raise ValueError("rows that may stand for a job of a segment are deleted one by one")
        self.inner.delete_range(space, begin, end)

    def _touch(self, space: Space, keys: Sequence[bytes], *, put: bool = False) -> Sequence[bytes]:
        """These rows are being written: take their jobs out of the segments they are in. Returns those that are stored."""
        jobs = [key[:4] + key[-16:] for key in keys] if space == READY else keys
        if self._alone.issuperset(jobs) or (len(keys) > 1 and self.vacant(min(jobs), max(jobs))):
            return keys
        stored = []
        for key, job in zip(keys, jobs, strict=True):
            found = None if job in self._alone else self._holding_or_broken(job)
            if found is None:
                stored.append(key)
                continue
            kept, place = found
            _, written = self._todo.apart.setdefault(kept.key, (kept, {each: set() for each in MADE}))
            waiting = kept.state.state == WAITING
            if space != READY or (waiting and key[:-16] == kept.ready_place):
                written[space].add(place)
            else:
                stored.append(key)  # another row of it, not one that the segment stands for
            if space == STATE and put == waiting:
                # Claimed by a few, or settled one by one: rows are quicker at both.
                self._todo.queues.add(kept.prefix)
                if waiting:
                    self._todo.whole.add(kept.key)
        return stored

    def _holding_or_broken(self, job: bytes) -> tuple[Kept, int] | None:
        try:
            return self.holding(job)
        except Corrupt as exc:
            if exc.key is not None:
                self._todo.broken.setdefault(exc.key, set()).add(job)
            return None

    def vacant(self, first: bytes, last: bytes) -> bool:
        """Whether no segment lies anywhere between these jobs."""
        return not any(True for _ in self._lying(first, last + b"\0", 1, False))

    # ── segments as such ─────────────────────────────────────────────────────────────────────────────────────────────

    def worthwhile(self, prefix: bytes) -> bool:
        """Whether jobs of this queue tend to stay together. Asked for each batch."""
        return self._habits.worthwhile(prefix)

    def put_segment(
        self,
        prefix: bytes,
        jobs: Sequence[bytes],
        payloads: Sequence[bytes],
        now_ms: int,
        max_attempts: int,
        place: bytes,
        last_event: int,
    ) -> None:
        """New jobs that wait from now on; `last_event` is the first's, and the others' follow it."""
        key = prefix + jobs[-1]
        state = encode_segment_state(WAITING, 0, 0, max_attempts, 0, now_ms, last_event, 0, jobs[0], NO_ID, NO_ID)
        self._todo.bodies.append((key, NewSegment(now_ms, jobs, payloads)))
        self._todo.puts += (
            (SEGMENT_STATE, key, state),
            (SEGMENT_READY, place + jobs[0], encode_segment_mark(jobs[-1])),
        )

    def lease_segment(
        self, kept: Kept, count: int, payloads: Sequence[bytes], leased: int, lease: bytes, last_event: int
    ) -> None:
        """Its first `count` jobs are held by a lease from now on; `payloads` are theirs, in case they become a segment of their own."""
        state, places = kept.state, kept.places
        given = state._replace(state=leased, attempt=state.attempt + 1, token=state.token + 1, lease=lease)
        self._todo.deletes.append((SEGMENT_READY, kept.mark))
        if count == kept.count and isinstance(places, range):
            self._recent.put(kept.key, kept.body)  # it will be settled soon, and was perhaps made long ago
            self._put_state(kept.key, kept, given._replace(last_event=last_event - places[0]), places)
            return
        # Copied: events of the jobs of a segment stand side by side, and the rest has had other ones.
        jobs = kept.jobs_at(places[:count])
        at = kept.prefix + jobs[-1]
        body = NewSegment(kept.body.created_at_ms, jobs, payloads)
        taken = Kept(at, given._replace(last_event=last_event, first=0, first_job=jobs[0], gone=NO_ID), body)
        left = places[count:]
        if left:
            self._put_state(kept.key, kept, state, left)
            mark = kept.ready_place + kept.body.jobs[left[0]]
            self._todo.puts.append((SEGMENT_READY, mark, encode_segment_mark(kept.key[4:])))
        elif at != kept.key:
            self._todo.deletes += ((SEGMENTS, kept.key), (SEGMENT_STATE, kept.key))
        self._todo.bodies.append((at, body))
        self._put_state(at, taken, taken.state, taken.places)

    def _put_state(self, key: bytes, kept: Kept, state: SegmentStateRecord, places: Sequence[int]) -> None:
        """`places` are where its jobs will be."""
        gone = 0
        if not isinstance(places, range):
            for place in set(range(places[0], kept.body.count)).difference(places):
                gone |= 1 << place
        self._todo.puts.append((
            SEGMENT_STATE,
            key,
            encode_segment_state(
                *state[1:8], places[0], kept.body.jobs[places[0]], state.lease, gone.to_bytes(16, "big")
            ),
        ))  # fmt: skip

    def delete_segment(self, kept: Kept) -> None:
        """All its jobs are gone. They were held, so it has no mark."""
        self._todo.deletes += ((SEGMENTS, kept.key), (SEGMENT_STATE, kept.key))
        self._habits.ended_whole(kept.prefix)

    def break_up(self, key: bytes) -> None:
        """A segment that is damaged becomes rows, as far as it can be read."""
        self._todo.broken.setdefault(key, set())

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self) -> bool:
        """Write what was put off; returns whether there is a segment now that was not there before."""
        work = self._work
        if work is None:
            return False
        for key, (kept, written) in work.apart.items():
            self._take_out(kept, written, whole=key in work.whole)
        for prefix in work.queues:
            self._habits.taken_apart(prefix)
        for key, written_jobs in work.broken.items():
            self._write_remains(key, written_jobs)
        inner, recent = self.inner, self._recent
        for key, body in work.bodies:
            inner.put(SEGMENTS, key, body.encode())
            recent.put(key, body)
        for space, key, value in work.puts:
            inner.put(space, key, value)
        for space, key in work.deletes:
            inner.delete(space, key)
            if space == SEGMENTS:
                recent.delete(key)
        return bool(work.bodies)

    def _take_out(self, kept: Kept, written: dict[Space, set[int]], *, whole: bool) -> None:
        waiting = kept.state.state == WAITING
        leaving = set(kept.places) if whole else set().union(*written.values())
        for space in (JOBS, STATE, READY) if waiting else (JOBS, STATE):
            # What the transaction wrote of a job stands; what it deleted stays gone.
            rest = sorted(leaving - written[space])
            if rest:
                self.inner.put_many(space, kept.rows_at(space, rest))
        left = [place for place in kept.places if place not in leaving]
        if waiting and (not left or left[0] != kept.places[0]):
            self._todo.deletes.append((SEGMENT_READY, kept.mark))
            if left:
                mark = kept.ready_place + kept.body.jobs[left[0]]
                self._todo.puts.append((SEGMENT_READY, mark, encode_segment_mark(kept.key[4:])))
        if left:
            self._put_state(kept.key, kept, kept.state, left)
        else:
            self._todo.deletes += ((SEGMENTS, kept.key), (SEGMENT_STATE, kept.key))

    def _write_remains(self, key: bytes, written: set[bytes]) -> None:
        """Payloads, if they can be read: without their states, which a check will miss, and make again from the journal."""
        self._todo.deletes += ((SEGMENTS, key), (SEGMENT_STATE, key))
        try:
            body = self._stored_body(key)
        except Corrupt:
            return
        rows = []
        for job, row in zip(body.jobs, body.job_rows(0, body.count), strict=True):
            at = key[:4] + job
            # Those that were taken off live elsewhere; or not at all, which the journal tells.
            if at not in written and self.inner.get(JOBS, at) is None and not self._is_in_another(at, key):
                rows.append((at, row))
        if rows:
            self.inner.put_many(JOBS, rows)

    def _is_in_another(self, at: bytes, key: bytes) -> bool:
        try:
            found = self.holding(at)
        except Corrupt:
            return False
        return found is not None and found[0].key != key
