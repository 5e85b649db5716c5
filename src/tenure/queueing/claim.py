"""Claims: one lease over the first jobs of a queue, in one transaction.

A claim reads, in this order: the leases that have run out (and gives their jobs back, in a transaction of its own),
then the ready rows of each priority up to now. What it meets on the way that should not be there (a row without its
job, a job past its ttl) it clears; a damaged job it leaves where it is, and goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import repeat

import msgspec

from tenure.errors import Corrupt, InvalidArgument, LeaseLost
from tenure.model.ids import NO_ID
from tenure.model.lease import ClaimRequest, Delivery, DeliveryColumns, Leased
from tenure.model.lifecycle import Change, State
from tenure.model.names import QueueName
from tenure.queueing import limits, quota_usage, single, sweep, together
from tenure.queueing.core import Core
from tenure.queueing.leases import CLAIM_MEMORY_MS, held_jobs, whole_payload
from tenure.queueing.ledger import Ledger
from tenure.queueing.registry import Registered
from tenure.queueing.removal import remove
from tenure.queueing.selection import Taken, pick
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import Counter, Due
from tenure.storage.segments import SegmentedTransaction

_LEASED = int(State.LEASED)


def claim(
    core: Core, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
) -> Leased | None:
    """Try once; then, if asked to wait, stand in line until there is something or the time is up."""
    if request.limit == 1 and len(names) == 1 and core.straight is not None:
        kept = None if request.id is None else single.Kept(keyspace.digest(request.id.encode()), _asked(request))
        straight = single.claim(core, names[0], request, kept)
        leased = _try_all(core, names, request) if isinstance(straight, single.Unusual) else straight
    else:
        leased = _try_all(core, names, request)
    if leased is not None or not request.wait_ms:
        return leased
    deadline = core.time.now_ms() + request.wait_ms
    waiter = core.waiters.join(names)
    try:
        while not (cancel is not None and cancel.is_set()):
            waiter.signal.clear()
            seen = core.engine.version()
            leased = _try_all(core, names, request)
            remaining = deadline - core.time.now_ms()
            if leased is not None or remaining <= 0:
                return leased
            _wait(core, waiter.signal, core.waiters.leads(waiter), remaining, seen, cancel)
        return None
    finally:
        core.waiters.leave(waiter)


def _wait(
    core: Core,
    signal: threading.Event,
    leading: Sequence[object],
    remaining_ms: int,
    seen: int,
    cancel: threading.Event | None,
) -> None:
    """Sleep until something may have changed. Only who leads a line watches the clock and other processes."""
    wake_at = core.time.now_ms() + remaining_ms
    if leading:
        due = core.read(lambda reader: next_due(core, reader, leading))
        if due is not None and due < wake_at:
            wake_at = due
    # A cancelled caller is noticed soon, though nothing in the store tells of it.
    slices = [s for s in (core.engine.traits.poll if leading else None, 0.05 if cancel is not None else None) if s]
    poll = min(slices) if slices else None
    while True:
        left = wake_at - core.time.now_ms()
        if left <= 0 or core.clock.wait(signal, left / 1000, poll) or core.engine.version() != seen:
            return
        if cancel is not None and cancel.is_set():
            return


def next_due(core: Core, reader: Reader, names: Sequence[object]) -> int | None:
    """When the next job of these queues becomes ready, or a lease (of any queue) runs out."""
    times = []
    for name in names:
        queue = core.registry.find(reader, name)  # type: ignore[arg-type]  # lines of claims are queue names
        if queue is None or queue.paused:
            continue
        opens = limits.opens_at(reader, queue) if queue.limited else 0
        if opens is None:
            continue  # whoever lets a job go wakes the line; and leases that end are looked at below
        for priority, prefix in zip(range(9, -1, -1), queue.tiers, strict=True):
            keys = reader.keys(keyspace.READY, prefix, keyspace.ready_tier_end(queue.number, priority), 1)
            if keys:
                times.append(max(keyspace.split_ready(keys[0]).visible_at_ms, opens))
    leases = reader.keys(keyspace.DUE, keyspace.due_prefix(Due.LEASE), keyspace.due_end(Due.LEASE), 1)
    if leases:
        times.append(keyspace.split_due(leases[0]).time_ms)
    return min(times) if times else None


def _try_all(core: Core, names: Sequence[QueueName], request: ClaimRequest) -> Leased | None:
    damaged: Corrupt | None = None
    for name in names:
        try:
            leased = _try(core, name, request, names)
        except Corrupt as exc:
            if len(names) == 1:
                raise
            damaged = exc  # another queue may still be served
            continue
        if leased is not None:
            return leased
    if damaged is not None:
        raise damaged
    return None


def _try(core: Core, name: QueueName, request: ClaimRequest, names: Sequence[QueueName]) -> Leased | None:
    if not core.only_writer and request.id is None and not core.read(lambda reader: _worth_it(core, reader, name)):
        return None  # looking is cheap there, and taking the writer's lock is not
    now = core.time.now_ms()
    lease = core.ids.one(now)
    while True:
        outcome = core.write(lambda ledger: _claim(core, ledger, name, request, lease, names))
        if outcome is not _AGAIN:
            return outcome


#: Expired leases were taken over first: their jobs can be read by the next transaction only.
_AGAIN = Leased(QueueName("", ""), NO_ID, 0, [])


def _worth_it(core: Core, reader: Reader, name: QueueName) -> bool:
    queue = core.registry.find(reader, name)
    if queue is None or queue.paused:
        return False
    due = next_due(core, reader, (name,))
    return due is not None and due <= core.time.now_ms()


def _claim(
    core: Core, ledger: Ledger, name: QueueName, request: ClaimRequest, lease: bytes, names: Sequence[QueueName]
) -> Leased | None:
    tx = ledger.tx
    claim_key = asked = NO_ID
    if request.id is not None:
        claim_key = keyspace.digest(request.id.encode())
        asked = _asked(request)
        given = _given_before(core, ledger, names, claim_key, asked)
        if given is not None:
            return given
    queue = core.registry.find(tx, name)
    if queue is None or queue.paused:
        return None
    expired = sweep.expired_leases(tx, ledger.now)
    if expired and sweep.expire(core, ledger, expired)["leases"]:
        return _AGAIN
    if queue.limited:
        room = limits.room(tx, queue, ledger.now, request.limit)
        if not room:
            return None
        request = msgspec.structs.replace(request, limit=room)
    tiers = core.tiers.of(tx, queue)
    columns = _take_segments(ledger, queue, request, lease, tiers)
    if columns is not None:
        return _leased(ledger, queue, name, request, lease, claim_key, asked, columns)
    taken = pick(ledger, queue, tiers, request)
    for key in taken.orphans:
        tx.delete(keyspace.READY, key)
    for job, state in taken.expired:
        remove(ledger, queue.number, job, state, Change.TTL_PASSED)
    if not taken.jobs:
        if taken.damaged and not (taken.expired or taken.orphans):
            raise taken.damaged[0]
        return _AGAIN if taken.damaged else None
    return _grant(ledger, queue, name, request, lease, claim_key, asked, taken)


def _given_before(
    core: Core, ledger: Ledger, names: Sequence[QueueName], claim_key: bytes, asked: bytes
) -> Leased | None:
    """What a claim with this id was given. Over several queues, it may find jobs in one that had none: any may have served it."""
    for queue in (core.registry.find(ledger.tx, name) for name in names):
        seen = None if queue is None else ledger.tx.get(keyspace.CLAIMS, keyspace.of_queue(queue.number, claim_key))
        if queue is not None and seen is not None:
            return _repeat(ledger, queue, records.decode_claim(seen), asked)
    return None


def _take_segments(
    ledger: Ledger, queue: Registered, request: ClaimRequest, lease: bytes, tiers: Sequence[bytes]
) -> DeliveryColumns | None:
    """The next jobs, if they were enqueued together and can be given out so; None: pick them one by one."""
    tx = ledger.tx
    if not isinstance(tx, SegmentedTransaction) or request.max_bytes is not None or queue.meter:
        return None
    shares = together.first_in_line(tx, tiers, ledger.now, request.limit)
    if shares is None:
        return None
    expires = ledger.now + (request.lease_ms or queue.lease_ms)
    return together.lease(ledger, tx, queue, shares, lease, expires, request.worker)


def _asked(request: ClaimRequest) -> bytes:
    """Stands for what a claim asked for; how long it is ready to wait may differ when it is repeated."""
    return keyspace.digest(repr((request.limit, request.lease_ms, request.worker, request.max_bytes)).encode())


# ── granting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _grant(
    ledger: Ledger,
    queue: Registered,
    name: QueueName,  # the caller's own object, by which it knows its deliveries again
    request: ClaimRequest,
    lease: bytes,
    claim_key: bytes,
    asked: bytes,
    taken: Taken,
) -> Leased:
    tx, now, number, jobs = ledger.tx, ledger.now, queue.number, taken.jobs
    count = len(jobs)
    expires = now + (request.lease_ms or queue.lease_ms)
    # Column by column: a batch is granted by a few calls that each do one thing to all its jobs.
    _, _, priorities, reasons, flags, attempts, max_attempts, replays, tokens, visible, ended, due_at, last, _ = zip(
        *taken.states, strict=True
    )
    attempts = tuple(map(_next, attempts))
    tokens = tuple(map(_next, tokens))
    for job, due in zip(jobs, due_at, strict=True) if any(due_at) else ():
        if due:
            tx.delete(keyspace.DUE, keyspace.due(Due.TTL, due, number, job))
    leases = (lease,) * count
    refs = ledger.events(
        queue.claimed, priorities, jobs, leases, tokens, attempts, max_attempts, expires, last, request.worker
    )
    states = records.seal_states(
        repeat(records.V1), repeat(_LEASED), priorities, reasons, flags, attempts, max_attempts, replays, tokens, visible,
        ended, repeat(0), refs, leases,
    )  # fmt: skip
    created, _, keys, headers, _, payloads = zip(*taken.records, strict=True)
    columns = DeliveryColumns(
        jobs,
        tokens,
        payloads,
        attempts,
        max_attempts,
        priorities,
        created,
        list(map(_headers, headers, jobs)) if any(headers) else None,
        list(map(_key, keys)) if any(keys) else None,
    )
    tx.delete_many(keyspace.READY, taken.keys)
    tx.put_many(keyspace.STATE, list(zip([queue.prefix + job for job in jobs], states, strict=True)))
    if queue.meter:
        quota_usage.moved(ledger, queue.meter, -count, -taken.bytes)
    return _leased(ledger, queue, name, request, lease, claim_key, asked, columns)


def _leased(
    ledger: Ledger,
    queue: Registered,
    name: QueueName,
    request: ClaimRequest,
    lease: bytes,
    claim_key: bytes,
    asked: bytes,
    columns: DeliveryColumns,
) -> Leased:
    """The lease itself, over jobs that are given to it in this transaction."""
    tx, now, number, count = ledger.tx, ledger.now, queue.number, len(columns.jobs)
    expires = now + (request.lease_ms or queue.lease_ms)
    at = keyspace.of_queue(number, lease)
    tx.put(keyspace.LEASES, at, records.encode_lease(records.new_lease(expires, now, count, claim_key, request.worker)))
    tx.put(keyspace.LEASE_JOBS, at, records.encode_lease_jobs(columns.jobs, columns.tokens))
    tx.put(keyspace.DUE, keyspace.due(Due.LEASE, expires, number, lease), b"")
    if request.id is not None:
        tx.put(keyspace.CLAIMS, keyspace.of_queue(number, claim_key), records.encode_claim(lease, asked))
        tx.put(keyspace.DUE, keyspace.due(Due.CLAIM, expires + CLAIM_MEMORY_MS, number, claim_key), b"")
    if queue.limited:
        limits.take(ledger, queue, count)
    ledger.count(number, Counter.WAITING, -count)
    ledger.count(number, Counter.LEASED, count)
    # Whoever leads the line plans for this lease's end too.
    ledger.woken[name] = max(ledger.woken.get(name, 0), 1)
    return Leased(name, lease, expires, columns=columns)


_next = (1).__add__


def _headers(raw: bytes, job: bytes) -> dict[str, str]:
    return records.decode_headers(raw, job) if raw else {}


def _key(raw: bytes) -> str | None:
    return raw.decode("utf-8", "replace") if raw else None


def _repeat(ledger: Ledger, queue: Registered, claim: records.ClaimRecord, asked: bytes) -> Leased:
    """A claim whose id was seen before: its jobs that are still open, or how it ended."""
    if claim.asked != asked:
        raise InvalidArgument("a claim with this id asked for something else: use another id")
    if claim.expired:
        raise LeaseLost(detail="the claim with this id has expired")
    tx, number = ledger.tx, queue.number
    at = keyspace.of_queue(number, claim.lease)
    raw = tx.get(keyspace.LEASES, at)
    if raw is None:
        return Leased(queue.name, claim.lease, ledger.now, [])  # all settled: an answer, so nobody waits for another
    lease = records.decode_lease(raw, claim.lease)
    if lease.expires_at_ms <= ledger.now:
        raise LeaseLost(detail="the claim with this id has expired")
    deliveries = []
    for job, state in held_jobs(tx, number, claim.lease).jobs:
        raw_job = tx.get(keyspace.JOBS, keyspace.of_queue(number, job))
        if raw_job is None:
            raise Corrupt("its payload is missing", job.hex())
        record = records.decode_job(raw_job, job)
        if record.parts:
            record = record._replace(payload=whole_payload(tx, number, job, record))
        deliveries.append(
            Delivery(
                queue.name,
                job,
                claim.lease,
                state.token,
                record.payload,
                state.attempt,
                state.max_attempts,
                state.priority,
                record.created_at_ms,
                _headers(record.headers, job),
                _key(record.key),
            )
        )
    return Leased(queue.name, claim.lease, lease.expires_at_ms, deliveries)
