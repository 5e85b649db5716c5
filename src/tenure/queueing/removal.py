"""Removes a job from every space. The flags of its state tell which rows it has, so that none are read."""

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
    """Delete the job's own rows. The caller deletes its index rows."""
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
    """The index row of a job in this state, as (space, key); leased jobs have none."""
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
    """The due row of a job in this state: its ttl until the first claim, its retention once done; or None."""
    if not state.due_at_ms:
        return None
    kind = Due.RETENTION if state.state == State.DONE else Due.TTL
    return keyspace.due(kind, state.due_at_ms, queue, job)


def remove(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord, change: Change) -> None:
    """Remove a job that is not leased: rows, index rows, counters; writes the event."""
    tx = unit.tx
    if state.flags & records.HAS_GROUP and state.state == State.WAITING:
        name = groups.name_of(unit, queue, job)
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
    _record_removal(unit, queue, job, state, change)


def remove_leased(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord, change: Change) -> None:
    """Remove a leased job. The holder's next verb on it raises LeaseLost."""
    tx = unit.tx
    if state.flags & records.HAS_GROUP:
        groups.let_go_of(unit, queue, job)
    record = read_lease(tx, queue, state.lease)
    if record is not None:
        close_jobs(tx, queue, state.lease, record, 1, lost=job)
    quota_usage.removed(unit, queue, job, state)
    delete_rows(tx, queue, job, state.flags)
    _record_removal(unit, queue, job, state, change)


def _record_removal(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord, change: Change) -> None:
    unit.count(queue, COUNTED[State(state.state)], -1)
    unit.count(queue, Counter.REMOVED, 1)
    gone = state._replace(state=int(State.GONE))
    unit.event(change, queue, job, gone, lease=state.lease, previous=state.last_event)
    unit.ended.append(job)
    # The children of a retired job have ended, and their edges are deleted already (`keep_for_children`).
    if state.flags & records.HAS_CHILDREN and change is not Change.RETIRED:
        unit.parent_ended(queue, job, None if state.state == State.DONE else State.GONE, gone=True)
