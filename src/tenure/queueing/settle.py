"""Settling: ack, nack, fail, release. A job is settled only by the holder of its live lease.

The proof is job, lease and token together; the clock decides whether the lease lives, not the sweeper. Each job of a
call is settled whole or not at all, and all that are, in one transaction.
"""

from __future__ import annotations

import random
from collections import Counter as Counted
from collections.abc import Sequence

from tenure.errors import AlreadySettled, Corrupt, LeaseLost, TenureError
from tenure.model.ids import NO_ID
from tenure.model.lease import AlikeSettles, Extended, Proof, Settle, alike
from tenure.model.lifecycle import Change, Reason, State
from tenure.model.names import QueueName
from tenure.model.retry import after_failure
from tenure.queueing import quota_usage, single, together
from tenure.queueing.core import Core
from tenure.queueing.job_notes import put_result, read_notes, write_notes
from tenure.queueing.leases import CLAIM_MEMORY_MS, close_jobs, lost_jobs, read_lease
from tenure.queueing.ledger import Ledger
from tenure.queueing.outcomes import NOTHING, OUTCOMES, Answer
from tenure.queueing.registry import Registered
from tenure.queueing.removal import delete_extras
from tenure.storage import keyspace, records
from tenure.storage.engine import get_each
from tenure.storage.keyspace import Counter, Due
from tenure.storage.records import LeaseRecord, Notes, StateFields, StateRecord
from tenure.storage.segments import SegmentedTransaction

_LEASED = int(State.LEASED)
_WAITING = int(State.WAITING)
_EXTENDED = Answer[Extended](Extended)


def settle(core: Core, name: QueueName, items: Sequence[Settle]) -> list[TenureError | None]:
    if len(items) == 1 and items[0].verb == "ack" and items[0].result is None:
        outcome = single.ack(core, name, items[0].proof)
        if outcome is None:
            return [None]
    # Jitter is drawn outside the transaction, which may run again.
    rolls: Sequence[float] = ()
    if type(items) is not AlikeSettles or items.verb in ("nack", "fail"):
        rolls = [random.random() if item.verb == "nack" else 0.0 for item in items]
    return core.write(lambda ledger: _settle(core, ledger, name, items, rolls), answer=OUTCOMES)


def _settle(
    core: Core, ledger: Ledger, name: QueueName, items: Sequence[Settle], rolls: Sequence[float]
) -> list[TenureError | None]:
    queue = core.registry.find(ledger.tx, name)
    if queue is None:
        return [LeaseLost(item.proof.job.hex(), item.proof.token, "there is no such job") for item in items]
    keeps = bool(queue.retention_ms)
    if len(items) > 1 and not keeps and _end_together(ledger, queue, items):
        return [None] * len(items)
    outcomes, held, leases = _judge(ledger, queue, items)
    closed: dict[bytes, int] = {}
    removed: list[tuple[bytes, StateRecord]] = []
    for index, state in held:
        item = items[index]
        if item.verb == "ack" and item.result is None and not keeps:
            removed.append((item.proof[0], state))
            continue
        closed[item.proof.lease] = closed.get(item.proof.lease, 0) + 1
        if item.verb == "ack":
            _keep_done(ledger, queue, item.proof.job, state, item.result)
        elif item.verb == "release":
            give_back(
                ledger, queue, item.proof.job, state._replace(attempt=state.attempt - 1), Change.RELEASED, state.lease
            )
        else:
            _failed(ledger, queue, item, state, rolls[index])
    if removed:
        _remove_done(ledger, queue, *zip(*removed, strict=True))
        for lease, count in Counted(state[13] for _, state in removed).items():
            closed[lease] = closed.get(lease, 0) + count
    for lease, count in closed.items():
        close_jobs(ledger.tx, queue.number, lease, leases[lease], count)
    if held:
        ledger.count(queue.number, Counter.LEASED, -len(held))
        ledger.freed(queue, len(held))
    return outcomes


def _end_together(ledger: Ledger, queue: Registered, items: Sequence[Settle]) -> bool:
    """The commonest batch, judged in one sweep: acks that keep nothing, of jobs that one live lease holds.

    False: it is something else, and nothing was done.
    """
    same = alike(items)
    if same is None or same.verb != "ack":
        return False
    tx, lease, count = ledger.tx, same.lease, len(items)
    if len(set(same.jobs)) != count:
        return False
    record = read_lease(tx, queue.number, lease)
    if record is None or record.expires_at_ms <= ledger.now:
        return False
    if not _end_segments(ledger, queue, same) and not _end_rows(ledger, queue, same):
        return False
    close_jobs(tx, queue.number, lease, record, count)
    ledger.count(queue.number, Counter.LEASED, -count)
    ledger.freed(queue, count)
    return True


def _end_segments(ledger: Ledger, queue: Registered, same: AlikeSettles) -> bool:
    tx = ledger.tx
    if not isinstance(tx, SegmentedTransaction) or not ledger.fits(len(same.jobs)):
        return False
    segments = together.held(tx, queue, same.lease, same.jobs, tuple(same.tokens))
    if segments is None:
        return False
    together.remove_done(ledger, tx, queue, segments, same.lease)
    _count_done(ledger, queue, same.jobs)
    return True


