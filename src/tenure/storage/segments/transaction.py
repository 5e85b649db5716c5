"""Writing where some rows stand for jobs of a segment.

A verb writes rows, as everywhere. When its transaction ends, each job whose row was written is taken out of its
segment: the other rows that the segment stands for are written as well. If a claim takes a few jobs of a segment that
still waits, all of them become rows, since the next claim will take the next few. Nothing of a segment is written
before the end, so that a transaction never reads what it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from tenure.errors import Corrupt
from tenure.model.ids import NO_ID
from tenure.model.lifecycle import State
from tenure.storage.engine import Reader, Space, Transaction
from tenure.storage.keyspace import (
    GROUP_READY,
    JOBS,
    LAST,
    READY,
    SEGMENT_GROUPS,
    SEGMENT_READY,
    SEGMENT_STATE,
    SEGMENTS,
    STATE,
    digest,
)
from tenure.storage.records import (
    V1,
    V2,
    NewSegment,
    SegmentStateRecord,
    encode_segment_mark,
    encode_segment_state,
    new_tuple,
)
from tenure.storage.segments.reader import MADE, WAITING, RecentSegments, SegmentedReader
from tenure.storage.segments.stored import MARKS, SegmentShare, StoredSegment
from tenure.storage.transaction import Write

_LEASED = int(State.LEASED)
#: Segments that one claim or ack handles as such; more become rows.
_SEGMENTS_AT_ONCE = 64
#: Once a transaction has made so many jobs into rows, it takes single ones out of the segments that are left: a claim
#: may take a job of each of many groups.
_ROWS_AT_ONCE = 1_000
#: Of how many queues it is remembered where their newest segment lies.
_QUEUES_KEPT = 10_000


class SegmentUse:
    """Which queues take their jobs one by one: there, segments only cost. Kept in memory, never stored."""

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
            self._set(prefix, score + 1)

    def taken_apart(self, prefix: bytes) -> None:
        """Once in a while that is a failed job; each time, it is how its jobs are worked on."""
        score = self._scores.get(prefix, 0)
        if score >= 0:
            self._set(prefix, score - 4 if score >= 4 else -self.RESTS)

    def _set(self, prefix: bytes, score: int) -> None:
        if len(self._scores) >= _QUEUES_KEPT and prefix not in self._scores:
            self._scores.clear()
        self._scores[prefix] = score


class ReadAhead:
    """How many segments a claim reads at once of those that wait: more for as long as claims use what was read."""

    _MOST = 8

    def __init__(self) -> None:
        #: By priority of a queue (its tier): how many were read the last time, and the mark of the last.
        self._read: dict[bytes, tuple[int, bytes]] = {}

    def marks(self, tier: bytes, marks: Sequence[bytes]) -> Sequence[bytes]:
        """Those to read now. The first of them is not in memory."""
        count, last = self._read.get(tier, (0, b""))
        # If it was read and is not there any more, memory is too small for all that is read ahead.
        found = marks[: min(2 * count, self._MOST) if count and marks[0] > last else 1]
        if len(self._read) >= _QUEUES_KEPT:
            self._read.clear()
        self._read[tier] = len(found), found[-1]
        return found


class SegmentMemory:
    """What is kept in memory of a store's segments. Requires, for every use: the writer's lock is held."""

    __slots__ = ("ahead", "newest", "recent", "there", "use")

    def __init__(self, *, there: bool) -> None:
        #: Whether there may be segments. Once there are, it stays so: looking for one in vain is cheap.
        self.there = there
        self.recent = RecentSegments()
        self.use = SegmentUse()
        self.ahead = ReadAhead()
        #: By queue: a job behind which no job of a segment lies. Missing: not known.
        self.newest: dict[bytes, bytes] = {}

    def forget(self) -> None:
        """What is remembered of segments may not be what is stored."""
        self.there = True
        self.recent.clear()
        self.newest.clear()


class _Work:
    """What a transaction does to segments, written when it ends."""

    __slots__ = ("apart", "bodies", "broken", "queues", "stored", "whole", "writes")

    def __init__(self) -> None:
        #: Segments that lose jobs, and the places of which rows were written, by space.
        self.apart: dict[bytes, tuple[StoredSegment, dict[Space, set[int]]]] = {}
        #: Of those, the ones that become rows altogether; and queues whose jobs do not stay together.
        self.whole: set[bytes] = set()
        self.queues: set[bytes] = set()
        #: Damaged ones, of which only what can be read becomes rows, and the jobs whose rows were written instead.
        self.broken: dict[bytes, set[bytes]] = {}
        #: New ones, by key.
        self.bodies: dict[bytes, NewSegment] = {}
        #: Segments as this transaction leaves them, by key.
        self.stored: dict[bytes, StoredSegment] = {}
        self.writes: list[Write] = []


class SegmentedTransaction(Transaction):
    """`storage.transaction.Transaction` whose jobs may be kept together."""

    #: Jobs in a segment: fewer are no cheaper than their rows, more are read in vain by a claim of a few; a claim of a
    #: hundred, as large as most are, takes it whole. There is a bit for 128. And their bytes.
    LEAST = 8
    MOST = 100
    MOST_BYTES = 64 * 1024

    @classmethod
    def jobs_in_one(cls, longest: int) -> int:
        """How many jobs whose payloads have at most so many bytes make a segment; 0 if they are better kept as rows."""
        each = min(cls.MOST, cls.MOST_BYTES // (longest + 1))
        return each if each >= cls.LEAST else 0

    #: What reads segments, if there may be any.
    _segments: SegmentedReader
    #: Keys seen to be stored as rows: their jobs are in no segment.
    _stored: set[bytes]
    #: The queue that `_worthwhile` was asked about last, and its answer.
    _asked_for = b""
    _is_worthwhile = False
    _work: _Work | None = None

    def __init__(self, memory: SegmentMemory, reader: Reader, next_commit: int) -> None:
        """Requires: the writer's lock is held."""
        # As the base class does, without a call in each transaction.
        self.writes, self.adds, self.journal = [], {}, []
        self.reader, self.next_commit, self.memory = reader, next_commit, memory
        #: Whether there may be segments.
        self._there = memory.there
        if memory.there:
            self._stored = set()
            self.reader = self._segments = SegmentedReader(reader, True, memory.recent, self._stored)

    @property
    def _todo(self) -> _Work:
        if self._work is None:
            self._work = _Work()
        return self._work

    def delete_range(self, space: Space, begin: bytes, end: bytes) -> None:
        if space in MADE:
            raise ValueError("rows that may stand for a job of a segment are deleted one by one")
        super().delete_range(space, begin, end)

    # ── jobs that were enqueued together ─────────────────────────────────────────────────────────────────────────────

    def put_together(
        self,
        prefix: bytes,
        jobs: Sequence[bytes],
        payloads: Sequence[bytes],
        now_ms: int,
        priority: int,
        max_attempts: int,
        last_event: int,
        group: bytes = b"",
        most_leased: int | None = None,
    ) -> bool:
        if len(jobs) < self.LEAST or (most_leased is not None and most_leased < self.LEAST):
            return False
        each = self.jobs_in_one(max(map(len, payloads)))
        if not each or not self._worthwhile(prefix) or (self._there and not self._vacant(prefix, jobs[0], jobs[-1])):
            return False
        version, group_id = (V2, digest(group)) if group else (V1, b"")
        bodies = self._todo.bodies
        for begin in range(0, len(jobs), each):
            part = jobs[begin : begin + each]
            state = new_tuple(
                SegmentStateRecord,
                (
                    version, WAITING, priority, 0, max_attempts, 0, now_ms, last_event + begin, 0, part[0], NO_ID, NO_ID,
                    group_id,
                ),
            )  # fmt: skip
            body = NewSegment(now_ms, part, payloads[begin : begin + each], group)
            segment = StoredSegment(prefix + part[-1], state, body)
            bodies[segment.key] = body
            self._store(segment)
            self._put_marks(segment)
        return True

    def _worthwhile(self, prefix: bytes) -> bool:
        """Whether batches of this queue are stored together. Decided once for the parts of a batch."""
        if prefix != self._asked_for:
            self._asked_for, self._is_worthwhile = prefix, self.memory.use.worthwhile(prefix)
        return self._is_worthwhile

    def first_together(self, tiers: Sequence[bytes], until: bytes, limit: int) -> Sequence[SegmentShare]:
        if not self._there or limit < self.LEAST:
            return ()
        segments, shares, left = self._segments, [], limit
        keys, at_mark, recent = segments.inner.keys, segments.at_mark, self.memory.recent.find
        segment: StoredSegment | bytes | None
        for tier in tiers:
            end = tier + until
            row = keys(READY, tier, end, 1)
            wanted = min(_SEGMENTS_AT_ONCE, left // self.LEAST + 1)
            marks = keys(SEGMENT_READY, tier, end, wanted)
            for at, mark in enumerate(marks):
                segment = recent(mark)
                if segment is None:
                    ahead = self.memory.ahead.marks(tier, marks[at:])
                    if len(ahead) > 1:
                        segments.read_ahead(ahead)
                    segment = at_mark(mark)
                if isinstance(segment, bytes) or not segment.body.whole:
                    return ()  # damaged: reading rows passes it over
                take = min(segment.count, left)
                if row and row[0] < mark[:-16] + segment.body.jobs[segment.places[take - 1]]:
                    return ()
                # Of the last one, perhaps a few: the claim as a whole is large, so that copying them pays.
                shares.append(SegmentShare(segment, take))
                left -= take
                if not left:
                    return shares
            if row or len(marks) == wanted or len(shares) >= _SEGMENTS_AT_ONCE:
                return ()  # the rest of the claim comes from rows, or from very many segments
        return shares

    def next_together(self, space: Space, begin: bytes, end: bytes, limit: int) -> StoredSegment | None:
        if not self._there or limit < self.LEAST:
            return None
        for segment in self._segments.marked(space, begin, end, 1):
            if isinstance(segment, bytes) or not segment.body.whole:
                return None
            row = self._segments.inner.keys(space, begin, end, 1)
            behind = segment.before(space) + segment.job
            if begin > behind:
                continue  # it ends before
            between = row and row[0] < behind
            return None if between or begin > segment.mark(space) or behind >= end else segment
        return None

    def shares_out(self, segment: StoredSegment, count: int) -> bool:
        return count == segment.count or count >= self.LEAST

    def lease_together(self, share: SegmentShare, lease: bytes, token: int, last_event: int) -> None:
        segment, count = share
        places, todo = segment.places, self._todo
        version, _, priority, attempt, most, _, visible, _, first, first_job, _, _, group = segment.state
        leased = new_tuple(
            SegmentStateRecord,
            (
                version, _LEASED, priority, attempt + 1, most, token, visible, last_event - first, first, first_job,
                lease, NO_ID, group,
            ),
        )  # fmt: skip
        self._delete_marks(segment)
        if type(places) is range and count == len(places):
            self._store(StoredSegment(segment.key, leased, segment.body))
            return
        # Copied: events of the jobs of a segment stand side by side, and the rest has had other ones.
        taken, left = places[:count], places[count:]
        jobs = segment.jobs_at(taken)
        at = segment.prefix + jobs[-1]
        body = NewSegment(segment.body.created_at_ms, jobs, segment.payloads_at(taken), segment.body.group)
        leased = leased._replace(last_event=last_event, first=0, first_job=jobs[0])
        if left:
            rest = segment.reduced(left)
            self._store(rest)
            self._put_marks(rest)
        elif at != segment.key:
            self._delete(segment.key)
        todo.bodies[at] = body
        self._store(StoredSegment(at, leased, body))

    def held_together(
        self, prefix: bytes, lease: bytes, jobs: Sequence[bytes], tokens: Sequence[int]
    ) -> Sequence[StoredSegment]:
        if not self._there or len(jobs) < self.LEAST:
            return ()
        found = self._held(prefix, lease, jobs, tokens)
        # Groups may have taken turns in the claim. Segments never overlap: in the order of ids, each lies by itself.
        if not found and list(jobs) != (ordered := sorted(jobs)):
            of_jobs = dict(zip(jobs, tokens, strict=True))
            found = self._held(prefix, lease, ordered, [of_jobs[job] for job in ordered])
        return found

    def _held(
        self, prefix: bytes, lease: bytes, jobs: Sequence[bytes], tokens: Sequence[int]
    ) -> Sequence[StoredSegment]:
        """As `held_together`, of jobs that are given segment by segment."""
        found: list[StoredSegment] = []
        jobs, recent, holding, at = list(jobs), self.memory.recent.find, self._segments.holding, 0
        while at < len(jobs):
            first = prefix + jobs[at]
            segment = recent(first)
            if segment is None and (held := holding(first)) is not None:
                segment = held[0]
            if segment is None or len(found) >= _SEGMENTS_AT_ONCE:
                return ()
            state, count = segment.state, len(segment.places)
            end = at + count
            if (
                state.state != _LEASED
                or state.lease != lease
                or segment.jobs != jobs[at:end]
                or tokens[at:end].count(state.token) != count
            ):
                return ()
            found.append(segment)
            at = end
        return found

    def drop_together(self, segment: StoredSegment) -> None:
        # Its jobs were held, so it has no mark among those that wait.
        self._delete(segment.key)
        self.memory.use.ended_whole(segment.prefix)

    def break_up(self, key: bytes) -> bool:
        self._todo.broken.setdefault(key, set())
        return True

    def _store(self, segment: StoredSegment) -> None:
        """Write the state of a segment, and remember the segment once that is written."""
        todo = self._todo
        todo.stored[segment.key] = segment
        todo.writes.append((SEGMENT_STATE, segment.key, encode_segment_state(segment.state)))

    def _delete(self, key: bytes) -> None:
        self._todo.stored.pop(key, None)
        self._todo.writes += ((SEGMENTS, key, None), (SEGMENT_STATE, key, None))

    def _put_marks(self, segment: StoredSegment) -> None:
        """Among those that wait, the segment begins with its first job."""
        value, writes = encode_segment_mark(segment.job), self._todo.writes
        writes.append((SEGMENT_READY, segment.mark(READY), value))
        if segment.state.group:
            writes.append((SEGMENT_GROUPS, segment.mark(GROUP_READY), value))

    def _delete_marks(self, segment: StoredSegment) -> None:
        writes = self._todo.writes
        writes.append((SEGMENT_READY, segment.mark(READY), None))
        if segment.state.group:
            writes.append((SEGMENT_GROUPS, segment.mark(GROUP_READY), None))

    def _vacant(self, prefix: bytes, first: bytes, last: bytes) -> bool:
        """Whether no segment lies anywhere between these jobs of a queue, which are about to be in one."""
        behind = self._newest(prefix)
        self.memory.newest[prefix] = max(behind, last)
        return behind < first or self._none_between(prefix + first, prefix + last)

    def _newest(self, prefix: bytes) -> bytes:
        """A job of the queue behind which no job of a segment lies."""
        newest = self.memory.newest
        behind = newest.get(prefix)
        if behind is None:
            try:
                end = self._segments.inner.keys(SEGMENT_STATE, prefix, prefix + LAST, 1, reverse=True)
            except Corrupt:
                return LAST  # it cannot be read: any job may be in a segment
            behind = end[0][4:] if end else NO_ID
            if len(newest) >= _QUEUES_KEPT:
                newest.clear()
            newest[prefix] = behind
        return behind

    def _none_between(self, first: bytes, last: bytes) -> bool:
        """Whether no segment has a job from one row to another."""
        return not any(True for _ in self._segments.lying(first, last + b"\0", 1, False))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def finish(self) -> bool:
        """Add to the changes what they mean for segments."""
        if self._there:
            self._take_out_written()
        if self._work is not None:
            self._write_out(self._work)
        return bool(self.writes or self)

    def _write_out(self, work: _Work) -> None:
        made_rows = 0
        for key, (segment, written) in work.apart.items():
            whole = key in work.whole and made_rows < _ROWS_AT_ONCE
            self._take_out(segment, written, whole=whole)
            made_rows += segment.count if whole else 0
        for prefix in work.queues:
            self.memory.use.taken_apart(prefix)
        for key, written_jobs in work.broken.items():
            self._write_remains(key, written_jobs)
        writes, recent = self.writes, self.memory.recent
        for key, body in work.bodies.items():
            writes.append((SEGMENTS, key, body.encode()))
            # Before they are written: a segment that is looked for in vain costs a look, one that is not is lost.
            self.memory.there = True
        writes += work.writes
        # At once: what is missing there is read again.
        recent.delete([key for space, key, _ in work.writes if space == SEGMENT_STATE])
        if work.stored:
            self.when_written(partial(_remember, recent, work.stored.values()))

    def _take_out_written(self) -> None:
        """Take the jobs whose rows were written out of the segments they are in."""
        newest, stored, unknown = self.memory.newest, self._stored, set()
        for space, key, value in self.writes:
            if space in MADE:
                job = key[:4] + key[-16:] if space in MARKS else key
                # New jobs lie behind all segments of their queue. What is deleted may be a mark that leads nowhere.
                if job not in stored and (value is None or job[4:] <= (newest.get(job[:4]) or self._newest(job[:4]))):
                    unknown.add(job)
        if not unknown or (len(unknown) > 1 and self._none_between(min(unknown), max(unknown))):
            return
        made = [
            (write, write[1][:4] + write[1][-16:] if write[0] in MARKS else write[1])
            for write in self.writes
            if write[0] in MADE
        ]
        virtual = {write for write, job in made if job in unknown and not self._touch(*write[:2], job, write[2])}
        if virtual:
            self.writes[:] = [write for write in self.writes if write not in virtual]

    def _touch(self, space: Space, key: bytes, job: bytes, value: bytes | None) -> bool:
        """A row that may stand for a job of a segment is written.

        False: it was virtual, and there is nothing to delete.
        """
        if space in MARKS and value is None and self._segments.inner.get(MARKS[space], key) is not None:
            self._todo.writes.append((MARKS[space], key, None))
        found = self._holding_or_broken(job)
        if found is None:
            self._stored.add(job)
            return True
        segment, place = found
        _, written = self._todo.apart.setdefault(segment.key, (segment, {each: set() for each in MADE}))
        waiting = segment.state.state == WAITING
        if space == STATE and (value is not None) == waiting:
            # Claimed by a few, or settled one by one: rows are quicker at both.
            self._todo.queues.add(segment.prefix)
            if waiting:
                self._todo.whole.add(segment.key)
        if space in MARKS and not (waiting and space in segment.indexes and key[:-16] == segment.before(space)):
            return True  # another row of the job, not one that the segment stands for
        written[space].add(place)
        return value is not None

    def _holding_or_broken(self, job: bytes) -> tuple[StoredSegment, int] | None:
        try:
            return self._segments.holding(job)
        except Corrupt as exc:
            if exc.key is not None:
                self._todo.broken.setdefault(exc.key, set()).add(job)
            return None

    def _take_out(self, segment: StoredSegment, written: dict[Space, set[int]], *, whole: bool) -> None:
        waiting = segment.state.state == WAITING
        leaving = set(segment.places) if whole else set().union(*written.values())
        for space in (JOBS, STATE, *segment.indexes) if waiting else (JOBS, STATE):
            # What the transaction wrote of a job stands; what it deleted stays gone.
            others = sorted(leaving - written[space])
            if others:
                self.put_many(space, segment.rows_at(space, others))
        left = [place for place in segment.places if place not in leaving]
        rest = segment.reduced(left) if left else None
        if waiting and (rest is None or left[0] != segment.places[0]):
            self._delete_marks(segment)
            if rest is not None:
                self._put_marks(rest)
        if rest is not None:
            self._store(rest)
        else:
            self._delete(segment.key)

    def _write_remains(self, key: bytes, written: set[bytes]) -> None:
        """Payloads, if they can be read: without their states, which a check misses, and makes again from the journal."""
        self._delete(key)
        try:
            body = self._segments.stored_body(key)
        except Corrupt:
            return
        rows = []
        for job, row in zip(body.jobs, body.job_rows(0, body.count), strict=True):
            at = key[:4] + job
            # Those that were taken out live elsewhere; or not at all, which the journal tells.
            if at not in written and self._segments.inner.get(JOBS, at) is None and not self._is_in_another(at, key):
                rows.append((at, row))
        self.put_many(JOBS, rows)

    def _is_in_another(self, at: bytes, key: bytes) -> bool:
        try:
            found = self._segments.holding(at)
        except Corrupt:
            return False
        return found is not None and found[0].key != key


def _remember(recent: RecentSegments, segments: Iterable[StoredSegment]) -> None:
    for segment in segments:
        recent.put(segment)
