"""Jobs that wait for jobs: what the end of a parent means for its children, in the transaction that ends it.

    parent ends     children   which jobs wait for it (`edges`): read by its end, kept while it is
         │
         ▼
    child blocked   blocked    how many of its parents have not ended: one row, however many they are
         │          parents    which they are, in their order: for whoever runs the child
         ▼
    child waiting   when that number is 0

A parent that is done counts as ended. One that is dead, or was removed, means what the child's `on_parent_dead` says;
with "wait", one that was removed cancels the child, which could never run. A removed child ends its own children in turn.
"""

from __future__ import annotations

from collections import Counter

from tenure.errors import Corrupt
from tenure.model.lifecycle import Change, State
from tenure.queueing import groups
from tenure.queueing.edges import Edges, joined
from tenure.queueing.removal import remove
from tenure.queueing.unit_of_work import FlowWork, ParentEnd, UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Row, iterate
from tenure.storage.keyspace import Due, DueKey
from tenure.storage.records import PARENTS_A_ROW, BlockedRecord, StateRecord

#: How long a done job whose children have not ended is kept at least, before it is looked at again.
KEPT_FOR_CHILDREN_MS = 600_000
#: How many children one look at a done job reads.
_LOOKED_AT = 200
#: Rows of `parents` that are read at once.
_ROWS = 100
_CANCEL, _RUN = map(records.ON_PARENT_DEAD.index, ("cancel", "run"))
Child = tuple[int, bytes]
"""Queue number, job."""


def end_parents(unit: UnitOfWork, work: FlowWork) -> None:
    """Tell the children of the jobs that ended in this transaction. Called once, when its plan has run."""
    ending, told = _Ending(unit, work.edges), 0
    if work.done:
        # Done and not kept: the commonest end, of which there may be many at once.
        ending.ended.update(work.edges.cut_all(work.done))
    while told < len(work.ends):  # it grows while children are removed
        parents = {keyspace.of_queue(parent.queue, parent.job): parent for parent in work.ends[told:]}
        told = len(work.ends)
        for edge in work.edges.of(parents):
            ending.tell(edge, parents[edge[:20]])
    ending.write()
    if work.links:
        gone = {*work.done, *(keyspace.of_queue(parent.queue, parent.job) for parent in work.ends if parent.gone)}
        unit.tx.put_many(keyspace.CHILDREN, [(link, b"") for link in work.links if link[:20] not in gone])


class _Ending:
    """What a transaction does to children: read once each, and written when all their parents are known."""

    def __init__(self, unit: UnitOfWork, edges: Edges) -> None:
        self._unit, self._edges = unit, edges
        self._removed = set(unit.ended)
        #: Of each child (`of_queue`), how many of its parents ended for it.
        self.ended: Counter[bytes] = Counter()
        self._policies: dict[bytes, int | None] = {}

    def tell(self, edge: bytes, parent: ParentEnd) -> None:
        """What the end of the parent means for the child that this edge leads to."""
        if parent.gone:
            self._edges.cut(edge)
        if parent.outcome is State.DONE:
            self.ended[edge[20:]] += 1
        elif parent.outcome is not None:
            self._end_badly(edge, parent.outcome)

    def _end_badly(self, edge: bytes, outcome: State) -> None:
        child = edge[20:]
        policy = None if child[4:] in self._removed else self._policy(child)
        if policy is None:
            return  # it runs, has ended, or is gone
        if policy == _RUN:
            self.ended[child] += 1
            if outcome is State.DEAD:
                # It counts now; done after a replay, it must not count again.
                self._edges.cut(edge)
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
        self._edges.write(tx)
        for child, ended in self.ended.items():
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

    If so, it is due again later. Edges to children that have ended are cut.
    """
    tx, queue, job = unit.tx, row.queue, row.reference
    edges = unit.flows().edges
    found = edges.of_one(keyspace.of_queue(queue, job), _LOOKED_AT)
    alive = 0
    for edge in found:
        if _has_ended(unit, keyspace.split_of_queue(edge[20:])):
            edges.cut(edge)
        else:
            alive += 1
    if not alive and len(found) < _LOOKED_AT:
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
    parents = [keyspace.of_queue(*parent) for parent in parents_of(reader, queue, job)]
    found = joined(reader, parents, keyspace.of_queue(queue, job))
    return sum(_may_be_open(reader, keyspace.split_of_queue(parent)) for parent in found)


def _may_be_open(reader: Reader, parent: Child) -> bool:
    """A job whose state cannot be read has not ended, as far as its children know."""
    try:
        state = _read_state(reader, parent)
    except Corrupt:
        return True
    return state is not None and state.state != State.DONE


def parents_of(reader: Reader, queue: int, job: bytes, begin: int = 0, limit: int = 1 << 32) -> list[Child]:
    """A job's parents in the order in which it named them, from a place on; empty if it has none. Raises Corrupt."""
    found: list[Child] = []
    at, (_, end) = keyspace.of_queue(queue, job), keyspace.job_range(queue, job)
    place = begin - begin % PARENTS_A_ROW
    for rows in iterate(reader, keyspace.PARENTS, keyspace.parents_row(at, place), end, _ROWS):
        for row in rows:
            found += map(keyspace.split_of_queue, parents_in(row))
        if len(found) >= begin - place + limit:
            break
    return found[begin - place :][:limit]


def parents_in(row: Row) -> list[bytes]:
    """The jobs that a row of `parents` names, as `of_queue` writes them: many in its value, or one in its key. Raises Corrupt."""
    key, value = row
    return records.decode_parents(value, key[4:20]) if keyspace.is_parents_row(key) else [key[24:]]