def _end_rows(ledger: Ledger, queue: Registered, same: AlikeSettles) -> bool:
    jobs, count = same.jobs, len(same.jobs)
    states = records.state_rows(get_each(ledger.tx, keyspace.STATE, [queue.prefix + job for job in jobs]))
    if states is None:
        return False
    _, kinds, _, _, _, _, _, _, held_at, _, _, _, _, held_by = zip(*states, strict=True)
    if kinds.count(_LEASED) != count or held_by.count(same.lease) != count or held_at != tuple(same.tokens):
        return False
    _remove_done(ledger, queue, jobs, states)
    return True


def _judge(
    ledger: Ledger, queue: Registered, items: Sequence[Settle]
) -> tuple[list[TenureError | None], list[tuple[int, StateRecord]], dict[bytes, LeaseRecord]]:
    """Which of the items hold their job: the outcomes so far, (index, state) of those that do, and their leases."""
    tx, now = ledger.tx, ledger.now
    prefix = keyspace.queue_prefix(queue.number)
    jobs = [item.proof[0] for item in items]
    states = records.decode_states(get_each(tx, keyspace.STATE, [prefix + job for job in jobs]), jobs)
    outcomes: list[TenureError | None] = [None] * len(items)
    held: list[tuple[int, StateRecord]] = []
    leases: dict[bytes, LeaseRecord] = {}
    dead: set[bytes] = set()
    seen: set[bytes] = set()
    for index, state in enumerate(states):
        job, lease, token = items[index].proof
        if type(state) is not StateRecord:
            gone = LeaseLost(job.hex(), token, "it is no longer there")
            outcomes[index] = state if isinstance(state, Corrupt) else gone
            continue
        if state[1] != _LEASED or state[13] != lease or state[8] != token:
            outcomes[index] = _not_held(state, job, lease, token)
            continue
        if job in seen:
            outcomes[index] = AlreadySettled(job.hex(), token)
            continue
        if lease not in leases and lease not in dead:
            record = read_lease(tx, queue.number, lease)
            if record is None:
                raise Corrupt(f"its lease {lease.hex()} is missing", job.hex())
            if record.expires_at_ms > now:
                leases[lease] = record
            else:
                dead.add(lease)
        if lease in dead:
            outcomes[index] = LeaseLost(job.hex(), token, "its lease has expired")
            continue
        seen.add(job)
        held.append((index, state))
    return outcomes, held, leases


def _not_held(state: StateRecord, job: bytes, lease: bytes, token: int) -> LeaseLost:
    # A settled job keeps the lease that settled it; one whose lease expired does not.
    if state.state != _LEASED and state.lease == lease != NO_ID and state.token == token:
        return AlreadySettled(job.hex(), token)
    return LeaseLost(job.hex(), token)


# ── ack ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _remove_done(ledger: Ledger, queue: Registered, jobs: Sequence[bytes], states: Sequence[StateFields]) -> None:
    """Done, and not kept: gone in the same step."""
    tx, number, prefix = ledger.tx, queue.number, queue.prefix
    _, _, priorities, _, flags, attempts, max_attempts, _, tokens, _, _, _, last, leases = zip(*states, strict=True)
    for job, each in zip(jobs, flags, strict=True) if any(flags) else ():
        if each:
            delete_extras(tx, number, job, each)
    ledger.events(queue.done, priorities, jobs, leases, tokens, attempts, max_attempts, 0, last)
    keys = [prefix + job for job in jobs]
    tx.delete_many(keyspace.JOBS, keys)
    tx.delete_many(keyspace.STATE, keys)
    _count_done(ledger, queue, jobs)


def _count_done(ledger: Ledger, queue: Registered, jobs: Sequence[bytes]) -> None:
    ledger.count(queue.number, Counter.REMOVED, len(jobs))
    ledger.ended.extend(jobs)


def _keep_done(ledger: Ledger, queue: Registered, job: bytes, state: StateRecord, result: bytes | None) -> None:
    keep_ms = max(queue.retention_ms, 0 if result is None else queue.result_retention_ms)
    if not keep_ms:
        _remove_done(ledger, queue, (job,), (state,))
        return
    tx, now, number = ledger.tx, ledger.now, queue.number
    done = state._replace(state=int(State.DONE), ended_at_ms=now, due_at_ms=now + keep_ms)
    if result is not None:
        done = done._replace(flags=done.flags | put_result(tx, number, job, done, result))
    ref = ledger.event(Change.DONE, number, job, done, lease=state.lease, previous=state.last_event)
    tx.put(keyspace.STATE, keyspace.of_queue(number, job), records.encode_state(done._replace(last_event=ref)))
    tx.put(keyspace.DONE, keyspace.ended(number, now, job), b"")
    tx.put(keyspace.DUE, keyspace.due(Due.RETENTION, now + keep_ms, number, job), b"")
    ledger.count(number, Counter.DONE, 1)
    ledger.ended.append(job)


