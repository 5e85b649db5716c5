"""What a claim takes of a queue that has groups: by priority, then by turns between the groups, then by time.

    tier 9 ─▶ groups in turn ─▶ each gives its first ready job, and stands in line again behind what it was given
       ⋮       jobs without a group stand in line as one more
    tier 0

A claim reads the places from the front, and of each group as many jobs as its turns come to. On the way it settles the
places for good: a group that has nothing more loses its place, one whose next job comes later waits for that moment, one
at its limit waits for room. None of them is looked at again before.

Jobs that are stored together (`storage.segments`) are taken so, if all that the claim takes are: a claim that meets rows
as well takes rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from operator import add

import msgspec

from tenure.model.group import UNLIMITED, GroupPolicy
from tenure.model.lease import ClaimRequest
from tenure.model.rate import Rate
from tenure.queueing import groups, turns
from tenure.queueing.grant import Together
from tenure.queueing.groups import GroupChange
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.selection import Selected, Selection, read_rows
from tenure.queueing.turns import InTurn, Sub
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace
from tenure.storage.keyspace import GROUP_READY, READY
from tenure.storage.records import EVENTS_A_ROW, GroupRecord, TurnRecord
from tenure.storage.segments.stored import SegmentShare, StoredSegment

#: Places that one transaction may move in vain.
_IN_VAIN = 500
#: Jobs of one group that are read at once, at most.
_MOST = 256
#: Where those stand that a claim has served, in the order of their last job.
_SERVED = 1 << 40
#: More jobs than any group takes; and a virtual time that none reaches.
_NO_LIMIT = 1 << 62
_NEVER = 1 << 80
_TIER, _READY_VISIBLE = 4, slice(5, 13)  # where a ready key holds its tier and the time
_VISIBLE, _VISIBLE_AND_JOB = slice(21, 29), slice(21, 45)  # where a group_ready key holds the time and the job
#: The tier of a job that has a group, in `ready`: by that in `group_ready`.
_GROUPED_TIERS = [bytes((tier + keyspace.GROUPED,)) for tier in range(10)]


class GroupSelection(Selection):
    """As `Selection`, of a queue that has groups."""

    #: Nothing was found, and places were moved: the caller commits, and looks again.
    again: bool = False
    #: Rows of `group_ready` without a job.
    group_orphans: list[bytes] = msgspec.field(default_factory=list)
    #: What the claim takes if that is stored together; then `jobs` is empty.
    together: Together | None = None


def select(
    unit: UnitOfWork, queue: RegisteredQueue, tiers: Sequence[bytes], until: bytes, request: ClaimRequest, inspect: int
) -> GroupSelection | None:
    """The jobs that a claim takes, by turns. None: no group has a turn, and the queue is as one without groups.

    `again` is set on the answer if it found nothing, but has moved places or cleared rows: the caller commits, and asks again.
    """
    if groups.bring_back(unit, queue):
        found = GroupSelection()
        found.again = True
        return found
    selecting = _Selecting(unit, queue, until, request, inspect, together=request.limit > 1 and not queue.meter)
    if not selecting.serve_all(tiers):
        return None
    if not selecting.taken_together():
        selecting.forget()
        selecting = _Selecting(unit, queue, until, request, inspect, together=False)
        selecting.serve_all(tiers)
    selecting.settle()
    selecting.forget()
    return selecting.found


class _Limits(msgspec.Struct, eq=False):
    """What a group may still take, in this claim, of all priorities together."""

    now_ms: int
    #: As they were before this claim: the jobs that wait, and when the bucket of the rate is full again.
    waiting: int
    full_before_ns: int
    rate: Rate | None
    #: How many jobs it may have leased besides those that are; and how many it may take, by its rate, too.
    slots: int
    most: int
    taken: int = 0

    def full_at_ns(self) -> int | None:
        """When its bucket is full again, after what was taken; None: nothing was taken by a rate."""
        if self.rate is None or not self.taken:
            return None
        return self.rate.take(self.full_before_ns, self.now_ms, self.taken)

    def opens_at_ms(self) -> int:
        full_at = self.full_at_ns()
        at = self.full_before_ns if full_at is None else full_at
        return self.now_ms if self.rate is None else max(self.now_ms + 1, self.rate.free_at_ms(at))


def _limits(policy: GroupPolicy, record: GroupRecord, now_ms: int) -> _Limits:
    _, waiting, leased, full_at_ns, _, _ = record
    slots = most = _NO_LIMIT if policy.max_leased is None else policy.max_leased - leased
    rate = policy.rate if isinstance(policy.rate, Rate) else None
    if rate is not None:
        most = min(slots, rate.free(full_at_ns, now_ms))
    return _Limits(now_ms, waiting, full_at_ns, rate, slots, most)


class _Member:
    """A group, or the jobs that have none, in the order of one priority."""

    #: None: it has no limits.
    limits: _Limits | None = None
    #: None: it is the jobs that have no group.
    change: GroupChange | None = None
    policy = UNLIMITED
    taken = 0
    #: How many jobs it reads next; and when the one behind those that were read is ready (None: there is none).
    _step = 1
    next_at: int | None = 0
    #: The segment that its next jobs are in (None: it reads rows), which of the claim's segments that is, and how many of
    #: its jobs are left to give.
    segment: StoredSegment | None = None
    share = 0
    left = 0
    #: Where its jobs are listed, and where a key there holds the time.
    _space, _visible = READY, _READY_VISIBLE

    def __init__(
        self, claim: _Selecting, tier: bytes, start: TurnRecord, change: GroupChange | None, record: GroupRecord | None
    ) -> None:
        """`start`: the place that it is served from; `change` and `record`: of a group."""
        self._claim, self.tier, self.start = claim, tier, start
        #: What one job adds to its virtual time.
        self.stride = turns.ONE_JOB
        #: Its place as it is stored.
        self.before: TurnRecord | None = start
        #: Jobs that were read, the next last.
        self.jobs: list[Selected] = []
        if change is None or record is None:
            self._begin, self._end = tier, tier + claim.until
            return
        queue, at = claim.queue, tier[_TIER]
        self.change = change
        self._space, self._visible = GROUP_READY, _VISIBLE
        self._begin = keyspace.group_tier(queue.number, change.group, at)
        self._end = keyspace.group_tier(queue.number, change.group, at + 1)
        self.policy = policy = queue.policy.of_group(change.name.decode())
        self.stride = round(turns.ONE_JOB / policy.weight)
        if policy.limited:
            self.limits = claim.limits_of(change.group, policy, record)

    def next(self) -> Selected | None:
        """Its next ready job."""
        jobs, claim = self.jobs, self._claim
        while not jobs:
            next_at = self.next_at
            if next_at is None or next_at > claim.now or claim.found.passed_over >= claim.inspect:
                return None
            self._read_on()
            jobs = self.jobs
        return jobs.pop()

    def next_segment(self) -> bool:
        """Go on to the segment of its next ready jobs. False: they are stored as rows."""
        if self._step > 1:
            return False  # it has read rows
        claim = self._claim
        segment = claim.unit.tx.next_together(self._space, self._begin, self._end, claim.limit)
        if segment is None or segment.state.visible_at_ms > claim.now:
            return False
        self.segment, self.left = segment, segment.count
        self.share = claim.begin_share(segment)
        self._begin = segment.before(self._space) + segment.job + b"\0"
        return True

    def next_ready(self) -> int | None:
        """When the next of the jobs that it did not give is ready; None: there is none."""
        if self.jobs:
            return self._claim.now
        if self.segment is not None and self._step == 1:
            if self.left:
                return self._claim.now
            keys = self._claim.keys(self._space, self._begin, self._end, 1)
            self.next_at = self._time(keys[0]) if keys else None
        return self.next_at

    def _read_on(self) -> None:
        """Read as many jobs as it was given so far, and one key more, which tells what is left."""
        claim, count, limits, visible = self._claim, self._step, self.limits, self._visible
        self._step = min(2 * count, _MOST)
        if limits is not None and limits.taken + count >= limits.slots:
            # It loses its place, whenever the job behind these is ready: nothing else has to be known of that.
            keys = claim.keys(self._space, self._begin, self._end, count)
            left = 0 if len(keys) == count < limits.waiting - limits.taken else None
        else:
            keys, left = claim.keys(self._space, self._begin, self._end, count + 1), None
            if len(keys) > count:
                left = self._time(keys.pop())
        while keys and keys[-1][visible] >= claim.until:
            left = self._time(keys.pop())
        self.next_at = left
        if not keys:
            return
        self._begin = keys[-1] + b"\0"
        if self.change is None:
            self.jobs = claim.read(keys)
        else:
            begin = self.tier[:_TIER] + _GROUPED_TIERS[self.tier[_TIER]]
            self.jobs = claim.read([begin + key[_VISIBLE_AND_JOB] for key in keys], self.change.group)
        self.jobs.reverse()

    def _time(self, key: bytes) -> int:
        return int.from_bytes(key[self._visible], "big")

    def place(self) -> TurnRecord | None:
        """Its place once the claim is done."""
        left = self.next_ready()
        if left is None:
            return None
        limits = self.limits
        if limits is not None and limits.taken >= limits.most:
            return None if limits.taken >= limits.slots else turns.parked(self.start, max(left, limits.opens_at_ms()))
        if left > self._claim.now:
            return turns.parked(self.start, left)
        return turns.served(self.start, self.taken, self.policy.weight)


def _sub_of_none(queue: int, tier: bytes) -> Sub:
    """The jobs without a group, among the groups of one priority."""
    return Sub(keyspace.group_turns(queue, tier[_TIER]), b"")


_Found = tuple[int, int, _Member]
"""A member that has had a job, or is new, in the heap: by its virtual time, then by its place among those of one time."""
_Part = tuple[int, int, int]
"""Jobs that one turn takes of a segment: which of the claim's segments, the first of its jobs, how many."""


