"""Mending what a check found: in batches, each fault looked at anew inside its transaction, each said.

What can be made again from what is left, is: index and due rows from states, states from the journal's last word on the
job, leases by giving their jobs back, counters by the difference. What is lost is removed and said to be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leasehold.errors import Corrupt
from leasehold.model.ids import NO_ID
from leasehold.model.lifecycle import Change, State
from leasehold.model.names import QueueName
from leasehold.model.retry import Policy
from leasehold.queueing.core import Core
from leasehold.queueing.faults import Fault
from leasehold.queueing.journal import bounds
from leasehold.queueing.ledger import Ledger
from leasehold.queueing.removal import COUNTED, delete_extras, delete_rows, due_row, index_row
from leasehold.storage import keyspace, records
from leasehold.storage.engine import Reader, iterate
from leasehold.storage.keyspace import Counter, Due
from leasehold.storage.records import V1, EventRecord, StateRecord

_BATCH = 200


def repair(core: Core, faults: Sequence[Fault]) -> dict[int, str]:
    """What was done about each fault, by its index; those that cannot be mended are left out."""
    lost = {(fault.queue, fault.job) for fault in faults if fault.mend == "rebuild_state"}
    last_events = _last_events(core, lost) if lost else {}
    done: dict[int, str] = {}
    # Rows first, then jobs, then numbers: each step finds what it builds on in place.
    order = sorted(range(len(faults)), key=lambda index: _ORDER.index(faults[index].mend) if faults[index].mend else 0)
    todo = [index for index in order if faults[index].mend]
    for at in range(0, len(todo), _BATCH):
        for index in todo[at : at + _BATCH]:
            # One transaction a fault: a later one may read what an earlier one wrote.
            fault = faults[index]
            done[index] = core.write(lambda ledger, f=fault: MENDERS[f.mend](core, ledger, f, last_events))  # type: ignore[misc]
    return done


LastEvents = dict[tuple[int, bytes], tuple[EventRecord, int, int]]
"""Of a job: its last event, where it stands, and when it happened."""


def _last_events(core: Core, jobs: set[tuple[int, bytes]]) -> LastEvents:
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
                        found[event.queue, event.job] = (event, records.event_ref(commit, index), row.header.time_ms)
    return found


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _delete_row(core: Core, ledger: Ledger, fault: Fault, events: LastEvents) -> str:
    ledger.tx.delete(fault.space, fault.key)
    return f"deleted the row from {keyspace.NAMES[fault.space]}"


def _put_row(core: Core, ledger: Ledger, fault: Fault, events: LastEvents) -> str:
    tx = ledger.tx
    if fault.job:
        state = _state(tx, fault.queue, fault.job)
        if state is None or fault.key not in (due_row(fault.queue, fault.job, state), _index_key(fault, state)):
            return "nothing to do any more: the job has moved on"
    tx.put(fault.space, fault.key, b"")
    if fault.space == keyspace.READY:
        queue = core.registry.by_number(tx, fault.queue)
        if queue is not None:
            ledger.ready(queue.name, keyspace.split_ready(fault.key).visible_at_ms)
    return f"put the row back into {keyspace.NAMES[fault.space]}"


def _index_key(fault: Fault, state: StateRecord) -> bytes | None:
    index = index_row(fault.queue, fault.job, state)
    return None if index is None else index[1]


def _drop_notes(core: Core, ledger: Ledger, fault: Fault, events: LastEvents) -> str:
    state = _state(ledger.tx, fault.queue, fault.job)
    if state is None:
        return "nothing to do any more: the job is gone"
    at = keyspace.of_queue(fault.queue, fault.job)
    ledger.tx.delete(keyspace.NOTES, at)
    ledger.tx.put(keyspace.STATE, at, records.encode_state(state._replace(flags=state.flags & ~records.HAS_NOTES)))
    return "removed the notes: its last error, progress and result are lost"


def _queue_row(core: Core, ledger: Ledger, fault: Fault, events: LastEvents) -> str:
    """A queue's number is told by the journal; its policy starts again from the default."""
    size = fault.key[0]
    name = QueueName(fault.key[1 : 1 + size].decode(), fault.key[2 + size :].decode())
    number = _number_of(ledger.tx, name)
    if number is None:
        return "not mended: the journal no longer tells the queue's number. Restore a snapshot"
    ledger.save_queue(records.QueueRecord(number, name.tenant, name.queue, Policy()))
    return "made the queue's row again, with the default policy: configure it anew"


