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
from typing import NamedTuple

import msgspec

from tenure.model.group import UNLIMITED, GroupPolicy
from tenure.model.lease import ClaimRequest
from tenure.model.rate import Rate
from tenure.queueing import groups, turns
from tenure.queueing.grant import Together
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


class _Limits:
    """What a group may still take, in this claim, of all priorities together."""

    __slots__ = ("_full_at", "_now", "_rate", "_slots", "record", "taken")

    def __init__(self, policy: GroupPolicy, record: GroupRecord, now_ms: int) -> None:
        self.record = record
        self.taken = 0
        self._now = now_ms
        self._slots = None if policy.max_leased is None else policy.max_leased - record.leased
        self._rate = policy.rate if isinstance(policy.rate, Rate) else None
        self._full_at = record.full_at_ns

    @property
    def full(self) -> bool:
        """It has as many leased jobs as it may have."""
        return self._slots is not None and self.taken >= self._slots

    @property
    def room(self) -> bool:
        return not self.full and (self._rate is None or self.taken < self._rate.free(self._full_at, self._now))

    def fills(self, count: int) -> bool:
        """Whether it has as many leased jobs as it may have, once it takes so many more."""
        return self._slots is not None and self.taken + count >= self._slots

    def at_most(self, count: int) -> int:
        """How many of so many jobs it may still take."""
        if self._slots is not None:
            count = min(count, self._slots - self.taken)
        if self._rate is not None:
            count = min(count, self._rate.free(self._full_at, self._now) - self.taken)
        return max(0, count)

    def full_at_ns(self) -> int | None:
        """When its bucket is full again, after what was taken; None: nothing was taken by a rate."""
        if self._rate is None or not self.taken:
            return None
        return self._rate.take(self._full_at, self._now, self.taken)

    def opens_at_ms(self) -> int:
        full_at = self.full_at_ns()
        at = self._full_at if full_at is None else full_at
        return self._now if self._rate is None else max(self._now + 1, self._rate.free_at_ms(at))


class _Member:
    """A group, or the jobs that have none, in the order of one priority."""

    limits: _Limits | None = None
    policy = UNLIMITED
    name = b""
    taken = 0
    #: How many jobs it reads next; and when the one behind those that were read is ready (None: there is none).
    _step = 1
    next_at: int | None = 0
    #: The segment that its next jobs are in, and how many of them were given; None: it reads rows.
    _segment: StoredSegment | None = None
    _given = 0

    def __init__(
        self, claim: _Selecting, tier: bytes, start: TurnRecord, group: bytes = b"", record: GroupRecord | None = None
    ) -> None:
        """`start`: the place that it is served from; `record`: of a group."""
        self._claim, self.tier, self._start, self.group = claim, tier, start, group
        #: Its place as it is stored.
        self.before: TurnRecord | None = start
        #: Jobs that were read, the next last.
        self.jobs: list[Selected] = []
        if record is None:
            self._begin, self._end = tier, tier + claim.until
            return
        queue, at = claim.queue, tier[_TIER]
        self._begin = keyspace.group_tier(queue.number, group, at)
        self._end = keyspace.group_tier(queue.number, group, at + 1)
        self.name = name = record.name
        self.policy = policy = queue.policy.of_group(name.decode())
        if policy.limited:
            self.limits = claim.limits_of(group, policy, record)

    def next(self) -> Selected | None:
        """Its next ready job."""
        claim = self._claim
        while not self.jobs:
            if self.next_at is None or self.next_at > claim.now or claim.found.passed_over >= claim.inspect:
                return None
            self._read_on()
        return self.jobs.pop()

    def next_part(self, most: int) -> SegmentShare | None:
        """The segment of its next ready jobs, and how many of them it gives now. None: they are stored as rows."""
        segment, claim = self._segment, self._claim
        if segment is None or self._given == segment.count:
            if self._step > 1:
                return None  # it has read rows
            space = GROUP_READY if self.name else READY
            segment = claim.unit.tx.next_together(space, self._begin, self._end, claim.limit)
            if segment is None or segment.state.visible_at_ms > claim.now:
                return None
            self._segment, self._given = segment, 0
            self._begin = segment.before(space) + segment.job + b"\0"
        count = min(most, segment.count - self._given)
        self._given += count
        return SegmentShare(segment, count)

    def next_ready(self) -> int | None:
        """When the next of the jobs that it did not give is ready; None: there is none."""
        if self.jobs:
            return self._claim.now
        if self._segment is not None and self._step == 1:
            if self._given < self._segment.count:
                return self._claim.now
            keys = self._claim.unit.tx.reader.keys(GROUP_READY if self.name else READY, self._begin, self._end, 1)
            self.next_at = self._time(keys[0]) if keys else None
        return self.next_at

    def _read_on(self) -> None:
        """Read as many jobs as it was given so far, and one key more, which tells what is left."""
        claim, count, limits = self._claim, self._step, self.limits
        self._step = min(2 * count, _MOST)
        space = GROUP_READY if self.name else READY
        if limits is not None and limits.fills(count):
            # It loses its place, whenever the job behind these is ready: nothing else has to be known of that.
            rows = claim.unit.tx.reader.keys(space, self._begin, self._end, count)
            left = 0 if len(rows) == count < limits.record.waiting - limits.taken else None
        else:
            rows, left = claim.unit.tx.reader.keys(space, self._begin, self._end, count + 1), None
        visible, until = _VISIBLE if self.name else _READY_VISIBLE, claim.until
        keys = rows[:count]
        if keys and keys[-1][visible] >= until:
            keys = [key for key in keys if key[visible] < until]
        self.next_at = self._time(rows[len(keys)]) if len(keys) < len(rows) else left
        if not keys:
            return
        self._begin = keys[-1] + b"\0"
        self.jobs = claim.read(list(map(self.ready_key, keys)), self.group) if self.name else claim.read(keys)
        self.jobs.reverse()

    def _time(self, key: bytes) -> int:
        return int.from_bytes(key[_VISIBLE if self.name else _READY_VISIBLE], "big")

    def ready_key(self, key: bytes) -> bytes:
        """The row of `ready` that goes with one of `group_ready`."""
        tier = self.tier
        return tier[:_TIER] + _GROUPED_TIERS[tier[_TIER]] + key[_VISIBLE_AND_JOB]

    def place(self) -> TurnRecord | None:
        """Its place once the claim is done."""
        left = self.next_ready()
        if left is None:
            return None
        limits = self.limits
        if limits is not None:
            if limits.full:
                return None
            if not limits.room:
                return turns.parked(self._start, max(left, limits.opens_at_ms()))
        if left > self._claim.now:
            return turns.parked(self._start, left)
        return turns.served(self._start, self.taken, self.policy.weight)


