"""Settling: ack, nack, fail, release. A job is settled only by the holder of its live lease.

The proof is job, lease and token together; the clock decides whether the lease lives, not the sweeper. Each job of a
call is settled whole or not at all, and all that are, in one transaction (in several, where the engine keeps them small).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from tenure.errors import AlreadySettled, Corrupt, LeaseLost, TenureError
from tenure.model.ids import MARK, NO_ID
from tenure.model.lease import AlikeSettles, Extended, Proof, Settle, alike
from tenure.model.lifecycle import Change, Reason, State
from tenure.model.names import QueueName
from tenure.model.retry import after_failure
from tenure.queueing import groups, quota_usage
from tenure.queueing.core import Core
from tenure.queueing.flows import KEPT_FOR_CHILDREN_MS
from tenure.queueing.handover import put_follow_ups
from tenure.queueing.job_notes import put_result, read_notes, write_notes
from tenure.queueing.job_rows import read_states
from tenure.queueing.leases import CLAIM_MEMORY_MS, close_jobs, lost_jobs, read_lease
from tenure.queueing.locations import forget_foreign
from tenure.queueing.outcomes import NOTHING, OUTCOMES, Answer
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.removal import delete_extras
from tenure.queueing.step_rows import wait_for_signal
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import JOBS, STATE, Counter, Due
from tenure.storage.records import (
    HAS_CHILDREN,
    HAS_GROUP,
    NO_TEXT,
    LeaseRecord,
    Notes,
    StateRecord,
    pack_event,
)

_LEASED = int(State.LEASED)
_WAITING = int(State.WAITING)
_LEASED_COUNT, _REMOVED_COUNT = int(Counter.LEASED), int(Counter.REMOVED)
#: In a state. Read so, a field takes a tenth of the time that its name takes.
_FLAGS: Final = 4
_follow_ups_of = attrgetter("then")
_job_of = attrgetter("proof.job")
_EXTENDED = Answer[Extended](Extended)
#: Between the rolls of two jobs of a call (the golden section): they lie far apart, however many there are.
_ROLL_STEP = 0.6180339887498949


def settle(core: Core, name: QueueName, items: Sequence[Settle]) -> list[TenureError | None]:
    # Jitter is drawn outside the transaction, which may run again.
    plan = _settle if len(items) == 1 else _settle_some
    done = core.write(partial(plan, core, name, items, random.random()), None, OUTCOMES)
    while len(done) < len(items):
        left, step = items[len(done) :], b"from %d" % len(done)
        more = core.write(partial(_settle_some, core, name, left, random.random()), answer=OUTCOMES, step=step)
        done = [*done, *more]
    return done


def _settle_some(
    core: Core, name: QueueName, items: Sequence[Settle], roll: float, unit: UnitOfWork
) -> list[TenureError | None]:
    """Settle the first items, as many as one transaction takes on."""
    most = unit.tx.at_most(len(items))
    return _settle(core, name, items if most >= len(items) else items[:most], roll, unit)


def _settle(
    core: Core, name: QueueName, items: Sequence[Settle], roll: float, unit: UnitOfWork
) -> list[TenureError | None]:
    """`roll`, from 0 to 1, decides about the jitter of retries."""
    tx = unit.tx
    queue = core.registry.find(tx, name)
    if queue is None:
        return [LeaseLost(item.proof.job.hex(), item.proof.token, "there is no such job") for item in items]
    if len(items) > 1 and not queue.retention_ms and _remove_together(unit, queue, items):
        return [None] * len(items)
    outcomes, held, leases = _judge(unit, queue, items)
    if type(items) is not AlikeSettles and any(map(_follow_ups_of, items)):
        held = put_follow_ups(core, unit, name, held)  # first, since it reads counters that settling changes
    for item, state in held:
        job, verb = item.proof[0], item.verb
        if state[_FLAGS] & HAS_GROUP:
            groups.let_go_of(unit, queue.number, job, queue)
        if verb == "ack":
            if queue.retention_ms or item.result is not None:
                _keep_done(unit, queue, job, state, item.result)
            else:
                _remove_done(unit, queue, job, state)
        elif verb == "release":
            _release(unit, queue, item, state)
        else:
            roll = (roll + _ROLL_STEP) % 1
            _failed(unit, queue, item, state, roll)
    for lease, (record, settled) in leases.items():
        close_jobs(tx, queue.number, lease, record, len(settled))
    if held:
        adds, leased = tx.adds, queue.counters[_LEASED_COUNT]
        adds[leased] = adds.get(leased, 0) - len(held)
        if queue.limited:
            unit.freed(queue, len(held))
    return outcomes


def _remove_together(unit: UnitOfWork, queue: RegisteredQueue, items: Sequence[Settle]) -> bool:
    """Ack jobs that are stored together and that one live lease holds. False: they are not, and nothing was done."""
    same = alike(items)
    if same is None or same.verb != "ack" or len(items) > records.EVENTS_A_ROW:
        return False
    if len(set(same.jobs)) != len(items):
        return False
    tx, lease, count = unit.tx, same.lease, len(items)
    segments = tx.held_together(queue.prefix, lease, same.jobs, tuple(same.tokens))
    record = read_lease(tx, queue.number, lease) if segments else None
    if record is None or record.expires_at_ms <= unit.now:
        return False
    quota_usage.removed_done(unit, queue, same.jobs)
    unit.begin_events(count)
    for segment in segments:
        state, jobs = segment.state, segment.jobs
        middle = lease + records.pack_event_middle(state.token, state.attempt, state.max_attempts, 0, 0)
        previous = segment.events_at(segment.places)
        unit.add_events_alike(queue.done[state.priority], jobs, middle[: -records.REF_BYTES], previous, records.NO_TEXT)
        tx.drop_together(segment)
        if state.group:
            unit.groups.of(queue.number, state.group, segment.body.group).leased -= segment.count
        if jobs[0][MARK] != queue.mark:
            forget_foreign(tx, queue.number, jobs)
    unit.ended.extend(same.jobs)
    close_jobs(tx, queue.number, lease, record, count)
    tx.add(queue.counters[Counter.REMOVED], count)
    tx.add(queue.counters[Counter.LEASED], -count)
    unit.freed(queue, count)
    return True


OpenLease = tuple[LeaseRecord, set[bytes]]
"""A live lease of the call, and the jobs that the call settles under it."""


def _judge(
    unit: UnitOfWork, queue: RegisteredQueue, items: Sequence[Settle]
) -> tuple[list[TenureError | None], list[tuple[Settle, StateRecord]], dict[bytes, OpenLease]]:
    """Which of the items hold their job: the outcomes so far, those that do with their states, and their leases."""
    reader = unit.tx.reader
    outcomes: list[TenureError | None] = []
    held: list[tuple[Settle, StateRecord]] = []
    leases: dict[bytes, OpenLease] = {}
    jobs = items.jobs if type(items) is AlikeSettles else list(map(_job_of, items))
    for item, state in zip(items, read_states(reader, queue.prefix, jobs), strict=True):
        job, lease, token = item.proof
        if type(state) is not StateRecord:
            gone = LeaseLost(job.hex(), token, "it was settled, cancelled or purged before")
            outcomes.append(state if isinstance(state, Corrupt) else gone)
            continue
        if state.lease != lease or state.token != token or state.state != _LEASED:
            outcomes.append(_not_held(state, job, lease, token))
            continue
        if lease in leases:
            _, settled = leases[lease]
            if job in settled:
                outcomes.append(AlreadySettled(job.hex(), token))
                continue
            settled.add(job)
        else:
            record = _lease_of_job(reader, queue.number, lease, job)
            if isinstance(record, Corrupt):
                outcomes.append(record)
                continue
            if record.expires_at_ms <= unit.now:
                outcomes.append(LeaseLost(job.hex(), token, "its lease has expired"))
                continue
            leases[lease] = record, {job}
        held.append((item, state))
        outcomes.append(None)
    return outcomes, held, leases


def _lease_of_job(reader: Reader, queue: int, lease: bytes, job: bytes) -> LeaseRecord | Corrupt:
    """The lease that a leased job names. It must exist: Corrupt says that it does not, or cannot be read."""
    try:
        record = read_lease(reader, queue, lease)
    except Corrupt as damage:
        return Corrupt(damage.detail, job.hex())
    return Corrupt(f"its lease {lease.hex()} is missing", job.hex()) if record is None else record


def held_state(unit: UnitOfWork, queue: RegisteredQueue, proof: Proof) -> StateRecord:
    """The state of a job that this proof holds. Raises LeaseLost, Corrupt."""
    outcomes, held, _ = _judge(unit, queue, (Settle("ack", proof),))
    if outcomes[0] is not None:
        raise outcomes[0]
    return held[0][1]


def _not_held(state: StateRecord, job: bytes, lease: bytes, token: int) -> LeaseLost:
    # A settled job keeps the lease that settled it; one whose lease expired does not.
    if state.state != _LEASED and state.lease == lease != NO_ID and state.token == token:
        return AlreadySettled(job.hex(), token)
    return LeaseLost(job.hex(), token)


# ── ack ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _remove_done(unit: UnitOfWork, queue: RegisteredQueue, job: bytes, state: StateRecord) -> None:
    """Done, and not kept: gone in the same step."""
    tx, row = unit.tx, queue.prefix + job
    flags = state.flags
    if queue.meter:
        quota_usage.removed_done(unit, queue, (job,))
    if flags:
        if flags != HAS_CHILDREN:
            delete_extras(tx, queue.number, job, flags)
        if flags & HAS_CHILDREN:
            unit.flows().done.append(row)
    unit.add_event(
        pack_event(
            queue.done[state.priority], job, state.lease, state.token, state.attempt, state.max_attempts, 0,
            state.last_event, NO_TEXT,
        )
    )  # fmt: skip
    tx.writes += ((JOBS, row, None), (STATE, row, None))
    adds, removed = tx.adds, queue.counters[_REMOVED_COUNT]
    adds[removed] = adds.get(removed, 0) + 1
    if job[MARK] != queue.mark:
        forget_foreign(tx, queue.number, (job,))
    unit.ended.append(job)


def _keep_done(unit: UnitOfWork, queue: RegisteredQueue, job: bytes, state: StateRecord, result: bytes | None) -> None:
    keep_ms = max(queue.retention_ms, 0 if result is None else queue.result_retention_ms)
    if not keep_ms and state.flags & HAS_CHILDREN:
        keep_ms = KEPT_FOR_CHILDREN_MS
    if not keep_ms:
        _remove_done(unit, queue, job, state)
        return
    tx, now, number = unit.tx, unit.now, queue.number
    done = state._replace(state=int(State.DONE), ended_at_ms=now, due_at_ms=now + keep_ms)
    if result is not None:
        if queue.meter:
            before = read_notes(tx, number, job, state).result_bytes
            quota_usage.moved(unit, queue.meter, 0, len(result) - before)
        done = done._replace(flags=done.flags | put_result(tx, number, job, done, result))
    ref = unit.event(Change.DONE, number, job, done, lease=state.lease, previous=state.last_event)
    tx.put(keyspace.STATE, keyspace.of_queue(number, job), records.encode_state(done._replace(last_event=ref)))
    tx.put(keyspace.DONE, keyspace.ended(number, now, job), b"")
    tx.put(keyspace.DUE, keyspace.due(Due.RETENTION, now + keep_ms, number, job), b"")
    unit.count(number, Counter.DONE, 1)
    unit.ended.append(job)
    if done.flags & HAS_CHILDREN:
        unit.parent_ended(number, job, State.DONE, gone=False)


# ── nack, fail, release ──────────────────────────────────────────────────────────────────────────────────────────────


def _release(unit: UnitOfWork, queue: RegisteredQueue, item: Settle, state: StateRecord) -> None:
    """Back at its place in the queue, or (a snooze) ready after a delay or a signal; the delivery does not count."""
    state = state._replace(attempt=state.attempt - 1)
    if item.until_signal is not None:
        state = wait_for_signal(unit, queue, item, state)
    elif item.delay_ms is not None:
        state = state._replace(visible_at_ms=unit.now + item.delay_ms)
    give_back(unit, queue, item.proof.job, state, Change.RELEASED, state.lease)


def _failed(unit: UnitOfWork, queue: RegisteredQueue, item: Settle, state: StateRecord, roll: float) -> None:
    job = item.proof.job
    if item.verb == "fail":
        kill(unit, queue, job, state, Reason.FAILED, item.error, state.lease)
        return
    verdict = after_failure(queue.policy, state.attempt, state.max_attempts, unit.now, item.delay_ms, roll)
    if verdict.retry_at_ms is None:
        kill(unit, queue, job, state, Reason.MAX_ATTEMPTS, item.error, state.lease)
    else:
        again = state._replace(visible_at_ms=verdict.retry_at_ms)
        give_back(unit, queue, job, again, Change.RETRIED, state.lease, item.error)


def give_back(
    unit: UnitOfWork,
    queue: RegisteredQueue,
    job: bytes,
    state: StateRecord,
    change: Change,
    lease: bytes,
    error: str | None = None,
) -> None:
    """From leased to waiting, visible when the state says. `lease`: what settled it, or zeros if it expired.

    The caller counts LEASED down, once for all its jobs, and lets the groups of those go that have one.
    """
    tx, number = unit.tx, queue.number
    held_by = state.lease
    state = state._replace(state=_WAITING, lease=lease)
    if error is not None:
        state = state._replace(flags=state.flags | write_notes(tx, number, job, Notes(error=error)))
    ref = unit.event(
        change,
        number,
        job,
        state,
        lease=held_by,
        at_ms=state.visible_at_ms,
        previous=state.last_event,
        text=error or "",
    )
    tx.put(keyspace.STATE, keyspace.of_queue(number, job), records.encode_state(state._replace(last_event=ref)))
    grouped = state.flags & HAS_GROUP
    tx.put(keyspace.READY, keyspace.ready(number, state.priority, state.visible_at_ms, job, grouped), b"")
    if grouped:
        groups.wait_again(unit, queue, job, state)
    unit.count(number, Counter.WAITING, 1)
    quota_usage.back(unit, queue, (job,))
    unit.ready(queue, state.priority, state.visible_at_ms)


def kill(
    unit: UnitOfWork,
    queue: RegisteredQueue,
    job: bytes,
    state: StateRecord,
    reason: Reason,
    error: str | None,
    lease: bytes,
) -> None:
    """From leased to dead: the one path there. The caller counts LEASED down, and lets its group go."""
    tx, now, number = unit.tx, unit.now, queue.number
    held_by = state.lease
    state = state._replace(state=int(State.DEAD), reason=int(reason), ended_at_ms=now, lease=lease)
    if error is not None:
        state = state._replace(flags=state.flags | write_notes(tx, number, job, Notes(error=error)))
    ref = unit.event(Change.DIED, number, job, state, lease=held_by, previous=state.last_event, text=error or "")
    tx.put(keyspace.STATE, keyspace.of_queue(number, job), records.encode_state(state._replace(last_event=ref)))
    tx.put(keyspace.DEAD, keyspace.ended(number, now, job), b"")
    unit.count(number, Counter.DEAD, 1)
    unit.ended.append(job)
    if state.flags & HAS_CHILDREN:
        unit.parent_ended(number, job, State.DEAD, gone=False)


# ── extend, progress ─────────────────────────────────────────────────────────────────────────────────────────────────


def extend(core: Core, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
    def run(unit: UnitOfWork) -> Extended:
        tx = unit.tx
        queue = core.registry.find(tx, name)
        record = None if queue is None else read_lease(tx, queue.number, lease)
        if queue is None or record is None or record.expires_at_ms <= unit.now:
            raise LeaseLost(detail="its lease has ended")
        lost = lost_jobs(tx, queue.number, lease) if record.lost else []
        until = max(record.expires_at_ms, unit.now + lease_ms)
        if until > record.expires_at_ms:
            tx.put(
                keyspace.LEASES,
                keyspace.of_queue(queue.number, lease),
                records.encode_lease(record._replace(expires_at_ms=until)),
            )
            tx.delete(keyspace.DUE, keyspace.due(Due.LEASE, record.expires_at_ms, queue.number, lease))
            tx.put(keyspace.DUE, keyspace.due(Due.LEASE, until, queue.number, lease), b"")
            if record.claim != NO_ID:
                _remember_longer(unit, queue.number, record, until)
            if tx.holds_leases:
                tx.hold(keyspace.of_queue(queue.number, lease), until - unit.now)
            unit.event(Change.EXTENDED, queue.number, lease=lease, at_ms=until)
        return Extended(until, [job.hex() for job in lost])

    return core.write(run, answer=_EXTENDED)


def _remember_longer(unit: UnitOfWork, queue: int, record: LeaseRecord, until: int) -> None:
    """The claim's id is remembered from the lease's end on, which has moved."""
    before, after = record.expires_at_ms + CLAIM_MEMORY_MS, until + CLAIM_MEMORY_MS
    unit.tx.delete(keyspace.DUE, keyspace.due(Due.CLAIM, before, queue, record.claim))
    unit.tx.put(keyspace.DUE, keyspace.due(Due.CLAIM, after, queue, record.claim), b"")


def progress(core: Core, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
    def run(unit: UnitOfWork) -> None:
        tx = unit.tx
        queue = core.registry.find(tx, name)
        if queue is None:
            raise LeaseLost(proof.job.hex(), proof.token)
        state = held_state(unit, queue, proof)
        notes = read_notes(tx, queue.number, proof.job, state)
        flags = state.flags | write_notes(
            tx, queue.number, proof.job, Notes(notes.error, fraction, note, notes.result, notes.result_bytes)
        )
        if flags != state.flags:
            tx.put(
                keyspace.STATE,
                keyspace.of_queue(queue.number, proof.job),
                records.encode_state(state._replace(flags=flags)),
            )

    core.write(run, answer=NOTHING)
