"""Groups inside a queue: which of their jobs wait, how many are leased, and which groups have a turn.

    a job that has a group      JOBS (its group), STATE (HAS_GROUP), READY (its own tiers), GROUP_READY (by group)
    a group that has jobs       GROUPS: counts, the bucket of its rate, the turns it lost at its limit
    … for each priority         TURNS: a place, if it has a job that claims may take now or later

The groups of one priority take turns (`turns`). A claim takes a place away in the transaction that leaves the group
without a job of that priority, or that fills it (`max_leased`); whoever makes a job wait, or lets one go, gives it back.
A group that comes anew or comes back starts behind what each of the others gets next (`turns.arrived`): it saves up
nothing, and one that always has a single job is served no more often than its share.

The verbs tell what happens to single jobs (`wait`, `take`, …). `GroupChanges` collects it, and writes each group once, at
the end of the transaction. Jobs without a group are nothing of this: `group_selection` lets them take part.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tenure.errors import Corrupt
from tenure.model.group import GroupPolicy
from tenure.model.rate import Rate
from tenure.queueing import turns
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.turns import Status, Sub
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import GROUP_READY, GROUPS, JOBS, TURNS
from tenure.storage.records import HAS_GROUP, GroupRecord, StateRecord, TurnRecord

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


def group_sub(queue: int, tier: int, group: bytes) -> Sub:
    """A group among those of one priority. `group` is empty for the jobs that have none."""
    return Sub(keyspace.group_turns(queue, tier), group, parked=(keyspace.parked_groups(queue), bytes((tier,)) + group))


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
    unit.tx.delete(GROUP_READY, keyspace.group_ready(queue, group, 9 - state.priority, state.visible_at_ms, job))
    change = unit.groups.of(queue, group, name)
    change.waiting -= 1
    change.leased += 1


def take_together(unit: UnitOfWork, queue: int, group: bytes, name: bytes, count: int) -> None:
    """Jobs of the group that are stored together, and waited, are leased."""
    change = unit.groups.of(queue, group, name)
    change.waiting -= count
    change.leased += count


def let_go_of(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord) -> None:
    """A job that has a group is no longer leased."""
    name = name_of(unit, queue, job, state)
    if name:
        unit.groups.of(queue, group_id(name), name).leased -= 1


def wait_again(unit: UnitOfWork, queue: RegisteredQueue, job: bytes, state: StateRecord) -> None:
    """A job that has a group waits again, as its state says."""
    name = name_of(unit, queue.number, job, state)
    if name:
        wait(unit, queue, job, state.priority, state.visible_at_ms, name)


def name_of(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord) -> bytes:
    """The name of a job's group; empty if it has none, or if its row is damaged: then `check` recounts the group."""
    if not state.flags & HAS_GROUP:
        return b""
    try:
        raw = unit.tx.get(JOBS, keyspace.of_queue(queue, job))
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


class GroupChange:
    """What one transaction changes about one group."""

    __slots__ = ("expected", "full_at_ns", "leased", "lost_turns", "name", "offers", "waiting")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.waiting = self.leased = 0
        #: By tier: from when on it has a job to give.
        self.offers: dict[int, int] = {}
        #: Tiers that will be among them.
        self.expected: set[int] = set()
        #: A bit for each tier whose place a claim took away because the group is at its limit.
        self.lost_turns = 0
        #: Of its rate's bucket, if a claim took from it.
        self.full_at_ns: int | None = None


class _Group(NamedTuple):
    """A group as it was read."""

    record: GroupRecord | None
    places: dict[int, TurnRecord | None]