def _in_a_row(member: _Member, at: int, heap: list[_Found], coming: tuple[int, bytes] | None, left: int) -> int:
    """How many jobs the member gets, from its virtual time on, before the next of the others has its turn."""
    then = heap[0][0] if heap else _NEVER
    if coming is not None and coming[0] < then:
        then = coming[0]
    ahead = (then - at + member.stride - 1) // member.stride
    return left if ahead > left else ahead if ahead > 1 else 1


class _Selecting:
    """One claim."""

    #: How many jobs were taken of segments; and whether rows come next, which cannot be leased with segments.
    _in_parts = 0
    _left_rows = False
    #: How many turns came to nothing.
    _in_vain = 0

    def __init__(
        self,
        unit: UnitOfWork,
        queue: RegisteredQueue,
        until: bytes,
        request: ClaimRequest,
        inspect: int,
        *,
        together: bool,
    ) -> None:
        """`together`: take segments, as far as they come before rows."""
        self.unit, self.queue, self.now, self.until, self.inspect = unit, queue, unit.now, until, inspect
        self.limit = request.limit
        self.found = GroupSelection()
        self.keys = unit.tx.reader.keys
        self._request = request
        self._members: list[_Member] = []
        self._together = together
        #: Segments of which something is taken, and what, turn by turn.
        self._segments: list[StoredSegment] = []
        self._parts: list[_Part] = []
        self._limits: dict[bytes, _Limits] = {}

    def begin_share(self, segment: StoredSegment) -> int:
        self._segments.append(segment)
        return len(self._segments) - 1

    def limits_of(self, group: bytes, policy: GroupPolicy, record: GroupRecord) -> _Limits:
        limits = self._limits.get(group)
        if limits is None:
            limits = self._limits[group] = _limits(policy, record, self.now)
        return limits

    def read(self, keys: list[bytes], group: bytes = b"") -> list[Selected]:
        """The jobs of these rows of `ready` that are good; the others are noted as passed over."""
        found = Selection()
        read_rows(self.unit, self.queue, None, keys, found, 1 << 30)
        if found.expired or found.orphans or found.damaged:
            self.found.expired += found.expired
            self.found.orphans += found.orphans
            self.found.damaged += found.damaged
            if group:
                at = keyspace.group_tier(self.queue.number, group, keys[0][_TIER] - keyspace.GROUPED)
                self.found.group_orphans += [at + key[_TIER + 1 :] for key in found.orphans]
        return found.jobs

    def serve_all(self, tiers: Sequence[bytes]) -> bool:
        """Take the jobs of all priorities. False: no group has a turn."""
        number = self.queue.number
        reader, orders, named = self.unit.tx.reader, [], False
        for tier in tiers:
            order = InTurn(reader, keyspace.group_turns(number, tier[_TIER]), snapshot=True)
            named = named or order.named
            orders.append((tier, order))
        if not named:
            return False
        for tier, order in orders:
            if not self.serve(tier, order):
                break
        return True

    def serve(self, tier: bytes, order: InTurn) -> bool:
        """Take the jobs of one priority. False: the claim has what it may have, or has looked at as much as it may."""
        heap = self._newcomer(tier, order)
        jobs, limit, most_bytes = self.found.jobs, self.limit, self._request.max_bytes
        while (left := limit - len(jobs) - self._in_parts) > 0:
            # At the same virtual time, one that was not served yet waits for no other: thousands may stand there.
            coming = order.peek()
            if coming is not None and (not heap or (coming[0], _SERVED) <= heap[0][:2]):
                at, found = coming[0], self._member(tier, coming[1])
                order.step()
                coming = order.peek() if self._together else None
                if found is None:
                    continue
                member = found
            elif heap:
                at, _, member = heappop(heap)
            else:
                return True
            if self._together and (count := self._take_part(member, _in_a_row(member, at, heap, coming, left))):
                heappush(heap, (at + count * member.stride, _SERVED + self._in_parts, member))
                continue
            limits = member.limits
            taken = member.next() if limits is None or limits.taken < limits.most else None
            if taken is None:
                self._in_vain += 1
                if self._in_vain > _IN_VAIN or self.found.passed_over >= self.inspect:
                    self.found.again = True
                    return False
                continue
            payload_bytes = taken[3].payload_bytes
            if most_bytes is not None and jobs and self.found.payload_bytes + payload_bytes > most_bytes:
                member.jobs.append(taken)
                return False
            if self._parts:
                self._left_rows = True
                return False
            self._together = False
            jobs.append(taken)
            self.found.payload_bytes += payload_bytes
            member.taken += 1
            if limits is not None:
                limits.taken += 1
            if left == 1:
                return False
            # At the same virtual time, those that this claim has not served yet come first.
            heappush(heap, (at + member.stride, _SERVED + len(jobs), member))
        return False

    def _take_part(self, member: _Member, most: int) -> int:
        """Take the member's next jobs of a segment. Returns how many; 0: it has none that are stored together, or no room."""
        limits = member.limits
        if limits is not None:
            most = min(most, limits.most - limits.taken)
        if most <= 0 or not (member.left or member.next_segment()):
            return 0
        left = member.left
        count = most if most < left else left
        member.left = left - count
        self._parts.append((member.share, -left, count))
        self._in_parts += count
        member.taken += count
        if limits is not None:
            limits.taken += count
        return count

    def taken_together(self) -> bool:
        """Give out what was taken of segments. False: it cannot be leased so, and rows have to be read instead."""
        parts, found = self._parts, self.found
        if not parts:
            return True
        counts = [segment.count for segment in self._segments]
        taken = [0] * len(counts)
        for share, begin, count in parts:
            taken[share] = counts[share] + begin + count
        shares = list(map(SegmentShare, self._segments, taken))
        tx, most = self.unit.tx, self._request.max_bytes
        fits = (
            not found.jobs
            and not found.passed_over
            and not self._left_rows
            and self._in_parts <= EVENTS_A_ROW
            and all(tx.shares_out(*each) for each in shares)
            and (most is None or sum([each.payload_bytes for each in shares]) <= most)
        )
        if fits:
            order = None
            if len(parts) > len(shares):
                # By segment: the index among all jobs that the one behind its last would have.
                ends = list(map(add, accumulate(taken, initial=0), counts))
                order = [
                    at
                    for share, begin, count in parts
                    for at in range(ends[share] + begin, ends[share] + begin + count)
                ]
            found.together = Together(shares, order)
        return fits

    def _newcomer(self, tier: bytes, order: InTurn) -> list[_Found]:
        """The jobs without a group, if there are any and they have no place yet: claims alone give them one."""
        if not self.keys(READY, tier, tier + self.until, 1, snapshot=True) or self._place_of_none(tier) is not None:
            return []
        first = order.peek()
        start = turns.arrived(0 if first is None else first[0], 1)
        member = _Member(self, tier, start, None, None)
        member.before = None
        self._members.append(member)
        return [(start.virtual_time, -1, member)]

    def _member(self, tier: bytes, group: bytes) -> _Member | None:
        """What stands in the order under this name. None: another host has moved it since."""
        change = record = None
        if group:
            change = self.unit.groups.stored(self.queue.number, group)
            record = None if change is None else change.before
            start = None if record is None else record.places.get(tier[_TIER])
        else:
            start = self._place_of_none(tier)
        if start is None:
            return None
        member = _Member(self, tier, start, change, record)
        self._members.append(member)
        return member

    def _place_of_none(self, tier: bytes) -> TurnRecord | None:
        """The place of the jobs without a group."""
        return turns.place(self.unit.tx, _sub_of_none(self.queue.number, tier))

    def forget(self) -> None:
        """Let go of the members, which refer to this claim: left so, they would wait for the garbage collector."""
        self._members.clear()

    def settle(self) -> None:
        """Write what becomes of the places."""
        unit = self.unit
        for member in self._members:
            after, change, limits = member.place(), member.change, member.limits
            if change is None:
                turns.move(unit.tx, _sub_of_none(self.queue.number, member.tier), member.before, after)
                continue
            tier = member.tier[_TIER]
            unit.groups.serve(change, tier, member.start, after)
            if limits is not None:
                if after is None and limits.taken >= limits.slots and member.next_ready() is not None:
                    change.lost_turns |= 1 << tier
                if limits.rate is not None and limits.taken:
                    change.full_at_ns = limits.full_at_ns()
        found = self.found
        cleared = found.expired or found.orphans or self._in_vain > _IN_VAIN
        found.again = found.again and not found.jobs and found.together is None and bool(cleared)
        if found.again:
            found.damaged.clear()  # met again by the step that follows
