"""Claims: one lease over the first jobs of a queue, in one transaction.

A claim reads, in this order: the leases that have run out (and gives their jobs back, in a transaction of its own),
then the ready rows of each priority up to now. What it meets on the way that should not be there (a row without its
job, a job past its ttl) it clears; a damaged job it leaves where it is, and goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from leasehold.errors import Corrupt, InvalidArgument, LeaseLost
from leasehold.model.ids import NO_ID
from leasehold.model.lease import ClaimRequest, Delivery, Leased
from leasehold.model.lifecycle import Change, State
from leasehold.model.names import QueueName
from leasehold.queueing import limits, meters, single, sweep
from leasehold.queueing.core import Core
from leasehold.queueing.leases import CLAIM_MEMORY_MS, held_jobs, whole_payload
from leasehold.queueing.ledger import Ledger
from leasehold.queueing.registry import Registered
from leasehold.queueing.removal import remove
from leasehold.storage import keyspace, records
from leasehold.storage.checksum import crc32
from leasehold.storage.engine import Reader, Row, get_each
from leasehold.storage.keyspace import Counter, Due
from leasehold.storage.records import JobRecord, StateRecord

_LEASED = int(State.LEASED)
_WAITING = int(State.WAITING)
#: Ready rows that may be passed over (expired, orphaned, damaged) before a claim settles for what it has.
_PASSED_OVER = 10_000


class _Taken:
    """Jobs picked by a claim, with what was read of them, and what was wrong on the way."""

    __slots__ = ("bytes", "damaged", "expired", "jobs", "orphans")

    def __init__(self) -> None:
        #: The ready row, the job, its state and what never changes about it.
        self.jobs: list[tuple[bytes, bytes, StateRecord, JobRecord]] = []
        self.bytes = 0
        self.expired: list[tuple[bytes, StateRecord]] = []
        self.orphans: list[bytes] = []
        self.damaged: list[Corrupt] = []


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
        # A repeated claim over several queues may find jobs in one that had none: any of them may have served it.
        for asked_of in (core.registry.find(tx, other) for other in names):
            seen = None if asked_of is None else tx.get(keyspace.CLAIMS, keyspace.of_queue(asked_of.number, claim_key))
            if asked_of is not None and seen is not None:
                return _repeat(ledger, asked_of, records.decode_claim(seen), asked)
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
    taken = _pick(ledger, queue, core.tiers.of(tx, queue), request)
    for key in taken.orphans:
        tx.delete(keyspace.READY, key)
    for job, state in taken.expired:
        remove(ledger, queue.number, job, state, Change.TTL_PASSED)
    if not taken.jobs:
        if taken.damaged and not (taken.expired or taken.orphans):
            raise taken.damaged[0]
        return _AGAIN if taken.damaged else None
    return _grant(ledger, queue, name, request, lease, claim_key, asked, taken)


def _asked(request: ClaimRequest) -> bytes:
    """Stands for what a claim asked for; how long it is ready to wait may differ when it is repeated."""
    return keyspace.digest(repr((request.limit, request.lease_ms, request.worker, request.max_bytes)).encode())


# ── picking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pick(ledger: Ledger, queue: Registered, tiers: Sequence[bytes], request: ClaimRequest) -> _Taken:
    taken = _Taken()
    until = keyspace.commit(ledger.now + 1)
    limit = request.limit
    passed = 0
    for prefix in tiers:
        begin, end = prefix, prefix + until
        while len(taken.jobs) < limit:
            wanted = limit - len(taken.jobs)
            keys = ledger.tx.keys(keyspace.READY, begin, end, wanted)
            if not keys:
                break
            before = len(taken.jobs)
            if not _look(ledger, queue, request, keys, taken):
                return taken
            if len(keys) < wanted:
                break
            passed += len(keys) - (len(taken.jobs) - before)
            if passed > _PASSED_OVER and taken.jobs:
                return taken
            begin = keys[-1] + b"\0"
        if len(taken.jobs) >= limit:
            break
    return taken


def _look(ledger: Ledger, queue: Registered, request: ClaimRequest, keys: list[bytes], taken: _Taken) -> bool:
    """Read the jobs these rows point at; take those that are good. False: `max_bytes` is reached."""
    tx, number, now, max_bytes = ledger.tx, queue.number, ledger.now, request.max_bytes
    jobs = [key[13:] for key in keys]
    rows = [queue.prefix + job for job in jobs]
    states = records.decode_states(get_each(tx, keyspace.STATE, rows), jobs)
    found = records.decode_jobs(get_each(tx, keyspace.JOBS, rows), jobs)
    pack_ready, take = keyspace.pack_ready, taken.jobs.append
    for key, job, state, record in zip(keys, jobs, states, found, strict=True):
        if type(state) is not StateRecord or type(record) is not JobRecord:
            if state is None:
                taken.orphans.append(key)
            else:
                taken.damaged.append(state if isinstance(state, Corrupt) else record)  # type: ignore[arg-type]
            continue
        if state[1] != _WAITING or key != pack_ready(number, 9 - state[2], state[9], job):
            taken.orphans.append(key)
            continue
        if state.due_at_ms and state.due_at_ms <= now:
            taken.expired.append((job, state))
            continue
        if max_bytes is not None and taken.jobs and taken.bytes + record.payload_bytes > max_bytes:
            return False
        if record.parts:
            try:
                record = record._replace(payload=whole_payload(tx, number, job, record))
            except Corrupt as exc:
                taken.damaged.append(exc)
                continue
        taken.bytes += record.payload_bytes
        take((key, job, state, record))
    return True


# ── granting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _grant(
    ledger: Ledger,
    queue: Registered,
    name: QueueName,  # the caller's own object, by which it knows its deliveries again
    request: ClaimRequest,
    lease: bytes,
    claim_key: bytes,
    asked: bytes,
    taken: _Taken,
) -> Leased:
    tx, now, number = ledger.tx, ledger.now, queue.number
    expires = now + (request.lease_ms or queue.lease_ms)
    prefix, heads = queue.prefix, queue.claimed
    states: list[Row] = []
    events: list[bytes] = []
    given: list[tuple[bytes, int]] = []
    deliveries: list[Delivery] = []
    pack_state, pack_crc, pack_middle = records.pack_state, records.pack_crc, records.pack_event_middle
    for begin, end, ref, text in ledger.room(len(taken.jobs), request.worker):
        for _, job, state, record in taken.jobs[begin:end]:
            _, _, priority, reason, flags, attempt, max_attempts, replays, token, visible, ended, due_at, last, _ = (
                state
            )
            attempt += 1
            token += 1
            if due_at:
                tx.delete(keyspace.DUE, keyspace.due(Due.TTL, due_at, number, job))
            body = pack_state(
                1,
                _LEASED,
                priority,
                reason,
                flags,
                attempt,
                max_attempts,
                replays,
                token,
                visible,
                ended,
                0,
                ref,
                lease,
            )
            states.append((prefix + job, body + pack_crc(crc32(body))))
            events.append(
                heads[priority] + job + lease + pack_middle(token, attempt, max_attempts, expires, last) + text
            )
            given.append((job, token))
            created, _, key, headers, _, payload = record
            if key or headers:
                deliveries.append(_delivery(name, job, lease, token, attempt, max_attempts, priority, record))
            else:
                deliveries.append(
                    Delivery(name, job, lease, token, payload, attempt, max_attempts, priority, created, {})
                )
            ref += 1
        ledger.put_events(events)
        events.clear()
    tx.delete_many(keyspace.READY, [key for key, _, _, _ in taken.jobs])
    tx.put_many(keyspace.STATE, states)
    at = keyspace.of_queue(number, lease)
    tx.put(
        keyspace.LEASES,
        at,
        records.encode_lease(records.new_lease(expires, now, len(given), claim_key, request.worker)),
    )
    tx.put(keyspace.LEASE_JOBS, at, records.encode_lease_jobs(given))
    tx.put(keyspace.DUE, keyspace.due(Due.LEASE, expires, number, lease), b"")
    if request.id is not None:
        tx.put(keyspace.CLAIMS, keyspace.of_queue(number, claim_key), records.encode_claim(lease, asked))
        tx.put(keyspace.DUE, keyspace.due(Due.CLAIM, expires + CLAIM_MEMORY_MS, number, claim_key), b"")
    if queue.limited:
        limits.take(ledger, queue, len(given))
        if queue.meter:
            meters.moved(ledger, queue.meter, -len(given), -taken.bytes)
    ledger.count(number, Counter.WAITING, -len(given))
    ledger.count(number, Counter.LEASED, len(given))
    # Whoever leads the line plans for this lease's end too.
    ledger.woken[name] = max(ledger.woken.get(name, 0), 1)
    return Leased(name, lease, expires, deliveries)


def _delivery(
    name: QueueName,
    job: bytes,
    lease: bytes,
    token: int,
    attempt: int,
    max_attempts: int,
    priority: int,
    record: JobRecord,
) -> Delivery:
    headers = records.decode_headers(record.headers, job) if record.headers else {}
    key = record.key.decode("utf-8", "replace") if record.key else None
    return Delivery(
        name, job, lease, token, record.payload, attempt, max_attempts, priority, record.created_at_ms, headers, key
    )


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
            _delivery(
                queue.name, job, claim.lease, state.token, state.attempt, state.max_attempts, state.priority, record
            )
        )
    return Leased(queue.name, claim.lease, lease.expires_at_ms, deliveries)
