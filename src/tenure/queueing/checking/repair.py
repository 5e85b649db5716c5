"""`check(repair=True)`: each fault is verified again and repaired in one transaction.

Rows that follow from others are rebuilt: index and due rows from states, states from the job's last event in the
journal, counters from a recount. The jobs of a broken lease wait again. What cannot be rebuilt is removed and reported
as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tenure.errors import Corrupt
from tenure.model.ids import NO_ID
from tenure.model.lifecycle import TERMINAL, Change, State
from tenure.model.names import QueueName
from tenure.model.retry import Policy
from tenure.queueing import quotas, turns
from tenure.queueing.checking import flows, groups, steps
from tenure.queueing.checking.rebuild import LastEvents, group_row, last_events, put_index, read_state, rebuild_state
from tenure.queueing.checking.survey import Fault
from tenure.queueing.core import Core
from tenure.queueing.idempotency_keys import free_keys, hold_keys
from tenure.queueing.journal import bounds
from tenure.queueing.leases import read_lease
from tenure.queueing.locations import note_foreign
from tenure.queueing.queue_turns import Offer, queue_sub, tenant_sub
from tenure.queueing.registry import NEXT_QUEUE
from tenure.queueing.removal import due_row, index_row, remove, remove_leased
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, iterate, iterate_keys
from tenure.storage.keyspace import Counter, Due
from tenure.storage.records import StateRecord


def mend(core: Core, faults: Sequence[Fault]) -> dict[Fault, str]:
    """Repair the faults. Returns a sentence for each repaired fault; others are left out."""
    lost = {(fault.queue, fault.job) for fault in faults if fault.mend == "rebuild_state"}
    events = last_events(core, lost) if lost else {}
    done: dict[Fault, str] = {}
    # In the order of MENDERS: queues first, then rows, then jobs, since each repair relies on the earlier ones.
    for fault in sorted((fault for fault in faults if fault.mend), key=lambda fault: _ORDER.index(fault.mend)):
        said = core.write(lambda unit, f=fault: MENDERS[f.mend](core, unit, f, events))  # type: ignore[misc]
        if said:
            done[fault] = said
    return done


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _delete_row(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    if fault.job and fault.space in (keyspace.READY, keyspace.DONE, keyspace.DEAD, keyspace.BLOCKED):
        state = read_state(unit.tx, fault.queue, fault.job)
        if state is not None and _index_key(fault, state) == fault.key:
            return "nothing to do any more: the job is in that state now"
    unit.tx.delete(fault.space, fault.key)
    return f"deleted the row from {keyspace.NAMES[fault.space]}"


def _put_row(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    tx = unit.tx
    if fault.space == keyspace.BLOCKED:
        return flows.recount_parents(core, unit, fault, events)
    if fault.job:
        state = read_state(tx, fault.queue, fault.job)
        if state is None or fault.key not in (
            due_row(fault.queue, fault.job, state), _index_key(fault, state), group_row(tx, fault.queue, fault.job, state),
        ):  # fmt: skip
            return "nothing to do any more: the job has moved on"
    elif fault.space == keyspace.DUE and fault.key[0] == Due.REQUEST:
        row = keyspace.split_due(fault.key)
        outcome = tx.get(keyspace.REQUESTS, keyspace.request(row.reference, 0))
        if outcome is None or records.decode_request(outcome).until_ms != row.time_ms:
            return "nothing to do any more: the request is forgotten"
    elif fault.space == keyspace.DUE:
        lease = read_lease(tx, fault.queue, fault.key[-16:])
        if lease is None or lease.expires_at_ms != keyspace.split_due(fault.key).time_ms:
            return "nothing to do any more: the lease has moved on"
    tx.put(fault.space, fault.key, b"")
    queue = core.registry.by_number(tx, fault.queue)
    if fault.space == keyspace.READY and queue is not None:
        ready = keyspace.split_ready(fault.key)
        unit.ready(queue, ready.priority, ready.visible_at_ms)
    return f"put the row back into {keyspace.NAMES[fault.space]}"


def _break_up(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    """Turn the readable part of a segment into rows, which the next pass checks and repairs one by one."""
    if not unit.tx.break_up(fault.key):
        return ""
    return "took the jobs apart: their states are made again from the journal"


def _forget_request(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    tx, request = unit.tx, fault.key[:16]
    keys = tx.keys(keyspace.REQUESTS, keyspace.request(request, 0), keyspace.request(request, 0xFFFF), 1 << 16)
    due: list[bytes] = []
    for rows in iterate_keys(tx, keyspace.DUE, keyspace.due_prefix(Due.REQUEST), keyspace.due_end(Due.REQUEST)):
        due.extend(key for key in rows if key[-16:] == request)
    tx.delete_many(keyspace.REQUESTS, [fault.key, *keys])
    tx.delete_many(keyspace.DUE, due)
    return "forgot the request's outcome: asked again, it would be done again"


def _index_key(fault: Fault, state: StateRecord) -> bytes | None:
    index = index_row(fault.queue, fault.job, state)
    return None if index is None else index[1]


def _hold_key(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    queue = core.registry.by_number(unit.tx, fault.queue)
    state = read_state(unit.tx, fault.queue, fault.job)
    if queue is None or state is None or state.state in TERMINAL:
        return "nothing to do any more: the job has ended"
    keys = free_keys(unit, queue, [fault.job])
    hold_keys(unit, queue, keys)
    return "gave it its key back" if keys else ""


def _note_queue(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    if read_state(unit.tx, fault.queue, fault.job) is None:
        return "nothing to do any more: the job is gone"
    note_foreign(unit.tx, fault.queue, (fault.job,))
    return "wrote the row that leads from its id to its queue"


def _offer_turn(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    queue = unit.numbered(fault.queue)
    if queue is None:
        return "nothing to do any more: the queue is gone"
    sub = queue_sub(queue)
    place, tenant = turns.place(unit.tx, sub), tenant_sub(sub.scope)
    if place is not None and turns.place(unit.tx, tenant) is None:
        turns.move(unit.tx, tenant, None, turns.activated(turns.virtual_time(unit.tx, tenant.scope)))
    else:
        unit.offer(Offer(queue, unit.now, lifted=True))
    return "gave it a place among those that take turns"


def _drop_notes(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    state = read_state(unit.tx, fault.queue, fault.job)
    if state is None:
        return "nothing to do any more: the job is gone"
    at = keyspace.of_queue(fault.queue, fault.job)
    unit.tx.delete(keyspace.NOTES, at)
    if state.flags & records.HAS_RESULT_PARTS:
        unit.tx.delete_range(
            keyspace.PAYLOAD, *keyspace.payload_range(fault.queue, fault.job, keyspace.RESULT_PARTS, 0x7FFF)
        )
    flags = state.flags & ~(records.HAS_NOTES | records.HAS_RESULT_PARTS)
    unit.tx.put(keyspace.STATE, at, records.encode_state(state._replace(flags=flags)))
    return "removed what was noted of it: its last error, progress and result are lost"


# ── the store's own rows ─────────────────────────────────────────────────────────────────────────────────────────────


def _queue_row(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    """Rebuild a queue's row from the journal: name, number and, if it was configured since, the policy."""
    name = QueueName(*keyspace.split_queue_row(fault.key)) if fault.key else None
    found = _queue_in_journal(unit.tx, name, fault.queue)
    if found is None:
        return ""
    name, number, policy = found
    if unit.tx.get(keyspace.QUEUES, keyspace.queue_row(*name)) is not None and not fault.key:
        return "came right with another repair"
    quota = quotas.read(unit.tx, name.tenant)
    meter = 0 if quota is None else quota.number
    unit.save_queue(records.QueueRecord(number, *name, policy or Policy(), meter=meter))
    return f"made queue {name} again, {'with the policy the journal tells' if policy else 'with the default policy'}"


