"""Groups inside a queue: which of their jobs wait, how many are leased, and which groups have a turn.

    a job that has a group      JOBS (its group), STATE (HAS_GROUP), READY (its own tiers), GROUP_READY (by group)
    a group that has jobs       GROUPS: counts, the bucket of its rate, the turns it lost at its limit
    … for each priority         its place, there, if it has a job that claims may take now or later; TURNS: its row
                                in the order of turns, or, until it has a job, in that of time

The groups of one priority take turns (`turns`). A claim takes a place away in the transaction that leaves the group
without a job of that priority, or that fills it (`max_leased`); whoever makes a job wait, or lets one go, gives it back.
A group that comes anew or comes back starts behind what each of the others gets next (`turns.arrived`): it saves up
nothing, and one that always has a single job is served no more often than its share.

The verbs tell what happens to single jobs (`wait`, `take`, …). `GroupChanges` collects it, and writes each group once, at
the end of the transaction. Jobs without a group are nothing of this: `group_selection` lets them take part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from tenure.errors import Corrupt
from tenure.model.rate import Rate
from tenure.queueing import turns
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.turns import ACTIVE, PARKED
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, get_each
from tenure.storage.keyspace import GROUP_READY, GROUPS, JOBS, TURNS
from tenure.storage.records import NO_PLACES, GroupRecord, StateRecord, TurnRecord, new_tuple

if TYPE_CHECKING:
    from tenure.queueing.unit_of_work import UnitOfWork

#: In place of a tier: the row of a group that is idle, to be forgotten once its rate's bucket is full again; and, after a
#: change of the policy, the group behind which the others have to be looked at.
FORGET, REVISE = 255, 254
#: Places that one transaction brings back.
_AT_ONCE = 200
_MS = 1_000_000


@lru_cache(20_000)
def group_id(name: bytes) -> bytes:
    """What stands for a group in keys."""
    return keyspace.digest(name)


def order_row(queue: int, tier: int, group: bytes, place: TurnRecord) -> bytes:
    """The row of `turns` that serves a group's place: in the order of turns, or, while it is parked, in that of time."""
    if place.status == ACTIVE:
        return keyspace.turn(keyspace.group_turns(queue, tier), place.virtual_time, group)
    return keyspace.turn(keyspace.parked_groups(queue), place.at_ms, bytes((tier,)) + group)


# ── what verbs tell ──────────────────────────────────────────────────────────────────────────────────────────────────


def wait(unit: UnitOfWork, queue: RegisteredQueue, job: bytes, priority: int, visible_at_ms: int, name: bytes) -> None:
    """A job of the group waits from that moment on: write its row, and see that the group has a turn."""
    group, tier = group_id(name), 9 - priority
    unit.tx.put(GROUP_READY, keyspace.group_ready(queue.number, group, tier, visible_at_ms, job), b"")
    unit.groups.waits(queue, group, name, tier, visible_at_ms)


def wait_no_more(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord, name: bytes) -> None:
    """A job of the group that waited is removed."""
    group = group_id(name)
    unit.tx.delete(GROUP_READY, keyspace.group_ready(queue, group, 9 - state.priority, state.visible_at_ms, job))
    unit.groups.of(queue, group, name).waiting -= 1


def take(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord, name: bytes) -> None:
    """A job of the group that waited is leased."""
    group = group_id(name)
    key = keyspace.group_ready(queue, group, 9 - state.priority, state.visible_at_ms, job)
    unit.tx.writes.append((GROUP_READY, key, None))
    change = unit.groups.of(queue, group, name)
    change.waiting -= 1
    change.leased += 1
    unit.core.group_rows.claimed(job, name)


def take_together(unit: UnitOfWork, queue: int, group: bytes, name: bytes, count: int) -> None:
    """Jobs of the group that are stored together, and waited, are leased."""
    change = unit.groups.of(queue, group, name)
    change.waiting -= count
    change.leased += count


def let_go_of(unit: UnitOfWork, queue: int, job: bytes, registered: RegisteredQueue | None = None) -> None:
    """A job that has a group is no longer leased. `registered`: its queue, if the caller knows it."""
    name = name_of(unit, queue, job)
    if name:
        if registered is not None:
            unit.groups.queues[queue] = registered
        unit.groups.of(queue, group_id(name), name).leased -= 1


