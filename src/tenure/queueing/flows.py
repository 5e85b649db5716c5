"""Jobs that wait for jobs: what the end of a parent means for its children, in the transaction that ends it.

    parent ends     children   one row a child, read by the parent's end, kept while the parent is
         │
         ▼
    child blocked   blocked    how many of its parents have not ended: one row, however many they are
         │          parents    one row a parent, in their order: for whoever runs the child
         ▼
    child waiting   when that number is 0

A parent that is done counts as ended. One that is dead, or was removed, means what the child's `on_parent_dead` says;
with "wait", one that was removed cancels the child, which could never run. A removed child ends its own children in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from tenure.errors import Corrupt
from tenure.model.lifecycle import Change, State
from tenure.queueing import groups
from tenure.queueing.removal import remove
from tenure.queueing.unit_of_work import FlowWork, ParentEnd, UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, iterate_keys
from tenure.storage.keyspace import Due, DueKey
from tenure.storage.records import BlockedRecord, StateRecord

#: How long a done job whose children have not ended is kept at least, before it is looked at again.
KEPT_FOR_CHILDREN_MS = 600_000
#: How many children one look at a done job reads.
_LOOKED_AT = 200
#: Rows that one scan for the children of a parent reads.
_LINKS = 1000
_CANCEL, _RUN = map(records.ON_PARENT_DEAD.index, ("cancel", "run"))
Child = tuple[int, bytes]
"""Queue number, job."""


def end_parents(unit: UnitOfWork, work: FlowWork) -> None:
    """Tell the children of the jobs that ended in this transaction. Called once, when its plan has run."""
    ending, told = _Ending(unit), 0
    if work.done:
        ending.done(work.done)
    while told < len(work.ends):  # it grows while children are removed
        parents = {keyspace.of_queue(parent.queue, parent.job): parent for parent in work.ends[told:]}
        told = len(work.ends)
        for link in _links(unit.tx, parents):
            parent = parents.get(link[:20])
            if parent is not None:
                ending.tell(link, parent)
    ending.write()
    if work.links:
        gone = {*work.done, *(keyspace.of_queue(parent.queue, parent.job) for parent in work.ends if parent.gone)}
        unit.tx.put_many(keyspace.CHILDREN, [(link, b"") for link in work.links if link[:20] not in gone])


def _links(reader: Reader, parents: Collection[bytes]) -> Iterable[bytes]:
    """The rows of `children` of these parents, given by queue and job; and some of others, that lie between.

    Most parents have one child, and parents that end together were enqueued together: one scan finds their rows.
    No scan takes a conflict. Who adds a child writes its parent's state, which the end of the parent has read.
    """
    if len(parents) > 1:
        limit = 2 * len(parents) + 20
        near = reader.keys(keyspace.CHILDREN, min(parents), max(parents) + b"\xff" * 25, limit, snapshot=True)
        if len(near) < limit:
            return near
    found: list[bytes] = []
    for first in parents:
        end = first + b"\xff" * 25
        while page := reader.keys(keyspace.CHILDREN, first, end, _LINKS, snapshot=True):
            found += page
            first = page[-1] + b"\0"
            if len(page) < _LINKS:
                break
    return found


class _Ending:
    """What a transaction does to children: read once each, and written when all their parents are known."""

    def __init__(self, unit: UnitOfWork) -> None:
        self._unit = unit
        self._removed = set(unit.ended)
        #: Of each child (`of_queue`), how many of its parents ended for it.
        self._ended: dict[bytes, int] = {}
        self._policies: dict[bytes, int | None] = {}
        #: Rows of `children` that are no longer needed.
        self._over: list[bytes] = []

    def done(self, parents: Sequence[bytes]) -> None:
        """These are done and not kept: the commonest end, of which there may be many at once."""
        rows = set(parents)
        links = [link for link in _links(self._unit.tx, rows) if link[:20] in rows]
        self._over += links
        self._ended.update(Counter([link[20:] for link in links]))

    def tell(self, link: bytes, parent: ParentEnd) -> None:
        """What the end of the parent means for a child, which is joined with it by this row of `children`."""
        if parent.gone:
            self._over.append(link)
        if parent.outcome is State.DONE:
            child = link[20:]
            self._ended[child] = self._ended.get(child, 0) + 1
        elif parent.outcome is not None:
            self._end_badly(link[20:], link, parent.outcome)

    def _end_badly(self, child: bytes, link: bytes, outcome: State) -> None:
        policy = None if child[4:] in self._removed else self._policy(child)
        if policy is None:
            return  # it runs, has ended, or is gone
        if policy == _RUN:
            self._ended[child] = self._ended.get(child, 0) + 1
            if outcome is State.DEAD:
                # It counts now; done after a replay, it must not count again.
                self._over.append(link)
        elif outcome is State.GONE or policy == _CANCEL:
            self._removed.add(child[4:])
            _cancel(self._unit, keyspace.split_of_queue(child))

    def _policy(self, child: bytes) -> int | None:
        """What a dead parent means for the child; None: it is not blocked."""
        if child not in self._policies:
            record = _read_blocked(self._unit.tx, child)
            self._policies[child] = None if record is None else record.on_parent_dead
        return self._policies[child]

    def write(self) -> None:
        tx = self._unit.tx
        tx.delete_many(keyspace.CHILDREN, self._over)
        for child, ended in self._ended.items():
            record = None if child[4:] in self._removed else _read_blocked(tx, child)
            if record is not None:
                _count_down(self._unit, keyspace.split_of_queue(child), record._replace(open=record.open - ended))


def _read_blocked(reader: Reader, child: bytes) -> BlockedRecord | None:
    raw = reader.get(keyspace.BLOCKED, child)
    return None if raw is None else records.decode_blocked(raw, child[4:])


def _read_state(reader: Reader, child: Child) -> StateRecord | None:
    raw = reader.get(keyspace.STATE, keyspace.of_queue(*child))
    return None if raw is None else records.decode_state(raw, child[1])


def _cancel(unit: UnitOfWork, child: Child) -> None:
    state = _read_state(unit.tx, child)
    if state is not None and state.state == State.BLOCKED:
        remove(unit, *child, state, Change.CANCELLED)


def _count_down(unit: UnitOfWork, child: Child, record: BlockedRecord) -> None:
    if record.open > 0:
        unit.tx.put(keyspace.BLOCKED, keyspace.of_queue(*child), records.encode_blocked(*record[1:]))
        return
    state = _read_state(unit.tx, child)
    if state is not None and state.state == State.BLOCKED:
        unblock(unit, child, state)


def unblock(unit: UnitOfWork, child: Child, state: StateRecord) -> None:
    """From blocked to waiting: ready now, or at the time it was enqueued for, if that is later."""
    tx, (number, job) = unit.tx, child
    visible = max(unit.now, state.visible_at_ms)
    state = state._replace(state=int(State.WAITING), visible_at_ms=visible)
    ref = unit.event(Change.UNBLOCKED, number, job, state, at_ms=visible, previous=state.last_event)
    tx.put(keyspace.STATE, keyspace.of_queue(number, job), records.encode_state(state._replace(last_event=ref)))
    grouped = state.flags & records.HAS_GROUP
    tx.put(keyspace.READY, keyspace.ready(number, state.priority, visible, job, grouped), b"")
    tx.delete(keyspace.BLOCKED, keyspace.of_queue(number, job))
    unit.count(number, keyspace.Counter.BLOCKED, -1)
    unit.count(number, keyspace.Counter.WAITING, 1)
    queue = unit.numbered(number)
    if queue is not None:
        if grouped:
            groups.wait_again(unit, queue, job, state)
        unit.ready(queue, state.priority, visible)


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def keep_for_children(unit: UnitOfWork, row: DueKey, state: StateRecord) -> bool:
    """Whether a done job whose retention has passed stays, because a child that may read its result has not ended.

    If so, it is due again later. Rows of children that have ended are deleted.
    """
    tx, queue, job = unit.tx, row.queue, row.reference
    keys = tx.keys(keyspace.CHILDREN, *keyspace.job_range(queue, job), _LOOKED_AT)
    alive = 0
    for key in keys:
        if _has_ended(unit, keyspace.split_child(key)[2:]):
            tx.delete(keyspace.CHILDREN, key)
        else:
            alive += 1
    if not alive and len(keys) < _LOOKED_AT:
        return False
    due = unit.now + (KEPT_FOR_CHILDREN_MS if alive else 1)
    tx.delete(keyspace.DUE, keyspace.due(Due.RETENTION, row.time_ms, queue, job))
    tx.put(keyspace.DUE, keyspace.due(Due.RETENTION, due, queue, job), b"")
    unit.put_row(keyspace.STATE, keyspace.of_queue(queue, job), records.encode_state(state._replace(due_at_ms=due)))
    return True


def _has_ended(unit: UnitOfWork, child: Child) -> bool:
    """Whether a job is done or gone, as of this transaction."""
    if child[1] in unit.ended:
        return True
    raw = unit.row(keyspace.STATE, keyspace.of_queue(*child))
    return raw is None or records.decode_state(raw, child[1]).state == State.DONE


def open_parents(reader: Reader, queue: int, job: bytes) -> int:
    """How many of a job's parents have not ended for it: a recount."""
    found = 0
    for parent in parents_of(reader, queue, job):
        if reader.get(keyspace.CHILDREN, keyspace.child(*parent, queue, job)) is not None:
            found += _may_be_open(reader, parent)
    return found


def _may_be_open(reader: Reader, parent: Child) -> bool:
    """A job whose state cannot be read has not ended, as far as its children know."""
    try:
        state = _read_state(reader, parent)
    except Corrupt:
        return True
    return state is not None and state.state != State.DONE


def parents_of(reader: Reader, queue: int, job: bytes, begin: int = 0, limit: int = 1 << 32) -> list[Child]:
    """A job's parents in the order in which it named them, from a place on; empty if it has none."""
    found: list[Child] = []
    first = keyspace.of_queue(queue, job) + begin.to_bytes(4, "big")
    for keys in iterate_keys(reader, keyspace.PARENTS, first, keyspace.job_range(queue, job)[1], min(limit, 1000)):
        found += [keyspace.split_parent(key)[3:] for key in keys]
        if len(found) >= limit:
            break
    return found[:limit]
