"""Rebuilds a lost state from the job's last event in the journal; without one, the job waits as if just enqueued."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.model.ids import NO_ID
from tenure.model.lifecycle import Change, State
from tenure.model.retry import LEASE_EXPIRED
from tenure.queueing.checking.survey import Fault
from tenure.queueing.core import Core
from tenure.queueing.edges import has_children
from tenure.queueing.groups import group_id
from tenure.queueing.journal import bounds
from tenure.queueing.leases import read_lease
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.removal import delete_extras, delete_rows, due_row, index_row
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Transaction, iterate, iterate_keys
from tenure.storage.keyspace import Due
from tenure.storage.records import V1, EventRecord, JournalRow, StateRecord, encode_blocked

LastEvents = dict[tuple[int, bytes], tuple[EventRecord, int, int]]
"""By (queue, job): its last event, the reference of that event, and its time. An expired lease is left out."""


def last_events(core: Core, jobs: set[tuple[int, bytes]]) -> LastEvents:
    found: LastEvents = {}
    with core.engine.snapshot((keyspace.JOURNAL,)) as reader:
        oldest, newest = bounds(reader)
        for rows in iterate(reader, keyspace.JOURNAL, keyspace.commit(oldest), keyspace.commit(newest + 1), 200):
            for key, value in rows:
                commit = keyspace.split_commit(key)
                try:
                    row = records.decode_journal(value, commit)
                except Corrupt:
                    continue
                for index, event in enumerate(row.events):
                    if (event.queue, event.job) in jobs:
                        event = _without_expired_lease(row, event)
                        found[event.queue, event.job] = (event, records.event_ref(commit, index), row.header.time_ms)
    return found


def _without_expired_lease(row: JournalRow, event: EventRecord) -> EventRecord:
    """The event, without its lease if the job died because that lease expired: no holder settled the job."""
    if event.change == Change.DIED and row.text(event).startswith(LEASE_EXPIRED.encode()):
        return event._replace(lease=NO_ID)
    return event


def read_state(reader: Reader, queue: int, job: bytes) -> StateRecord | None:
    try:
        raw = reader.get(keyspace.STATE, keyspace.of_queue(queue, job))
        return None if raw is None else records.decode_state(raw, job)
    except Corrupt:
        return None


#: Spaces in which a job may have rows, and the flag of its state that says so.
_LINKS = (
    (keyspace.PARENTS, records.HAS_PARENTS),
    (keyspace.STEPS, records.HAS_STEPS),
)


def link_flags(reader: Reader, queue: int, job: bytes) -> int:
    """The flags that a job's rows in `children`, `parents` and `steps` require."""
    begin, end = keyspace.job_range(queue, job)
    flags = sum(flag for space, flag in _LINKS if reader.keys(space, begin, end, 1))
    return flags | records.HAS_CHILDREN if has_children(reader, begin) else flags


