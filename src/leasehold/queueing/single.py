"""One plain job at a time, in straight lines.

A verb on one job costs mostly the Python that runs once for it, most of it cold: the general verbs, made for batches,
run some 230 lines where the engine itself needs 45. These three do the commonest case in a third of that, on an engine
with one writer: a job without key, ttl or headers that fits one row; a claim of one; an ack that keeps nothing.
Whatever else they meet, they leave to the general verb (`UNUSUAL`), having written nothing. They write the very same
rows, to which `tests/queueing/test_single.py` holds them.
"""

from __future__ import annotations

from typing import Final

from leasehold.errors import Corrupt
from leasehold.model.ids import NO_ID
from leasehold.model.job import Enqueued
from leasehold.model.lease import ClaimRequest, Delivery, Leased, Proof
from leasehold.model.lifecycle import State
from leasehold.model.names import QueueName
from leasehold.model.request import JobRequest
from leasehold.queueing.core import JOURNAL_LINE, Core
from leasehold.queueing.ledger import ALL, Tail
from leasehold.storage import records
from leasehold.storage.engine import Transaction
from leasehold.storage.keyspace import (
    DUE,
    JOBS,
    JOURNAL,
    LEASE_JOBS,
    LEASES,
    READY,
    STATE,
    Counter,
    Due,
    commit,
    due,
    due_prefix,
    due_until,
    ready,
)  # fmt: skip
from leasehold.storage.records import NO_TEXT, PART_BYTES, encode_journal, pack_event_middle, seal_state


class Unusual:
    """What these verbs leave to the general ones."""


UNUSUAL: Final = Unusual()
_WAITING, _LEASED = int(State.WAITING), int(State.LEASED)
_W, _L, _E, _R = int(Counter.WAITING), int(Counter.LEASED), int(Counter.ENQUEUED), int(Counter.REMOVED)
_EXPIRED = due_prefix(Due.LEASE)
_LEASE = int(Due.LEASE)


def enqueue(core: Core, name: QueueName, request: JobRequest) -> Enqueued | Unusual:
    payload, delay_ms, at_ms, priority, key, attempts, ttl_ms, headers = request
    queue = core.registry.known(name)
    if (
        queue is None or at_ms is not None or key or ttl_ms is not None or headers or len(payload) > PART_BYTES
        or queue.policy.max_waiting is not None
    ):  # fmt: skip
        return UNUSUAL
    now = core.time.now_ms()
    job = core.ids.one(now)
    max_attempts = attempts or queue.policy.max_attempts

    def run(tx: Transaction) -> int:
        number, first, time_ms = core.tail
        if number + 1 != tx.next_append(JOURNAL) or core.registry.known(name) is not queue:
            return -1
        at = now if now > time_ms else time_ms
        visible = at + delay_ms
        row = queue.prefix + job
        state = seal_state(
            1, _WAITING, priority, 0, 0, 0, max_attempts, 0, 0, visible, 0, 0, number + 1 << 10, NO_ID
        )  # fmt: skip
        tx.write(
            (
                (JOBS, row, records.encode_job(at, payload, b"", b"")[0]),
                (STATE, row, state),
                (READY, ready(queue.number, priority, visible, job), b""),
            ),
            (),
            ((queue.counters[_W], 1), (queue.counters[_E], 1)),
        )
        event = queue.enqueued[priority] + job + NO_ID + pack_event_middle(0, 0, max_attempts, visible, 0) + NO_TEXT
        core.tail = Tail(tx.append(JOURNAL, encode_journal(first, at, (event,), b"")), first + 1, at)
        core.tiers.add(queue.number, (priority,))
        return visible - at

    wait = core.engine.transact(run)
    if wait < 0:
        return UNUSUAL
    if core.waiters.anyone:
        core.waiters.wake(name, ALL if wait else 1)
        core.waiters.wake(JOURNAL_LINE, ALL)
    return Enqueued(job.hex())