class GroupChanges:
    """What one transaction changes about groups, by queue and group."""

    def __init__(self, unit: UnitOfWork) -> None:
        self._unit = unit
        self._queues: dict[int, RegisteredQueue] = {}
        self._changes: dict[tuple[int, bytes], GroupChange] = {}
        self._read: dict[tuple[int, bytes], _Group] = {}
        self._times: dict[bytes, int] = {}

    def of(self, queue: int, group: bytes, name: bytes) -> GroupChange:
        change = self._changes.get((queue, group))
        if change is None:
            change = self._changes[queue, group] = GroupChange(name)
        return change

    def waits(
        self, queue: RegisteredQueue, group: bytes, name: bytes, tier: int, visible_at_ms: int, count: int = 1
    ) -> None:
        """So many more jobs wait, the first from that moment on."""
        self._queues[queue.number] = queue
        change = self.of(queue.number, group, name)
        change.waiting += count
        self.offer(change, tier, visible_at_ms)

    def expect(self, queue: RegisteredQueue, jobs: Iterable[tuple[str, int]]) -> None:
        """Read the groups of jobs, each given by its group and priority, before the verb writes them."""
        self._queues[queue.number] = queue
        for name, priority in jobs:
            raw = name.encode()
            self.of(queue.number, group_id(raw), raw).expected.add(9 - priority)
        self.read()

    def know(self, queue: int, group: bytes, record: GroupRecord | None) -> None:
        """The group's row was read by a claim: it need not be read again."""
        self._read[queue, group] = _Group(record, {})

    @staticmethod
    def offer(change: GroupChange, tier: int, at_ms: int) -> None:
        change.offers[tier] = min(change.offers.get(tier, at_ms), at_ms)

    def read(self) -> None:
        """Read the groups that are changed, as far as they are not read yet."""
        tx = self._unit.tx
        missing = [at for at in self._changes if at not in self._read]
        rows = tx.get_many(GROUPS, [keyspace.of_queue(*at) for at in missing]) if missing else []
        for at, raw in zip(missing, rows, strict=True):
            self._read[at] = _Group(None if raw is None else records.decode_group(raw), {})
        for (queue, group), change in self._changes.items():
            record, places = self._read[queue, group]
            back = record is not None and record.at_limit and change.leased < 0
            if not (back or change.expected or change.offers):
                continue  # most claims: no place is given
            tiers = change.expected.union(change.offers)
            if back and record is not None:
                tiers |= set(tiers_of(record.at_limit))
            for tier in tiers - places.keys():
                sub = group_sub(queue, tier, group)
                places[tier] = turns.place(tx, sub)
                if sub.scope not in self._times:
                    self._times[sub.scope] = turns.virtual_time(tx, sub.scope)

    def finish(self) -> None:
        """Write the groups, and the places that they get. Called once, by `UnitOfWork.finish`."""
        self.read()
        for (queue, group), change in self._changes.items():
            known = self._queues.get(queue) or self._unit.numbered(queue)
            if known is not None:
                self._write(known, group, change, *self._read[queue, group])

    def _write(
        self,
        queue: RegisteredQueue,
        group: bytes,
        change: GroupChange,
        before: GroupRecord | None,
        places: dict[int, TurnRecord | None],
    ) -> None:
        unit = self._unit
        was = before or GroupRecord(0, 0, 0, 0, change.name)
        policy = queue.policy.of_group(change.name.decode())
        waiting, leased = max(0, was.waiting + change.waiting), max(0, was.leased + change.leased)
        at_limit = was.at_limit | change.lost_turns
        full_at = was.full_at_ns if change.full_at_ns is None else change.full_at_ns
        room = policy.max_leased is None or leased < policy.max_leased
        if room and at_limit and change.leased < 0:
            for tier in tiers_of(at_limit):
                self.offer(change, tier, unit.now)
            at_limit = 0
            unit.has_work(queue, unit.now)
            unit.woken[queue.name] = unit.woken.get(queue.name, 0) + 1
        opens = policy.rate.free_at_ms(full_at) if isinstance(policy.rate, Rate) and full_at else 0
        for tier, at_ms in change.offers.items():
            place = places[tier]
            if not room:
                at_limit |= (place is None) << tier
            elif place is None or turns.sooner(place, max(at_ms, opens), unit.now):
                self._place(group_sub(queue.number, tier, group), place, max(at_ms, opens), policy, change.name)
        self._save(queue.number, group, GroupRecord(at_limit, waiting, leased, full_at, change.name), before)

    def _place(self, sub: Sub, before: TurnRecord | None, at_ms: int, policy: GroupPolicy, name: bytes) -> None:
        if at_ms > self._unit.now:
            after = turns.parked(before or TurnRecord(Status.PARKED, 0, 0, name), at_ms)
        else:
            after = turns.arrived(self._times[sub.scope], policy.weight, name)
        turns.move(self._unit.tx, sub, before, after)

    def _save(self, queue: int, group: bytes, record: GroupRecord, before: GroupRecord | None) -> None:
        """Write the group's row. An idle group has none, unless its bucket has to be remembered until it is full."""
        tx, at = self._unit.tx, keyspace.of_queue(queue, group)
        if record.waiting or record.leased:
            if record != before:
                tx.put(GROUPS, at, records.encode_group(record))
        elif record.full_at_ns > self._unit.now * _MS:
            tx.put(GROUPS, at, records.encode_group(record._replace(at_limit=0)))
            forget_at = -(-record.full_at_ns // _MS)
            tx.put(TURNS, keyspace.turn(keyspace.parked_groups(queue), forget_at, bytes((FORGET,)) + group), b"")
        elif before is not None:
            tx.delete(GROUPS, at)


def tiers_of(bits: int) -> Iterable[int]:
    """The tiers of a row's `at_limit`, a bit each."""
    return _TIERS_OF[bits & _ALL_TIERS]


_ALL_TIERS = (1 << 10) - 1
_TIERS_OF = [[tier for tier in range(10) if bits >> tier & 1] for bits in range(_ALL_TIERS + 1)]


# ── time and policies ────────────────────────────────────────────────────────────────────────────────────────────────


def bring_back(unit: UnitOfWork, queue: RegisteredQueue) -> bool:
    """Groups of the queue whose moment has come get their turn. True: there were some; the caller commits, and looks again."""
    tx, scope = unit.tx, keyspace.parked_groups(queue.number)
    keys = tx.keys(TURNS, keyspace.turn_range(scope)[0], keyspace.turn_until(scope, unit.now), _AT_ONCE)
    if keys and (first := keyspace.split_turn(keys[0])[1])[0] == REVISE:
        _revise(unit, queue, first[1:])
        tx.delete(TURNS, keys[0])
        return True
    moves: list[tuple[Sub, TurnRecord, TurnRecord]] = []
    idle: list[bytes] = []
    times: dict[bytes, int] = {}
    for key in keys:
        at_ms, name = keyspace.split_turn(key)
        tier, group = name[0], name[1:]
        if tier == FORGET:
            idle += _idle(unit, queue.number, group)
            continue
        sub = group_sub(queue.number, tier, group)
        before = turns.place(tx, sub)
        if before is None or before.status != Status.PARKED or before.at_ms != at_ms:
            continue  # it was moved since
        if sub.scope not in times:
            times[sub.scope] = turns.virtual_time(tx, sub.scope)
        weight = queue.policy.of_group(before.name.decode()).weight
        moves.append((sub, before, turns.arrived(times[sub.scope], weight, before.name)))
    tx.delete_many(TURNS, keys)
    for move in moves:
        turns.move(tx, *move)
    tx.delete_many(GROUPS, idle)
    return bool(keys)


def _idle(unit: UnitOfWork, queue: int, group: bytes) -> list[bytes]:
    """The group's row, if nothing has to be remembered of it any more."""
    at = keyspace.of_queue(queue, group)
    raw = unit.tx.get(GROUPS, at)
    record = None if raw is None else records.decode_group(raw)
    used = record is None or record.waiting or record.leased or record.full_at_ns > unit.now * _MS
    return [] if used else [at]


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
    """Groups behind this one that were at a limit get their turns back: the next claim that finds one without room takes it again.

    What was taken by another rate says nothing: buckets start full.
    """
    number = queue.number
    begin, end = keyspace.queue_range(number)
    if after:
        begin = keyspace.of_queue(number, after) + b"\0"
    rows = unit.tx.scan(GROUPS, begin, end, _AT_ONCE)
    found = [(key, records.decode_group(raw)) for key, raw in rows]
    times = [turns.virtual_time(unit.tx, keyspace.group_turns(number, tier)) for tier in range(10)]
    for key, record in found:
        weight = queue.policy.of_group(record.name.decode()).weight
        for tier in tiers_of(record.at_limit):
            turns.move(
                unit.tx,
                group_sub(number, tier, key[4:]),
                None,
                turns.arrived(times[tier], weight, record.name),
            )
        if record.at_limit or record.full_at_ns:
            unit.tx.put(GROUPS, key, records.encode_group(record._replace(at_limit=0, full_at_ns=0)))
    if len(rows) == _AT_ONCE:
        unit.tx.put(TURNS, _revise_row(number, rows[-1][0][4:]), b"")


def forget(unit: UnitOfWork, queue: int) -> None:
    """Delete what is left of the groups of a queue that has no jobs."""
    unit.tx.delete_range(GROUPS, *keyspace.queue_range(queue))
    scopes = [keyspace.group_turns(queue, tier) for tier in range(10)]
    for scope in (*scopes, keyspace.parked_groups(queue)):
        unit.tx.delete_range(TURNS, *keyspace.turn_range(scope))
        unit.tx.delete_range(TURNS, *keyspace.turn_places(scope))
