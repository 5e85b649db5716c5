"""The turns of the store: tenants take turns, and so do the queues of each tenant.

A verb that makes jobs wait says so once for each queue (`UnitOfWork.has_work`), and the queue gets its place if it has none.
That costs a look at a dictionary: where this process alone writes, it remembers from when on each queue has a turn.
Claims of a queue by its name change nothing here; a claim from any queue clears what they left.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tenure.model.names import QueueName
from tenure.queueing import turns
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.turns import Status, Sub
from tenure.storage import keyspace
from tenure.storage.keyspace import Due
from tenure.storage.records import TurnRecord

if TYPE_CHECKING:
    from tenure.queueing.unit_of_work import UnitOfWork

#: Later than any moment.
NEVER = 1 << 62
#: Places that one transaction brings back.
_AT_ONCE = 200


class Offer(NamedTuple):
    """A queue that may be claimed from, from a moment on."""

    queue: RegisteredQueue
    at_ms: int
    #: What held it up (a pause, a limit) is gone; it has a job that it did not have before.
    lifted: bool = False
    has_work: bool = True

    def besides(self, other: Offer) -> Offer:
        """Both offers of one transaction."""
        return Offer(
            self.queue, min(self.at_ms, other.at_ms), self.lifted or other.lifted, self.has_work or other.has_work
        )


def queue_sub(queue: RegisteredQueue) -> Sub:
    scope = keyspace.queue_turns(queue.name.tenant)
    return Sub(scope, queue.prefix, (queue.number, keyspace.QUEUE_TURN))


def tenant_sub(scope: bytes) -> Sub:
    """A tenant, by the scope of its queues."""
    return Sub(keyspace.TENANT_TURNS, scope)


class QueueTurns:
    """What this process knows of the queues' places. Requires: the writer's lock."""

    def __init__(self, *, known: bool) -> None:
        self._known = known
        #: By queue number: from when on it has a turn. Of a blocked queue 0: whoever lifts the block brings it back.
        self.offered: dict[int, int] = {}
        self._blocked: set[int] = set()
        #: By name: until when a queue has nothing to claim, as a claim over several queues saw it.
        self.quiet: dict[QueueName, int] = {}
        #: Another object whenever another queue is quiet, or one of them no longer.
        self.quiet_version = object()
        #: When the first of them may have something.
        self._first_due = NEVER
        #: Claims look at the quiet queues without the writer's lock.
        self._quiet_lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point

    def is_quiet(self, name: QueueName, until_ms: int) -> None:
        """The queue has nothing to claim until then."""
        with self._quiet_lock:
            self.quiet[name] = until_ms
            self.quiet_version = object()
            self._first_due = min(self._first_due, until_ms)

    def is_quiet_no_more(self, name: QueueName) -> None:
        if self.quiet.pop(name, None) is not None:
            self.quiet_version = object()

    def wake_quiet(self, now_ms: int) -> None:
        """Those that may have something by now are quiet no more."""
        if self._first_due <= now_ms:
            with self._quiet_lock:
                times = list(self.quiet.items())
                for name, until_ms in times:
                    if until_ms <= now_ms:
                        self.is_quiet_no_more(name)
                self._first_due = min([until_ms for _, until_ms in times if until_ms > now_ms], default=NEVER)

    def forget(self) -> None:
        self.offered.clear()
        self._blocked.clear()
        self.quiet.clear()
        self.quiet_version = object()

    def may_be_blocked(self, queue: int) -> bool:
        # What was blocked before this process opened the store is not in its memory, and not in `offered` either.
        return queue in self._blocked or queue not in self.offered

    def learn(self, unit: UnitOfWork, queue: int, record: TurnRecord | None) -> None:
        """Remember a place once it is written."""

        def remember() -> None:
            self._blocked.discard(queue)
            if record is None:
                self.offered.pop(queue, None)
                return
            self.offered[queue] = record.at_ms
            if record.status == Status.BLOCKED:
                self._blocked.add(queue)

        if self._known:
            unit.tx.when_written(remember)

    def offer(self, unit: UnitOfWork, offers: Mapping[int, Offer]) -> None:
        """Give these queues a turn, each from a moment on, and their tenants with them."""
        tx = unit.tx
        moves: list[tuple[Sub, TurnRecord | None, TurnRecord]] = []
        tenants: set[bytes] = set()
        times: dict[bytes, int] = {}
        for queue, at_ms, lifted, has_work in offers.values():
            sub = queue_sub(queue)
            before = turns.place(tx, sub)
            if before is None and not has_work:
                continue  # it had no place, so that nothing held it up
            after = before
            begin = at_ms if before is None else turns.sooner(before, at_ms, unit.now, lifted)
            if begin is not None:
                after = _placed(unit, sub, before, begin, times, keyspace.queue_row(*queue.name))
            self.learn(unit, queue.number, after)
            if after is not None and after != before:
                moves.append((sub, before, after))
                if after.status == Status.ACTIVE:
                    tenants.add(sub.scope)
        for scope in tenants:
            sub = tenant_sub(scope)
            if turns.place(tx, sub) is None:
                moves.append((sub, None, turns.activated(turns.virtual_time(tx, sub.scope))))
        for sub, before, after in moves:
            turns.move(tx, sub, before, after)

    def bring_back(self, unit: UnitOfWork) -> bool:
        """Queues whose moment has come get their turn. True: there were some; the caller commits, and looks again."""
        tx = unit.tx
        keys = tx.keys(keyspace.DUE, keyspace.due_prefix(Due.TURN), keyspace.due_until(Due.TURN, unit.now), _AT_ONCE)
        for row in map(keyspace.split_due, keys):
            queue = unit.numbered(row.queue)
            if queue is not None and row.reference == keyspace.QUEUE_TURN:
                unit.offer(Offer(queue, unit.now))
        # Rows of places that were moved since are left over, and go with the others.
        tx.delete_many(keyspace.DUE, keys)
        return bool(keys)


def _placed(
    unit: UnitOfWork, sub: Sub, before: TurnRecord | None, at_ms: int, times: dict[bytes, int], name: bytes
) -> TurnRecord:
    if at_ms > unit.now:
        return turns.parked(before or TurnRecord(Status.PARKED, 0, 0, name), at_ms)
    if sub.scope not in times:
        times[sub.scope] = turns.virtual_time(unit.tx, sub.scope)
    return turns.activated(times[sub.scope], name)