def _sub_of_none(queue: int, tier: bytes) -> Sub:
    """The jobs without a group, among the groups of one priority."""
    return Sub(keyspace.group_turns(queue, tier[_TIER]), b"")


class _Found(NamedTuple):
    """A member that has had a job, or is new, in the heap: by its virtual time, then by its place among those of one time."""

    virtual_time: int
    place: int
    member: _Member


def _in_a_row(member: _Member, at: int, heap: list[_Found], coming: tuple[int, bytes] | None, left: int) -> int:
    """How many jobs the member gets, from its virtual time on, before the next of the others has its turn."""
    if heap or coming is not None:
        then = min([found.virtual_time for found in heap[:1]] + ([] if coming is None else [coming[0]]))
        left = min(left, max(1, -((at - then) // round(turns.ONE_JOB / member.policy.weight))))
    return left


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
        self._request = request
        self._members: list[_Member] = []
        self._together = together
        #: What was taken of segments, turn by turn.
        self._parts: list[SegmentShare] = []
        self._limits: dict[bytes, _Limits] = {}

    def limits_of(self, group: bytes, policy: GroupPolicy, record: GroupRecord) -> _Limits:
        limits = self._limits.get(group)
        if limits is None:
            limits = self._limits[group] = _Limits(policy, record, self.now)
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
        jobs, limit = self.found.jobs, self.limit
        while (left := limit - len(jobs) - self._in_parts) > 0:
            # At the same virtual time, one that was not served yet waits for no other: thousands may stand there.
            coming = order.peek()
            if coming is not None and (not heap or (coming[0], _SERVED) <= heap[0][:2]):
                order.step()
                at, member = coming[0], self._member(tier, coming[1])
                if member is None:
                    continue
            elif heap:
                at, _, member = heappop(heap)
            else:
                return True
            if self._together and (count := self._take_part(member, _in_a_row(member, at, heap, order.peek(), left))):
                at += count * round(turns.ONE_JOB / member.policy.weight)
                heappush(heap, _Found(at, _SERVED + self._in_parts, member))
                continue
            taken = member.next() if member.limits is None or member.limits.room else None
            if taken is None:
                self._in_vain += 1
                if self._in_vain > _IN_VAIN or self.found.passed_over >= self.inspect:
                    self.found.again = True
                    return False
                continue
            if self._too_large(taken):
                member.jobs.append(taken)
                return False
            if self._parts:
                self._left_rows = True
                return False
            self._together = False
            jobs.append(taken)
            _, _, _, record = taken
            self.found.payload_bytes += record.payload_bytes
            member.taken += 1
            if member.limits is not None:
                member.limits.taken += 1
            if left == 1:
                return False
            # At the same virtual time, those that this claim has not served yet come first.
            heappush(heap, _Found(at + round(turns.ONE_JOB / member.policy.weight), _SERVED + len(jobs), member))
        return False

    def _take_part(self, member: _Member, most: int) -> int:
        """Take the member's next jobs of a segment. Returns how many; 0: it has none that are stored together, or no room."""
        limits = member.limits
        most = most if limits is None else limits.at_most(most)
        part = member.next_part(most) if most else None
        if part is None:
            return 0
        self._parts.append(part)
        self._in_parts += part.taken
        member.taken += part.taken
        if limits is not None:
            limits.taken += part.taken
        return part.taken

    def taken_together(self) -> bool:
        """Give out what was taken of segments. False: it cannot be leased so, and rows have to be read instead."""
        parts, found = self._parts, self.found
        if not parts:
            return True
        shares: dict[bytes, SegmentShare] = {}
        #: Of each part: its segment, and which of the segment's jobs it begins with.
        begins: list[tuple[bytes, int]] = []
        for segment, count in parts:
            before = shares[segment.key].taken if segment.key in shares else 0
            begins.append((segment.key, before))
            shares[segment.key] = SegmentShare(segment, before + count)
        tx, most = self.unit.tx, self._request.max_bytes
        fits = (
            not found.jobs
            and not found.passed_over
            and not self._left_rows
            and self._in_parts <= EVENTS_A_ROW
            and all(tx.shares_out(*share) for share in shares.values())
            and (most is None or sum([share.payload_bytes for share in shares.values()]) <= most)
        )
        if fits:
            order = None
            if len(parts) > len(shares):
                offsets = dict(zip(shares, accumulate([s.taken for s in shares.values()], initial=0), strict=False))
                order = [
                    at
                    for (key, begin), (_, count) in zip(begins, parts, strict=True)
                    for at in range(offsets[key] + begin, offsets[key] + begin + count)
                ]
            found.together = Together(list(shares.values()), order)
        return fits

    def _too_large(self, job: Selected) -> bool:
        most, (_, _, _, record) = self._request.max_bytes, job
        return most is not None and bool(self.found.jobs) and self.found.payload_bytes + record.payload_bytes > most

    def _newcomer(self, tier: bytes, order: InTurn) -> list[_Found]:
        """The jobs without a group, if there are any and they have no place yet: claims alone give them one."""
        if (
            not self.unit.tx.reader.keys(READY, tier, tier + self.until, 1, snapshot=True)
            or self._place_of_none(tier) is not None
        ):
            return []
        first = order.peek()
        start = turns.arrived(0 if first is None else first[0], 1)
        member = _Member(self, tier, start)
        member.before = None
        self._members.append(member)
        return [_Found(start.virtual_time, -1, member)]

    def _member(self, tier: bytes, group: bytes) -> _Member | None:
        """What stands in the order under this name. None: another host has moved it since."""
        if group:
            record = self.unit.groups.record(self.queue.number, group)
            start = None if record is None else record.places.get(tier[_TIER])
        else:
            record, start = None, self._place_of_none(tier)
        if start is None:
            return None
        member = _Member(self, tier, start, group, record)
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
        unit, number = self.unit, self.queue.number
        for member in self._members:
            after, tier = member.place(), member.tier
            if not member.name:
                turns.move(unit.tx, _sub_of_none(number, tier), member.before, after)
                continue
            change = unit.groups.serve(number, tier[_TIER], member.group, member.name, after)
            limits = member.limits
            if limits is not None:
                if after is None and limits.full and member.next_ready() is not None:
                    change.lost_turns |= 1 << tier[_TIER]
                full_at = limits.full_at_ns()
                if full_at is not None:
                    change.full_at_ns = full_at
        found = self.found
        cleared = found.expired or found.orphans or self._in_vain > _IN_VAIN
        found.again = found.again and not found.jobs and found.together is None and bool(cleared)
        if found.again:
            found.damaged.clear()  # met again by the step that follows