def claim(core: Core, name: QueueName, request: ClaimRequest, lease: bytes, now: int) -> Leased | Unusual | None:
    queue = core.registry.known(name)
    if queue is None or queue.paused or request.id is not None or request.limit != 1:
        return UNUSUAL
    lease_ms, worker = request.lease_ms or queue.lease_ms, request.worker

    def run(tx: Transaction) -> Leased | Unusual | None:
        number, first, time_ms = core.tail
        at = now if now > time_ms else time_ms
        if number + 1 != tx.next_append(JOURNAL) or core.registry.known(name) is not queue:
            return UNUSUAL
        if tx.keys(DUE, _EXPIRED, due_until(_LEASE, at), 1):
            return UNUSUAL
        until = commit(at + 1)
        for tier in core.tiers.of(tx, queue):
            keys = tx.keys(READY, tier, tier + until, 1)
            if keys:
                break
        else:
            return None
        key = keys[0]
        job = key[13:]
        row = queue.prefix + job
        raw, body = tx.get(STATE, row), tx.get(JOBS, row)
        if raw is None or body is None:
            return UNUSUAL
        state, record = records.decode_state(raw, job), records.decode_job(body, job)
        (_, kind, priority, reason, flags, attempt, max_attempts, replays, token, visible, ended, due_at, last, _) = (
            state
        )
        if (
            kind != _WAITING or due_at or record.parts or record.headers or record.key
            or key != ready(queue.number, priority, visible, job)
        ):  # fmt: skip
            return UNUSUAL
        attempt += 1
        token += 1
        expires = at + lease_ms
        held = queue.prefix + lease
        leased = seal_state(
            1, _LEASED, priority, reason, flags, attempt, max_attempts, replays, token, visible, ended, 0,
            number + 1 << 10, lease,
        )  # fmt: skip
        tx.write(
            (
                (STATE, row, leased),
                (LEASES, held, records.encode_lease(records.new_lease(expires, at, 1, NO_ID, worker))),
                (LEASE_JOBS, held, records.encode_lease_jobs(((job, token),))),
                (DUE, due(_LEASE, expires, queue.number, lease), b""),
            ),
            ((READY, key),),
            ((queue.counters[_W], -1), (queue.counters[_L], 1)),
        )
        text = worker.encode()
        event = (
            queue.claimed[priority] + job + lease + pack_event_middle(token, attempt, max_attempts, expires, last)
            + (records.pack_event_text(0, len(text)) if text else NO_TEXT)
        )  # fmt: skip
        core.tail = Tail(tx.append(JOURNAL, encode_journal(first, at, (event,), text)), first + 1, at)
        delivery = Delivery(
            name, job, lease, token, record.payload, attempt, max_attempts, priority, record.created_at_ms, {}
        )
        return Leased(name, lease, expires, [delivery])

    try:
        leased = core.engine.transact(run)
    except Corrupt:
        return UNUSUAL
    if leased is not None and core.waiters.anyone:
        core.waiters.wake(name, 1)
        core.waiters.wake(JOURNAL_LINE, ALL)
    return leased


def ack(core: Core, name: QueueName, proof: Proof) -> Unusual | None:
    queue = core.registry.known(name)
    if queue is None or queue.retention_ms:
        return UNUSUAL
    now = core.time.now_ms()
    job, lease, token = proof

    def run(tx: Transaction) -> Unusual | None:
        number, first, time_ms = core.tail
        at = now if now > time_ms else time_ms
        if number + 1 != tx.next_append(JOURNAL) or core.registry.known(name) is not queue:
            return UNUSUAL
        row, held = queue.prefix + job, queue.prefix + lease
        raw, given = tx.get(STATE, row), tx.get(LEASES, held)
        if raw is None or given is None:
            return UNUSUAL
        state, record = records.decode_state(raw, job), records.decode_lease(given, lease)
        if (
            state.state != _LEASED or state.lease != lease or state.token != token or state.flags
            or record.expires_at_ms <= at or record.lost or record.open != 1
        ):  # fmt: skip
            return UNUSUAL
        tx.write(
            (),
            (
                (JOBS, row),
                (STATE, row),
                (LEASES, held),
                (LEASE_JOBS, held),
                (DUE, due(_LEASE, record.expires_at_ms, queue.number, lease)),
            ),
            ((queue.counters[_R], 1), (queue.counters[_L], -1)),
        )
        middle = pack_event_middle(token, state.attempt, state.max_attempts, 0, state.last_event)
        event = queue.done[state.priority] + job + lease + middle + NO_TEXT
        core.tail = Tail(tx.append(JOURNAL, encode_journal(first, at, (event,), b"")), first + 1, at)
        return None

    try:
        outcome = core.engine.transact(run)
    except Corrupt:
        return UNUSUAL
    if outcome is None and core.waiters.anyone:
        core.waiters.wake(job, ALL)
        core.waiters.wake(JOURNAL_LINE, ALL)
    return outcome
