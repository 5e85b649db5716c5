"""Taking a job out of every space it is in, without reading what is there: its state's flags tell."""

from __future__ import annotations

from tenure.model.lifecycle import Change, State
from tenure.queueing import groups, quota_usage
from tenure.queueing.leases import close_jobs, read_lease
from tenure.queueing.locations import forget_foreign
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Transaction
from tenure.storage.keyspace import Counter, Due
from tenure.storage.records import StateRecord

#: The counter each state is counted in.
COUNTED = {
    State.WAITING: Counter.WAITING,
    State.LEASED: Counter.LEASED,
    State.DONE: Counter.DONE,
    State.DEAD: Counter.DEAD,
    State.BLOCKED: Counter.BLOCKED,
}


def delete_rows(tx: Transaction, queue: int, job: bytes, flags: int) -> None:
    """Delete the job itself; index rows are the caller's, who knows them."""
    at = keyspace.of_queue(queue, job)
    tx.delete(keyspace.JOBS, at)
    tx.delete(keyspace.STATE, at)
    forget_foreign(tx, queue, (job,))
    if flags:
        delete_extras(tx, queue, job, flags)


def delete_extras(tx: Transaction, queue: int, job: bytes, flags: int) -> None:
    if flags & records.HAS_NOTES:
        tx.delete(keyspace.NOTES, keyspace.of_queue(queue, job))
    if flags & (records.HAS_PARTS | records.HAS_RESULT_PARTS):
        tx.delete_range(keyspace.PAYLOAD, *keyspace.payload_range(queue, job, 0, 0xFFFF))
    if flags & records.HAS_PARENTS:
        tx.delete_range(keyspace.PARENTS, *keyspace.job_range(queue, job))
    if flags & records.HAS_STEPS:
        tx.delete_range(keyspace.STEPS, *keyspace.job_range(queue, job))


def index_row(queue: int, job: bytes, state: StateRecord) -> tuple[int, bytes] | None:
    """The one index row a job in this state has, as (space, key); leased jobs have none."""
    if state.state == State.WAITING:
        grouped = state.flags & records.HAS_GROUP
        return keyspace.READY, keyspace.ready(queue, state.priority, state.visible_at_ms, job, grouped)
    if state.state == State.DONE:
        return keyspace.DONE, keyspace.ended(queue, state.ended_at_ms, job)
    if state.state == State.DEAD:
        return keyspace.DEAD, keyspace.ended(queue, state.ended_at_ms, job)
    if state.state == State.BLOCKED:
        return keyspace.BLOCKED, keyspace.of_queue(queue, job)
    return None


def due_row(queue: int, job: bytes, state: StateRecord) -> bytes | None:
    """The due row a job in this state has: its ttl before it was ever claimed, its retention once done."""
    if not state.due_at_ms:
        return None
    kind = Due.RETENTION if state.state == State.DONE else Due.TTL
    return keyspace.due(kind, state.due_at_ms, queue, job)


def remove(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord, change: Change) -> None:
    """Remove a job that nobody holds, with its event, index rows and counters."""
    tx = unit.tx
    if state.flags & records.HAS_GROUP and state.state == State.WAITING:
        name = groups.name_of(unit, queue, job, state)
        if name:
            groups.wait_no_more(unit, queue, job, state, name)
    index = index_row(queue, job, state)
    if index is not None:
        tx.delete(*index)
    due = due_row(queue, job, state)
    if due is not None:
        tx.delete(keyspace.DUE, due)
    quota_usage.removed(unit, queue, job, state)
    delete_rows(tx, queue, job, state.flags)
    _tell(unit, queue, job, state, change)


def remove_leased(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord, change: Change) -> None:
    """Remove a job under its holder, who is not asked: its next verb finds the job gone."""
    tx = unit.tx
    if state.flags & records.HAS_GROUP:
        groups.let_go_of(unit, queue, job, state)
    record = read_lease(tx, queue, state.lease)
    if record is not None:
        close_jobs(tx, queue, state.lease, record, 1, lost=job)
    quota_usage.removed(unit, queue, job, state)
    delete_rows(tx, queue, job, state.flags)
    _tell(unit, queue, job, state, change)


def _tell(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord, change: Change) -> None:
    unit.count(queue, COUNTED[State(state.state)], -1)
    unit.count(queue, Counter.REMOVED, 1)
    gone = state._replace(state=int(State.GONE))
    unit.event(change, queue, job, gone, lease=state.lease, previous=state.last_event)
    unit.ended.append(job)
    # Of one that is retired the children have ended, and the rows that lead to them are deleted (`keep_for_children`).
    if state.flags & records.HAS_CHILDREN and change is not Change.RETIRED:
        unit.parent_ended(queue, job, None if state.state == State.DONE else State.GONE, gone=True)