def wait_again(unit: UnitOfWork, queue: RegisteredQueue, job: bytes, state: StateRecord) -> None:
    """A job that has a group waits again, as its state says."""
    name = name_of(unit, queue.number, job)
    if name:
        wait(unit, queue, job, state.priority, state.visible_at_ms, name)


def name_of(unit: UnitOfWork, queue: int, job: bytes) -> bytes:
    """The name of the group of a job that has one; empty if its row is damaged: then `check` recounts the group."""
    known = unit.core.group_rows.of_claimed(job)
    if known is not None:
        return known
    try:
        raw = unit.tx.reader.get(JOBS, keyspace.of_queue(queue, job))
        return b"" if raw is None else records.job_group(raw, job)
    except Corrupt:
        return b""


def expect(unit: UnitOfWork, queue: RegisteredQueue, jobs: Iterable[tuple[str, int]]) -> RegisteredQueue:
    """Jobs of these groups and priorities are about to be put into a queue: read their groups before anything is written.

    Returns the queue, marked as one that has groups.
    """
    marked = make_grouped(unit, queue)
    unit.groups.expect(marked, jobs)
    return marked


def make_grouped(unit: UnitOfWork, queue: RegisteredQueue) -> RegisteredQueue:
    """Note that a queue has groups, with its first job that has one."""
    return queue if queue.grouped else unit.save_queue(queue.record(grouped=True))


# ── one transaction's changes ────────────────────────────────────────────────────────────────────────────────────────


class GroupChange(msgspec.Struct, eq=False):
    """What one transaction changes about one group."""

    queue: int
    group: bytes
    name: bytes
    #: Its row as it is stored, once that is read.
    before: GroupRecord | None = None
    is_read: bool = False
    #: Its row is damaged: nothing is written of it until `check` has counted its jobs again.
    damage: Corrupt | None = None
    waiting: int = 0
    leased: int = 0
    #: By tier: from when on it has a job to give.
    offers: dict[int, int] = {}
    #: Tiers that will be among them.
    expected: set[int] = set()
    #: By tier: its place after a claim has served it, None if it lost it; the claim has changed its row in the order.
    moved: dict[int, TurnRecord | None] | None = None
    #: A bit for each tier whose place a claim took away because the group is at its limit.
    lost_turns: int = 0
    #: Of its rate's bucket, if a claim took from it.
    full_at_ns: int | None = None

    def offer(self, tier: int, at_ms: int) -> None:
        self.offers[tier] = min(self.offers.get(tier, at_ms), at_ms)