def _number_of(reader: Reader, name: QueueName) -> int | None:
    import msgspec

    oldest, newest = bounds(reader)
    for rows in iterate(reader, keyspace.JOURNAL, keyspace.commit(oldest), keyspace.commit(newest + 1), 200):
        for key, value in rows:
            row = records.decode_journal(value, keyspace.split_commit(key))
            for event in row.events:
                if event.change == Change.QUEUE_CREATED and msgspec.msgpack.decode(row.text(event)) == list(name):
                    return event.queue
    return None


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _remove_job(core: Core, ledger: Ledger, fault: Fault, events: LastEvents) -> str:
    """Its payload is lost, and with it the job."""
    tx = ledger.tx
    state = _state(tx, fault.queue, fault.job)
    if state is None:
        tx.delete(keyspace.JOBS, fault.key)
        return "removed what was left of it"
    lease = _unlease(ledger, fault.queue, state)
    index = index_row(fault.queue, fault.job, state)
    if index is not None:
        tx.delete(*index)
    due = due_row(fault.queue, fault.job, state)
    if due is not None:
        tx.delete(keyspace.DUE, due)
    delete_rows(tx, fault.queue, fault.job, 0)
    delete_extras(tx, fault.queue, fault.job, records.HAS_PARTS | records.HAS_NOTES)
    ledger.count(fault.queue, COUNTED[State(state.state)], -1)
    ledger.count(fault.queue, Counter.REMOVED, 1)
    gone = state._replace(state=int(State.GONE))
    ledger.event(Change.REPAIRED, fault.queue, fault.job, gone, lease=lease, previous=state.last_event)
    return "removed the job: its payload is lost"


def _unlease(ledger: Ledger, queue: int, state: StateRecord) -> bytes:
    if state.state != State.LEASED:
        return NO_ID
    from leasehold.queueing.leases import close_jobs, read_lease

    record = read_lease(ledger.tx, queue, state.lease)
    if record is not None:
        close_jobs(ledger.tx, queue, state.lease, record, 1)
    return state.lease


def _rebuild_state(core: Core, ledger: Ledger, fault: Fault, events: LastEvents) -> str:
    """The state is lost: the journal's last word on the job stands for it; without one, it waits from the start."""
    tx, queue, job = ledger.tx, fault.queue, fault.job
    at = keyspace.of_queue(queue, job)
    try:
        raw = tx.get(keyspace.JOBS, at)
        body = None if raw is None else records.decode_job(raw, job)
    except Corrupt:
        body = None
    if body is None:
        tx.delete(keyspace.JOBS, at)
        tx.delete(keyspace.STATE, at)
        return "removed the job: its state and payload are lost"
    flags = (records.HAS_PARTS if body.parts else 0) | (records.HAS_KEY if body.key else 0)
    delete_extras(tx, queue, job, records.HAS_NOTES)
    found = events.get((queue, job))
    if found is not None and found[0].state == State.GONE:
        delete_rows(tx, queue, job, flags)
        return "removed what was left of a job that had ended"
    event, ref, time_ms = found if found is not None else (None, 0, 0)
    registered = core.registry.by_number(tx, queue)
    state = int(State.WAITING) if event is None or event.state == State.LEASED else event.state
    waiting = state == State.WAITING
    visible = event.at_ms if event is not None and event.state == State.WAITING else ledger.now
    record = StateRecord(
        V1,
        state,
        event.priority if event is not None else 0,
        event.reason if event is not None and not waiting else 0,
        flags,
        event.attempt if event is not None else 0,
        event.max_attempts if event is not None else (registered.policy.max_attempts if registered else 5),
        0,
        # Never below a token that was handed out: without the journal, one no delivery can have reached.
        event.token if event is not None else ledger.now << 16,
        visible if waiting else 0,
        0 if waiting else time_ms,
        0,
        0,
        NO_ID,
    )
    new = ledger.event(Change.REPAIRED, queue, job, record, at_ms=visible if waiting else 0, previous=ref)
    tx.put(keyspace.STATE, at, records.encode_state(record._replace(last_event=new)))
    index = index_row(queue, job, record)
    if index is not None:
        tx.put(*index, b"")
    if registered is not None and waiting:
        ledger.ready(registered.name, visible)
    source = "from the journal" if event is not None else "as waiting: the journal does not tell more"
    return f"made its state again {source}"