def _queue_in_journal(
    reader: Reader, name: QueueName | None, number: int
) -> tuple[QueueName, int, Policy | None] | None:
    policy: Policy | None = None
    found: QueueName | None = None
    oldest, newest = bounds(reader)
    for rows in iterate(reader, keyspace.JOURNAL, keyspace.commit(oldest), keyspace.commit(newest + 1), 200):
        for key, value in rows:
            try:
                row = records.decode_journal(value, keyspace.split_commit(key))
            except Corrupt:
                continue
            for event in row.events:
                if event.change == Change.QUEUE_CREATED:
                    named = QueueName(*msgspec.msgpack.decode(row.text(event), type=tuple[str, str]))
                    if named == name or (name is None and event.queue == number):
                        found, number = named, event.queue
                elif event.change == Change.QUEUE_CONFIGURED and found is not None and event.queue == number:
                    policy = msgspec.msgpack.decode(row.text(event), type=Policy)
    return None if found is None else (found, number, policy)


def _clock(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    core.time.save(unit.tx)
    return "wrote the store's clock again"


def _next_queue(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    taken = [queue.number for queue in core.registry.all(unit.tx)] + quotas.meters_in_use(unit.tx)
    number = max(taken, default=0) + 1
    unit.tx.put(keyspace.META, NEXT_QUEUE, records.encode_struct(records.NumberRecord(number)))
    return f"set the next queue's number to {number}"


def _set_meter(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    queue = core.registry.by_number(unit.tx, fault.queue)
    quota = None if queue is None else quotas.read(unit.tx, queue.name.tenant)
    meter = 0 if quota is None else quota.number
    if queue is None or queue.meter == meter:
        return "nothing to do any more"
    unit.save_queue(queue.record(meter=meter))
    return f"its tenant's usage is counted under {meter} from now on"


def _drop_quota(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    tenant = keyspace.split_quota_row(fault.key)
    unit.tx.delete(keyspace.META, fault.key)
    for queue in core.registry.all(unit.tx, tenant):
        if queue.meter:
            unit.save_queue(queue.record(meter=0))
    return f"lifted the quota of tenant {tenant}, which is lost: set it again"


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _remove_job(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    """Remove a job whose payload is lost."""
    tx, queue, job = unit.tx, fault.queue, fault.job
    state = read_state(tx, queue, job)
    if state is None:
        tx.delete(keyspace.JOBS, fault.key)
        return "removed what was left of it"
    # Its flags may be incomplete: delete all rows that a job can have.
    state = state._replace(flags=state.flags | records.HAS_PARTS | records.HAS_NOTES)
    (remove_leased if state.state == State.LEASED else remove)(unit, queue, job, state, Change.REPAIRED)
    return "removed the job: its payload is lost"


def _gone(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    """Add an event to the journal for a job that has events but no rows."""
    if unit.tx.get(keyspace.STATE, keyspace.of_queue(fault.queue, fault.job)) is not None:
        return "nothing to do any more: the job is there"
    unit.event(Change.REPAIRED, fault.queue, fault.job, previous=fault.number)
    return "noted in the journal that the job is lost"


def _give_back(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    """End an inconsistent lease: every job that names it waits again. `fault.key` is the lease."""
    tx, queue, lease = unit.tx, fault.queue, fault.key
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
    for due in iterate(tx, keyspace.DUE, keyspace.due_prefix(Due.LEASE), keyspace.due_end(Due.LEASE)):
        stray.extend(key for key, _ in due if key[-16:] == lease)
    tx.delete_many(keyspace.DUE, stray)
    tx.delete(keyspace.LEASES, keyspace.of_queue(queue, lease))
    tx.delete(keyspace.LEASE_JOBS, keyspace.of_queue(queue, lease))
    tx.delete_range(keyspace.LEASE_JOBS, *keyspace.lost_range(queue, lease))
    for job, state in jobs:
        back = state._replace(state=int(State.WAITING), visible_at_ms=unit.now, lease=NO_ID)
        ref = unit.event(Change.REPAIRED, queue, job, back, lease=lease, at_ms=unit.now, previous=state.last_event)
        tx.put(keyspace.STATE, keyspace.of_queue(queue, job), records.encode_state(back._replace(last_event=ref)))
        put_index(tx, queue, job, back)
        if registered is not None:
            unit.ready(registered, back.priority, unit.now)
    unit.count(queue, Counter.LEASED, -len(jobs))
    unit.count(queue, Counter.WAITING, len(jobs))
    return f"ended the lease, and gave {len(jobs)} jobs back"


def _lease_lost(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    record = read_lease(unit.tx, fault.queue, fault.key)
    if record is None:
        return "nothing to do any more: the lease has ended"
    at = keyspace.of_queue(fault.queue, fault.key)
    unit.tx.put(keyspace.LEASES, at, records.encode_lease(record._replace(lost=fault.number)))
    return f"set its number of cancelled jobs to {fault.number}"


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _add_counter(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    # The difference stays correct even if verbs have changed the counter since the check.
    unit.tx.add(fault.key, fault.number)
    return f"corrected the counter by {fault.number:+d}"


def _set_counter(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    unit.tx.put(fault.space, fault.key, records.encode_count(max(0, fault.number)))
    return f"set the counter to {max(0, fault.number)}, by a recount"


def _set_group(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    return groups.set_group(unit, fault)


Mender = Callable[[Core, UnitOfWork, Fault, LastEvents], str]
MENDERS: dict[str, Mender] = {
    "set_counter": _set_counter,
    "clock": _clock,
    "drop_quota": _drop_quota,
    "queue_row": _queue_row,
    "set_meter": _set_meter,
    "next_queue": _next_queue,
    "break_up": _break_up,
    "rebuild_state": rebuild_state,
    "delete_row": _delete_row,
    "forget_request": _forget_request,
    "drop_notes": _drop_notes,
    "put_row": _put_row,
    "remove_job": _remove_job,
    "hold_key": _hold_key,
    "note_queue": _note_queue,
    "offer_turn": _offer_turn,
    "replace_block": flows.replace_block,
    "rebuild_parents": flows.rebuild_parents,
    "thin_block": flows.thin_block,
    "note_links": flows.note_links,
    "recount_parents": flows.recount_parents,
    "recount_steps": steps.recount_steps,
    "give_back": _give_back,
    "lease_lost": _lease_lost,
    "gone": _gone,
    "add_counter": _add_counter,
    "set_group": _set_group,
}
_ORDER = list(MENDERS)