class GroupChanges:
    """What one transaction changes about groups, by queue and group."""

    def __init__(self, unit: UnitOfWork) -> None:
        self._unit = unit
        #: Those that are known by now, by number.
        self.queues: dict[int, RegisteredQueue] = {}
        self._changes: dict[tuple[int, bytes], GroupChange] = {}
        #: Virtual times of scopes: by queue and tier.
        self._times: dict[tuple[int, int], int] = {}

    def of(self, queue: int, group: bytes, name: bytes) -> GroupChange:
        change = self._changes.get((queue, group))
        if change is None:
            change = self._changes[queue, group] = GroupChange(queue, group, name)
        return change

    def waits(
        self, queue: RegisteredQueue, group: bytes, name: bytes, tier: int, visible_at_ms: int, count: int = 1
    ) -> None:
        """So many more jobs wait, the first from that moment on."""
        self.queues[queue.number] = queue
        change = self.of(queue.number, group, name)
        change.waiting += count
        change.offer(tier, visible_at_ms)

    def expect(self, queue: RegisteredQueue, jobs: Iterable[tuple[str, int]]) -> None:
        """Read the groups of jobs, each given by its group and priority, before the verb writes them. Raises Corrupt."""
        self.queues[queue.number] = queue
        for name, priority in jobs:
            raw = name.encode()
            self.of(queue.number, group_id(raw), raw).expected.add(9 - priority)
        self.read()
        for change in self._changes.values():
            if change.damage is not None:
                raise change.damage

    def stored(self, queue: int, group: bytes) -> GroupChange | None:
        """The change of a group, with its row, which is read once a transaction; None: there is no row."""
        change = self._changes.get((queue, group))
        if change is None or not change.is_read:
            key = keyspace.of_queue(queue, group)
            record = self._unit.core.group_rows.decoded(key, self._unit.tx.reader.get(GROUPS, key))
            if record is None:
                return None
            if change is None:
                change = self._changes[queue, group] = GroupChange(queue, group, record.name)
            change.before, change.is_read = record, True
        return None if change.before is None else change

    def time(self, queue: int, tier: int) -> int:
        """The virtual time of the groups of a priority, as it was before this transaction."""
        found = self._times.get((queue, tier))
        if found is None:
            found = self._times[queue, tier] = turns.virtual_time(
                self._unit.tx.reader, keyspace.group_turns(queue, tier)
            )
        return found

    def read(self) -> None:
        """Read the groups that are changed, as far as they are not read yet, and what their places depend on."""
        changes = self._changes.values()
        missing = [change for change in changes if not change.is_read]
        if missing:
            keys = [keyspace.of_queue(change.queue, change.group) for change in missing]
            decoded, rows = self._unit.core.group_rows.decoded, get_each(self._unit.tx.reader, GROUPS, keys)
            for change, key, raw in zip(missing, keys, rows, strict=True):
                change.is_read = True
                try:
                    if isinstance(raw, Corrupt):
                        raise raw
                    change.before = decoded(key, raw)
                except Corrupt as exc:
                    change.damage = exc
        for change in changes:
            for tier in change.expected or change.offers:
                self.time(change.queue, tier)
            if change.leased < 0 and (before := change.before) is not None and before.at_limit:
                for tier in tiers_of(before.at_limit):
                    self.time(change.queue, tier)

    def finish(self) -> None:
        """Write the groups, and the places that they get. Called once, by `UnitOfWork.finish`."""
        self.read()
        for change in self._changes.values():
            if change.damage is None:
                self._write(change)

    def _write(self, change: GroupChange) -> None:
        queue, group, offers = change.queue, change.group, change.offers
        at_limit, waiting, leased, full_at, name, places = change.before or (0, 0, 0, 0, change.name, NO_PLACES)
        waiting, leased, at_limit = waiting + change.waiting, leased + change.leased, at_limit | change.lost_turns
        if change.moved is not None:
            places = _moved(places, change.moved)
        if change.full_at_ns is not None:
            full_at = change.full_at_ns
        if waiting <= 0:
            waiting = at_limit = 0
            for tier, place in places.items():
                self._unit.tx.delete(TURNS, order_row(queue, tier, group, place))
            places = NO_PLACES
        if leased < 0:
            leased = 0
        if offers or (at_limit and change.leased < 0):
            known = self.queues.get(queue) or self._unit.numbered(queue)
            if known is not None:  # or else its row is lost, until `check` makes it again
                at_limit, places = self._placed(known, change, at_limit, leased, full_at, places)
        self._save(change, new_tuple(GroupRecord, (at_limit, waiting, leased, full_at, name, places)))

    def _placed(
        self,
        queue: RegisteredQueue,
        change: GroupChange,
        at_limit: int,
        leased: int,
        full_at_ns: int,
        places: Mapping[int, TurnRecord],
    ) -> tuple[int, Mapping[int, TurnRecord]]:
        """Give the group the places that it is to have: returns the turns that it cannot have yet, and its places."""
        unit, offers = self._unit, change.offers
        policy, now = queue.policy.of_group(change.name.decode()), unit.now
        if policy.max_leased is not None and leased >= policy.max_leased:
            for tier in offers:
                at_limit |= (tier not in places) << tier
            return at_limit, places
        if at_limit and change.leased < 0:
            for tier in tiers_of(at_limit):
                offers[tier] = now
            at_limit = 0
            unit.has_work(queue, now)
            unit.woken[queue.name] = unit.woken.get(queue.name, 0) + 1
        opens = policy.rate.free_at_ms(full_at_ns) if full_at_ns and isinstance(policy.rate, Rate) else 0
        given = dict(places)
        for tier, at_ms in offers.items():
            place = given.get(tier)
            begin = max(at_ms, opens) if place is None else turns.sooner(place, max(at_ms, opens), now)
            if begin is None:
                continue
            if begin > now:
                after = TurnRecord(PARKED, begin, 0)
            else:
                after = turns.arrived(self.time(queue.number, tier), policy.weight)
            self._reorder(queue.number, tier, change.group, place, after)
            given[tier] = after
        return at_limit, given

    def _reorder(
        self, queue: int, tier: int, group: bytes, before: TurnRecord | None, after: TurnRecord | None
    ) -> None:
        writes = self._unit.tx.writes
        if before is not None:
            writes.append((TURNS, order_row(queue, tier, group, before), None))
        if after is not None:
            writes.append((TURNS, order_row(queue, tier, group, after), b""))

    def serve(self, change: GroupChange, tier: int, before: TurnRecord, after: TurnRecord | None) -> None:
        """A claim has served the group's place of this tier, or taken it away (None)."""
        if before != after:
            self._reorder(change.queue, tier, change.group, before, after)
            if change.moved is None:
                change.moved = {}
            change.moved[tier] = after

    def _save(self, change: GroupChange, record: GroupRecord) -> None:
        """Write the group's row. An idle group has none, unless its bucket has to be remembered until it is full."""
        before = change.before
        if record == before:
            return
        tx, at = self._unit.tx, keyspace.of_queue(change.queue, change.group)
        if record.waiting or record.leased:
            raw = records.encode_group(record)
            tx.writes.append((GROUPS, at, raw))
            self._unit.core.group_rows.learn(at, raw, record)
        elif record.full_at_ns > self._unit.now * _MS:
            tx.put(GROUPS, at, records.encode_group(record))
            forget_at = -(-record.full_at_ns // _MS)
            scope = keyspace.parked_groups(change.queue)
            tx.put(TURNS, keyspace.turn(scope, forget_at, bytes((FORGET,)) + change.group), b"")
        elif before is not None:
            tx.delete(GROUPS, at)


def _moved(places: Mapping[int, TurnRecord], moved: Mapping[int, TurnRecord | None]) -> Mapping[int, TurnRecord]:
    """The places of a group after these of its tiers were moved, or taken away (None)."""
    left = dict(places)
    for tier, place in moved.items():
        if place is None:
            left.pop(tier, None)
        else:
            left[tier] = place
    return left


def tiers_of(bits: int) -> Iterable[int]:
    """The tiers of a row's `at_limit`, a bit each."""
    return _TIERS_OF[bits & _ALL_TIERS]


_ALL_TIERS = (1 << 10) - 1
_TIERS_OF = [[tier for tier in range(10) if bits >> tier & 1] for bits in range(_ALL_TIERS + 1)]


# ── time and policies ────────────────────────────────────────────────────────────────────────────────────────────────


def bring_back(unit: UnitOfWork, queue: RegisteredQueue) -> bool:
    """Groups of the queue whose moment has come get their turn. True: there were some; the caller commits, and looks again."""
    tx, number = unit.tx, queue.number
    scope = keyspace.parked_groups(number)
    keys = tx.reader.keys(TURNS, keyspace.turn_range(scope)[0], keyspace.turn_until(scope, unit.now), _AT_ONCE)
    if not keys:
        return False
    if (first := keyspace.split_turn(keys[0])[1])[0] == REVISE:
        _revise(unit, queue, first[1:])
        tx.delete(TURNS, keys[0])
        return True
    changes = unit.groups
    for key in keys:
        at_ms, name = keyspace.split_turn(key)
        tier, group = name[0], name[1:]
        try:
            change = changes.stored(number, group)
        except Corrupt:
            tx.delete(TURNS, key)  # the repair of the group's row gives it its turns
            continue
        record = None if change is None else change.before
        before = None if record is None else record.places.get(tier)
        if tier == FORGET:
            tx.delete(TURNS, key)
            tx.delete_many(GROUPS, _idle(unit, number, group, record))
        elif change is None or before is None or before.status != PARKED or before.at_ms != at_ms:
            tx.delete(TURNS, key)  # it was moved since
        else:
            weight = queue.policy.of_group(change.name.decode()).weight
            changes.serve(change, tier, before, turns.arrived(changes.time(number, tier), weight))
    return True


def _idle(unit: UnitOfWork, queue: int, group: bytes, record: GroupRecord | None) -> list[bytes]:
    """The key of the group's row, if nothing has to be remembered of it any more."""
    used = record is None or record.waiting or record.leased or record.full_at_ns > unit.now * _MS
    return [] if used else [keyspace.of_queue(queue, group)]


def next_turn(reader: Reader, queue: RegisteredQueue) -> int | None:
    """When a group of the queue has a turn: 0 if one has, else the first moment of those that wait for one; None: none does."""
    for tier in range(10):
        begin, end = keyspace.turn_range(keyspace.group_turns(queue.number, tier))
        if any(keyspace.split_turn(key)[1] for key in reader.keys(TURNS, begin, end, 2, snapshot=True)):
            return 0
    parked = reader.keys(TURNS, *keyspace.turn_range(keyspace.parked_groups(queue.number)), 1, snapshot=True)
    return keyspace.split_turn(parked[0])[0] if parked else None


def policy_changed(unit: UnitOfWork, queue: RegisteredQueue) -> None:
    """See that every group is looked at again: by the next claims, some in each transaction (`_revise`)."""
    if unit.tx.keys(GROUPS, *keyspace.queue_range(queue.number), 1):
        unit.tx.put(TURNS, _revise_row(queue.number, b""), b"")
        unit.has_work(queue, unit.now)


def _revise_row(queue: int, after: bytes) -> bytes:
    return keyspace.turn(keyspace.parked_groups(queue), 0, bytes((REVISE,)) + after)


def _revise(unit: UnitOfWork, queue: RegisteredQueue, after: bytes) -> None:
    """Groups behind this one get the places that the new policy gives them; the next claim that finds one without room, or
    without a ready job, takes its place again.

    What was taken by another rate says nothing: buckets start full. Nor does a weight that was less: what a group was given
    by it counts as one job of now.
    """
    number = queue.number
    begin, end = keyspace.queue_range(number)
    if after:
        begin = keyspace.of_queue(number, after) + b"\0"
    rows = unit.tx.scan(GROUPS, begin, end, _AT_ONCE)
    for key, raw in rows:
        try:
            record = records.decode_group(raw)
        except Corrupt:
            continue  # the repair of a damaged row gives its group its turns
        weight, places = queue.policy.of_group(record.name.decode()).weight, dict(record.places)
        limited = set(tiers_of(record.at_limit))
        for tier in {*places, *limited}:
            before, arrived = places.get(tier), turns.arrived(unit.groups.time(number, tier), weight)
            if before is not None:
                if before.status == PARKED and not record.full_at_ns and tier not in limited:
                    continue  # it is no limit that it waits for
                if before.status == ACTIVE and before.virtual_time <= arrived.virtual_time:
                    continue
                unit.tx.delete(TURNS, order_row(number, tier, key[4:], before))
            places[tier] = arrived
            unit.tx.put(TURNS, order_row(number, tier, key[4:], arrived), b"")
        changed = record._replace(at_limit=0, full_at_ns=0, places=places)
        if changed != record:
            unit.tx.put(GROUPS, key, records.encode_group(changed))
    if len(rows) == _AT_ONCE:
        unit.tx.put(TURNS, _revise_row(number, rows[-1][0][4:]), b"")


def forget(unit: UnitOfWork, queue: int) -> None:
    """Delete what is left of the groups of a queue that has no jobs."""
    unit.tx.delete_range(GROUPS, *keyspace.queue_range(queue))
    scopes = [keyspace.group_turns(queue, tier) for tier in range(10)]
    for scope in (*scopes, keyspace.parked_groups(queue)):
        unit.tx.delete_range(TURNS, *keyspace.turn_range(scope))
        unit.tx.delete_range(TURNS, *keyspace.turn_places(scope))