def rebuild_state(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    tx, queue, job = unit.tx, fault.queue, fault.job
    at = keyspace.of_queue(queue, job)
    if read_state(tx, queue, job) is not None:
        return "nothing to do any more: its state is there"
    flags = _flags(tx, queue, job)
    if flags is not None:
        flags |= link_flags(tx, queue, job)
    found = events.get((queue, job))
    if flags is None or (found is not None and found[0].state == State.GONE):
        delete_rows(tx, queue, job, 0)
        delete_extras(tx, queue, job, records.HAS_PARTS | records.HAS_NOTES | records.HAS_STEPS)
        if found is None or found[0].state == State.GONE:
            return "removed what was left of it"
        unit.event(Change.REPAIRED, queue, job, previous=found[1])
        return "removed the job: its state and payload are lost"
    registered = core.registry.by_number(tx, queue)
    state = (
        _from_journal(tx, queue, job, *found, flags) if found is not None else _from_nothing(unit, registered, flags)
    )
    if state.state == State.LEASED and not _still_leased(tx, queue, job, state):
        state = state._replace(state=int(State.WAITING), visible_at_ms=unit.now, lease=NO_ID)
    if state.state == State.WAITING and found is not None and found[0].state != State.WAITING:
        state = state._replace(visible_at_ms=unit.now)
    state = state._replace(due_at_ms=_due_at(unit, registered, queue, job, state))
    _write(unit, queue, job, at, state, found[1] if found is not None else 0)
    if registered is not None and state.state == State.WAITING:
        unit.ready(registered, state.priority, state.visible_at_ms)
    return f"made its state again {'from the journal' if found is not None else 'as waiting: the journal does not tell more'}"


def _flags(reader: Reader, queue: int, job: bytes) -> int | None:
    """The flags of the job's other rows; None if its payload is lost."""
    at = keyspace.of_queue(queue, job)
    try:
        raw = reader.get(keyspace.JOBS, at)
        body = None if raw is None else records.decode_job(raw, job)
        noted = reader.get(keyspace.NOTES, at) is not None
    except Corrupt:
        return None
    if body is None:
        return None
    results = reader.keys(keyspace.PAYLOAD, *keyspace.payload_range(queue, job, keyspace.RESULT_PARTS, 0x7FFF), 1)
    return (
        (records.HAS_PARTS if body.parts else 0)
        | (records.HAS_KEY if body.key else 0)
        | (records.HAS_NOTES if noted else 0)
        | (records.HAS_RESULT_PARTS if results else 0)
        | (records.HAS_GROUP if body.group else 0)
    )


#: After these a job's state names the lease that settled it, so that a repeated settle is told so.
_SETTLED = (Change.DONE, Change.DIED, Change.RETRIED, Change.RELEASED)


def _from_journal(
    reader: Reader, queue: int, job: bytes, event: EventRecord, ref: int, time_ms: int, flags: int
) -> StateRecord:
    ended = event.state in (State.DONE, State.DEAD)
    visible = event.at_ms if event.state == State.WAITING else _visible_before(reader, event.previous)
    lease = event.lease if event.state == State.LEASED or event.change in _SETTLED else NO_ID
    return StateRecord(
        V1, event.state, event.priority, event.reason, flags, event.attempt, event.max_attempts, 0, event.token,
        visible, time_ms if ended else 0, 0, ref, lease,
    )  # fmt: skip


def _visible_before(reader: Reader, ref: int) -> int:
    """The job's last visibility time: that of its latest event that made it wait."""
    while ref:
        commit, index = records.split_ref(ref)
        try:
            raw = reader.get(keyspace.JOURNAL, keyspace.commit(commit))
            if raw is None:
                return 0
            event = records.decode_journal(raw, commit).events[index]
        except (Corrupt, IndexError):
            return 0
        if event.state == State.WAITING:
            return event.at_ms
        ref = event.previous
    return 0


def _from_nothing(unit: UnitOfWork, registered: RegisteredQueue | None, flags: int) -> StateRecord:
    attempts = registered.policy.max_attempts if registered is not None else 5
    # Larger than any token that was given: the epoch (`model.tokens`) does not reach 27 million.
    token = unit.now << 16
    return StateRecord(V1, int(State.WAITING), 0, 0, flags, 0, attempts, 0, token, unit.now, 0, 0, 0, NO_ID)


def _still_leased(reader: Reader, queue: int, job: bytes, state: StateRecord) -> bool:
    """Whether the lease still exists and has this job with this token: then its holder keeps the job."""
    try:
        lease = read_lease(reader, queue, state.lease)
        raw = reader.get(keyspace.LEASE_JOBS, keyspace.of_queue(queue, state.lease))
        return (
            lease is not None and raw is not None and (job, state.token) in records.decode_lease_jobs(raw, state.lease)
        )
    except Corrupt:
        return False


def _due_at(unit: UnitOfWork, registered: RegisteredQueue | None, queue: int, job: bytes, state: StateRecord) -> int:
    """The end of its ttl or retention, from its row in `due`; for a done job without one, by the queue's policy."""
    if state.state == State.DONE:
        kind = Due.RETENTION
    elif state.state in (State.WAITING, State.BLOCKED) and not state.token:
        kind = Due.TTL
    else:
        return 0
    for keys in iterate_keys(unit.tx, keyspace.DUE, keyspace.due_prefix(kind), keyspace.due_end(kind)):
        for key in keys:
            due = keyspace.split_due(key)
            if due.queue == queue and due.reference == job:
                return due.time_ms
    if kind is Due.TTL or registered is None:
        return 0
    return unit.now + max(registered.retention_ms, registered.result_retention_ms, 1)


def _write(unit: UnitOfWork, queue: int, job: bytes, at: bytes, state: StateRecord, previous: int) -> None:
    waiting = state.state == State.WAITING
    ref = unit.event(
        Change.REPAIRED, queue, job, state, lease=state.lease, at_ms=state.visible_at_ms if waiting else 0,
        previous=previous,
    )  # fmt: skip
    unit.tx.put(keyspace.STATE, at, records.encode_state(state._replace(last_event=ref)))
    put_index(unit.tx, queue, job, state)
    due = due_row(queue, job, state)
    if due is not None:
        unit.tx.put(keyspace.DUE, due, b"")


def group_row(reader: Reader, queue: int, job: bytes, state: StateRecord) -> bytes | None:
    """The row of `group_ready` that a job in this state has; None: none, or its group cannot be read."""
    if not state.flags & records.HAS_GROUP or state.state != State.WAITING:
        return None
    try:
        raw = reader.get(keyspace.JOBS, keyspace.of_queue(queue, job))
        group = b"" if raw is None else records.decode_job(raw, job).group
    except Corrupt:
        return None
    return keyspace.group_ready(queue, group_id(group), 9 - state.priority, state.visible_at_ms, job) if group else None


def put_index(tx: Transaction, queue: int, job: bytes, state: StateRecord) -> None:
    """Write the index rows of a job in this state. The next pass of the check counts its group."""
    index, by_group = index_row(queue, job, state), group_row(tx, queue, job, state)
    if index is not None and index[0] != keyspace.BLOCKED:
        tx.put(*index, b"")
    elif index is not None and tx.get(*index) is None:
        tx.put(*index, encode_blocked(0, 0))  # the next pass of the check counts its parents
    if by_group is not None:
        tx.put(keyspace.GROUP_READY, by_group, b"")