# ── nack, fail, release ──────────────────────────────────────────────────────────────────────────────────────────────


def _failed(ledger: Ledger, queue: Registered, item: Settle, state: StateRecord, roll: float) -> None:
    job = item.proof.job
    if item.verb == "fail":
        kill(ledger, queue, job, state, Reason.FAILED, item.error, state.lease)
        return
    verdict = after_failure(queue.policy, state.attempt, state.max_attempts, ledger.now, item.delay_ms, roll)
    if verdict.retry_at_ms is None:
        kill(ledger, queue, job, state, Reason.MAX_ATTEMPTS, item.error, state.lease)
    else:
        again = state._replace(visible_at_ms=verdict.retry_at_ms)
        give_back(ledger, queue, job, again, Change.RETRIED, state.lease, item.error)


def give_back(
    ledger: Ledger,
    queue: Registered,
    job: bytes,
    state: StateRecord,
    change: Change,
    lease: bytes,
    error: str | None = None,
) -> None:
    """From leased to waiting, visible when the state says. `lease`: what settled it, or zeros if it expired.

    The caller counts LEASED down, once for all its jobs.
    """
    tx, number = ledger.tx, queue.number
    held_by = state.lease
    state = state._replace(state=_WAITING, lease=lease)
    if error is not None:
        state = state._replace(flags=state.flags | write_notes(tx, number, job, Notes(error=error)))
    ref = ledger.event(
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
    tx.put(keyspace.READY, keyspace.ready(number, state.priority, state.visible_at_ms, job), b"")
    ledger.count(number, Counter.WAITING, 1)
    quota_usage.back(ledger, queue, (job,))
    ledger.ready(queue, state.priority, state.visible_at_ms)


def kill(
    ledger: Ledger, queue: Registered, job: bytes, state: StateRecord, reason: Reason, error: str | None, lease: bytes
) -> None:
    """From leased to dead: the one path there. The caller counts LEASED down."""
    tx, now, number = ledger.tx, ledger.now, queue.number
    held_by = state.lease
    state = state._replace(state=int(State.DEAD), reason=int(reason), ended_at_ms=now, lease=lease)
    if error is not None:
        state = state._replace(flags=state.flags | write_notes(tx, number, job, Notes(error=error)))
    ref = ledger.event(Change.DIED, number, job, state, lease=held_by, previous=state.last_event, text=error or "")
    tx.put(keyspace.STATE, keyspace.of_queue(number, job), records.encode_state(state._replace(last_event=ref)))
    tx.put(keyspace.DEAD, keyspace.ended(number, now, job), b"")
    ledger.count(number, Counter.DEAD, 1)
    ledger.ended.append(job)


# ── extend, progress ─────────────────────────────────────────────────────────────────────────────────────────────────


def extend(core: Core, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
    def run(ledger: Ledger) -> Extended:
        tx = ledger.tx
        queue = core.registry.find(tx, name)
        record = None if queue is None else read_lease(tx, queue.number, lease)
        if queue is None or record is None or record.expires_at_ms <= ledger.now:
            raise LeaseLost(detail="its lease has ended")
        lost = lost_jobs(tx, queue.number, lease) if record.lost else []
        until = max(record.expires_at_ms, ledger.now + lease_ms)
        if until > record.expires_at_ms:
            tx.put(
                keyspace.LEASES,
                keyspace.of_queue(queue.number, lease),
                records.encode_lease(record._replace(expires_at_ms=until)),
            )
            tx.delete(keyspace.DUE, keyspace.due(Due.LEASE, record.expires_at_ms, queue.number, lease))
            tx.put(keyspace.DUE, keyspace.due(Due.LEASE, until, queue.number, lease), b"")
            if record.claim != NO_ID:
                _remember_longer(ledger, queue.number, record, until)
            ledger.event(Change.EXTENDED, queue.number, lease=lease, at_ms=until)
        return Extended(until, [job.hex() for job in lost])

    return core.write(run, answer=_EXTENDED)


def _remember_longer(ledger: Ledger, queue: int, record: LeaseRecord, until: int) -> None:
    """The claim's id is remembered from the lease's end on, which has moved."""
    before, after = record.expires_at_ms + CLAIM_MEMORY_MS, until + CLAIM_MEMORY_MS
    ledger.tx.delete(keyspace.DUE, keyspace.due(Due.CLAIM, before, queue, record.claim))
    ledger.tx.put(keyspace.DUE, keyspace.due(Due.CLAIM, after, queue, record.claim), b"")


def progress(core: Core, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
    def run(ledger: Ledger) -> None:
        tx = ledger.tx
        queue = core.registry.find(tx, name)
        if queue is None:
            raise LeaseLost(proof.job.hex(), proof.token)
        outcomes, held, _ = _judge(ledger, queue, (Settle("ack", proof),))
        if outcomes[0] is not None:
            raise outcomes[0]
        state = held[0][1]
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