def _give_back(core: Core, ledger: Ledger, fault: Fault, events: LastEvents) -> str:
    """A lease that cannot be relied on ends, and every job that names it waits again. `key` is the lease."""
    tx, queue, lease = ledger.tx, fault.queue, fault.key
    registered = core.registry.by_number(tx, queue)
    jobs = []
    for rows in iterate(tx, keyspace.STATE, *keyspace.queue_range(queue)):
        for key, value in rows:
            try:
                state = records.decode_state(value, key[4:])
            except Corrupt:
                continue
            if state.state == State.LEASED and state.lease == lease:
                jobs.append((key[4:], state))
    stray: list[bytes] = []
    for kinds in iterate(tx, keyspace.DUE, keyspace.due_prefix(Due.LEASE), keyspace.due_end(Due.LEASE)):
        stray.extend(key for key, _ in kinds if key[-16:] == lease)
    tx.delete_many(keyspace.DUE, stray)
    tx.delete(keyspace.LEASES, keyspace.of_queue(queue, lease))
    tx.delete(keyspace.LEASE_JOBS, keyspace.of_queue(queue, lease))
    tx.delete_range(keyspace.LEASE_JOBS, *keyspace.lost_range(queue, lease))
    for job, state in jobs:
        back = state._replace(state=int(State.WAITING), visible_at_ms=ledger.now, lease=NO_ID)
        ref = ledger.event(Change.REPAIRED, queue, job, back, lease=lease, at_ms=ledger.now, previous=state.last_event)
        tx.put(keyspace.STATE, keyspace.of_queue(queue, job), records.encode_state(back._replace(last_event=ref)))
        tx.put(keyspace.READY, keyspace.ready(queue, back.priority, ledger.now, job), b"")
        if registered is not None:
            ledger.ready(registered.name, ledger.now)
    ledger.count(queue, Counter.LEASED, -len(jobs))
    ledger.count(queue, Counter.WAITING, len(jobs))
    return f"ended the lease, and gave {len(jobs)} jobs back"


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _add_counter(core: Core, ledger: Ledger, fault: Fault, events: LastEvents) -> str:
    # The difference holds whatever was counted since the check looked.
    ledger.tx.add(fault.space, fault.key, fault.number)
    return f"corrected the counter by {fault.number:+d}"


def _set_counter(core: Core, ledger: Ledger, fault: Fault, events: LastEvents) -> str:
    ledger.tx.put(fault.space, fault.key, records.encode_count(max(0, fault.number)))
    return "set the counter to a recount" if fault.number >= 0 else "reset the counter: run check again"


def _state(reader: Reader, queue: int, job: bytes) -> StateRecord | None:
    try:
        raw = reader.get(keyspace.STATE, keyspace.of_queue(queue, job))
        return None if raw is None else records.decode_state(raw, job)
    except Corrupt:
        return None


Mender = Callable[[Core, Ledger, Fault, LastEvents], str]
MENDERS: dict[str, Mender] = {
    "queue_row": _queue_row,
    "delete_row": _delete_row,
    "drop_notes": _drop_notes,
    "rebuild_state": _rebuild_state,
    "put_row": _put_row,
    "give_back": _give_back,
    "remove_job": _remove_job,
    "set_counter": _set_counter,
    "add_counter": _add_counter,
}
_ORDER = list(MENDERS)
