"""One plain job at a time, in straight lines.

A verb on one job costs mostly the Python that runs once for it, most of it cold: the general verbs, made for batches,
run some 230 lines where the engine itself needs 45. These three do the commonest case in a third of that, on an engine
with a straight way (`storage.engine.Straight`): a job without key, ttl or headers that fits one row; a claim of one; an
ack that keeps nothing. With `kept`, the first outcome under a request's id is written along. Whatever else they meet, they leave to the general verb (`UNUSUAL`), having written nothing. They
write the very same rows, to which `tests/queueing/test_single.py` holds them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tenure.errors import Corrupt
from tenure.model.ids import NO_ID
from tenure.model.job import Enqueued
from tenure.model.lease import ClaimRequest, Delivery, Leased, Proof
from tenure.model.lifecycle import State
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.queueing.core import JOURNAL_LINE, Core
from tenure.queueing.leases import CLAIM_MEMORY_MS
from tenure.queueing.ledger import ALL, Tail
from tenure.storage import records
from tenure.storage.checksum import LONG, crc32, crc32_held
from tenure.storage.keyspace import (
    CLAIMS,
    DUE,
    JOBS,
    LEASE_JOBS,
    LEASES,
    READY,
    REQUESTS,
    SEGMENT_READY,
    STATE,
    Counter,
    Due,
    commit,
    due,
    due_prefix,
    pack_ready,
)  # fmt: skip
from tenure.storage.keyspace import request as request_row
from tenure.storage.records import (
    PART_BYTES,
    STATE_BYTES,
    pack_crc,
    pack_job,
    pack_lone_event,
    pack_state,
    unpack_crc,
)
from tenure.storage.records.jobs import JOB_BYTES, unpack_job
from tenure.storage.records.leases import LEASE_BYTES, unpack_sealed_lease
from tenure.storage.records.states import unpack_sealed_state


class Unusual:
    """What these verbs leave to the general ones."""


UNUSUAL: Final = Unusual()
_WAITING, _LEASED = int(State.WAITING), int(State.LEASED)
_W, _L, _E, _R = int(Counter.WAITING), int(Counter.LEASED), int(Counter.ENQUEUED), int(Counter.REMOVED)
_EXPIRED = due_prefix(Due.LEASE)
_LEASE, _CLAIM, _REQUEST = int(Due.LEASE), int(Due.CLAIM), int(Due.REQUEST)
#: How long a request's outcome is kept. Whoever asks again later than this may act twice.
REQUEST_MEMORY_MS = 600_000
#: What `once.OUTCOMES` makes of a single item that was settled.
_ACKED = b"\x91\xc0"
_new = tuple.__new__  # a NamedTuple without a Python frame


class Kept(NamedTuple):
    """Digests of a claim's or a request's id, under which its outcome is kept, and of what it asked for."""

    key: bytes
    asked: bytes


def _kept_rows(kept: Kept, now_ms: int, answer: bytes) -> tuple[tuple[int, bytes, bytes], ...]:
    """As `once.OnceCore` keeps an outcome."""
    until = now_ms + REQUEST_MEMORY_MS
    row, _ = records.encode_request(until, kept.asked, False, answer)
    return (REQUESTS, request_row(kept.key, 0), row), (DUE, due(_REQUEST, until, 0, kept.key), b"")


def enqueue(core: Core, name: QueueName, request: JobRequest, kept: Kept | None = None) -> Enqueued | Unusual:
    payload, delay_ms, at_ms, priority, key, attempts, ttl_ms, headers, _ = request
    if at_ms is not None or key or ttl_ms is not None or headers:
        return UNUSUAL
    return enqueue_plain(core, name, payload, delay_ms, priority, attempts, kept)


def enqueue_plain(
    core: Core,
    name: QueueName,
    payload: bytes,
    delay_ms: int = 0,
    priority: int = 0,
    attempts: int | None = None,
    kept: Kept | None = None,
) -> Enqueued | Unusual:
    straight = core.straight
    if straight is None or len(payload) > PART_BYTES:
        return UNUSUAL
    now = core.time.now_ms()
    with straight.lock:
        queue = core.registry.known(name)
        if queue is None:
            return UNUSUAL
        number, _, policy, _, _, _, _, _, _, tiers, prefix, counters, heads, _, _, _, _, meter = queue
        commit_number = straight.begin()
        last, first, time_ms = core.tail
        if last + 1 != commit_number or meter or policy.max_waiting is not None:
            return UNUSUAL
        if kept is not None and straight.get(REQUESTS, request_row(kept.key, 0)) is not None:
            return UNUSUAL
        at = now if now > time_ms else time_ms
        visible = at + delay_ms
        max_attempts = attempts or policy.max_attempts
        tier = tiers[9 - priority]
        job = core.ids.one(now)
        row = prefix + job
        body = pack_job(1, at, 0, 0, 0, len(payload)) + payload
        body += pack_crc(crc32(body) if len(body) <= LONG else crc32_held(body))
        state = pack_state(
            1, _WAITING, priority, 0, 0, 0, max_attempts, 0, 0, visible, 0, 0, commit_number << 10, NO_ID
        )  # fmt: skip
        state += pack_crc(crc32(state))
        event = pack_lone_event(
            1, 0, 1, first, at, heads[priority], job, NO_ID, 0, 0, max_attempts, visible, 0, 0, 0
        )  # fmt: skip
        event += pack_crc(crc32(event))
        ready = pack_ready(number, 9 - priority, visible, job)
        if kept is None:
            version = straight.enqueued(tier, row, body, state, ready, counters[_W], counters[_E], event)
        else:
            version = straight.commit(
                ((JOBS, row, body), (STATE, row, state), (READY, ready, b""), *_kept_rows(kept, at, job + b"\0")),
                (),
                ((counters[_W], 1), (counters[_E], 1)),
                event,
            )
        core.tail = _new(Tail, (commit_number, first + 1, at))
        if tier not in (core.tiers.known(number) or ()):
            core.tiers.add(number, (priority,))
    if version:
        straight.wait(version)
    if core.waiters.lines:
        core.waiters.wake(name, ALL if delay_ms else 1)
        core.waiters.wake(JOURNAL_LINE, ALL)
    return Enqueued(job.hex())


def claim(core: Core, name: QueueName, request: ClaimRequest, kept: Kept | None = None) -> Leased | Unusual | None:
    return claim_one(core, name, request.lease_ms, request.worker.encode(), kept)


def claim_one(  # noqa: C901 - straight lines are what it is for
    core: Core, name: QueueName, lease_ms: int | None = None, worker: bytes = b"", kept: Kept | None = None
) -> Leased | Unusual | None:
    straight = core.straight
    if straight is None:
        return UNUSUAL
    now = core.time.now_ms()
    try:
        with straight.lock:
            queue = core.registry.known(name)
            if queue is None:
                return UNUSUAL
            number, _, _, paused, _, policy_ms, _, _, _, _, prefix, counters, _, heads, _, limited, _, _ = queue
            commit_number = straight.begin()
            last, first, time_ms = core.tail
            at = now if now > time_ms else time_ms
            tiers, until = core.tiers.known(number), commit(at + 1)
            if (
                last + 1 != commit_number or paused or limited or tiers is None
                or straight.first(DUE, _EXPIRED, _EXPIRED + until) is not None
                or (kept is not None and straight.get(CLAIMS, prefix + kept.key) is not None)
            ):  # fmt: skip
                return UNUSUAL
            segmented = core.segmented
            for tier in tiers:
                key = straight.first(READY, tier, tier + until)
                if segmented is not None and segmented.there:
                    other = straight.first(SEGMENT_READY, tier, tier + until)
                    if other is not None and (key is None or other < key):
                        return UNUSUAL
                if key is not None:
                    break
            else:
                return None
            job = key[13:]
            row = prefix + job
            raw, body = straight.get(STATE, row), straight.get(JOBS, row)
            if raw is None or body is None:
                return UNUSUAL
            end = len(body) - 4
            if len(raw) != STATE_BYTES or end < JOB_BYTES:
                return UNUSUAL
            (
                version, kind, priority, reason, flags, attempt, max_attempts, replays, token, visible, ended, due_at, said,
                _, crc,
            ) = unpack_sealed_state(raw)  # fmt: skip
            body_version, created, parts, key_bytes, headers_bytes, _ = unpack_job(body)
            if (
                version != 1 or crc != crc32(raw[:-4]) or kind != _WAITING or due_at
                or body_version != 1 or unpack_crc(body, end)[0] != crc32_held(body[:end]) or parts or key_bytes or headers_bytes
                or key != pack_ready(number, 9 - priority, visible, job)
            ):  # fmt: skip
                return UNUSUAL
            attempt += 1
            token += 1
            expires = at + (lease_ms or policy_ms)
            lease = core.ids.one(now)
            held = prefix + lease
            state = pack_state(
                1, _LEASED, priority, reason, flags, attempt, max_attempts, replays, token, visible, ended, 0,
                commit_number << 10, lease,
            )  # fmt: skip
            event = pack_lone_event(
                1, 0, 1, first, at, heads[priority], job, lease, token, attempt, max_attempts, expires, said,
                0, len(worker),
            ) + worker  # fmt: skip
            state += pack_crc(crc32(state))
            event += pack_crc(crc32(event))
            granted = records.encode_new_lease(expires, at, 1, kept.key if kept else NO_ID, worker)
            given = records.encode_lease_job(job, token)
            expiry = due(_LEASE, expires, number, lease)
            waiting, leased = counters[_W], counters[_L]
            if kept is None:
                version = straight.claimed(tier, row, state, key, held, granted, given, expiry, waiting, leased, event)
            else:
                version = straight.commit(
                    (
                        (STATE, row, state),
                        (LEASES, held, granted),
                        (LEASE_JOBS, held, given),
                        (DUE, expiry, b""),
                        (CLAIMS, prefix + kept.key, records.encode_claim(lease, kept.asked)),
                        (DUE, due(_CLAIM, expires + CLAIM_MEMORY_MS, number, kept.key), b""),
                    ),
                    ((READY, key),),
                    ((waiting, -1), (leased, 1)),
                    event,
                )
            core.tail = _new(Tail, (commit_number, first + 1, at))
    except Corrupt:
        return UNUSUAL
    if version:
        straight.wait(version)
    if core.waiters.lines:
        core.waiters.wake(name, 1)
        core.waiters.wake(JOURNAL_LINE, ALL)
    delivery = Delivery(name, job, lease, token, body[JOB_BYTES:-4], attempt, max_attempts, priority, created, {})
    return Leased(name, lease, expires, [delivery])


def ack(core: Core, name: QueueName, proof: Proof, kept: Kept | None = None) -> Unusual | None:
    return ack_one(core, name, *proof, kept)


def ack_one(  # noqa: C901 - straight lines are what it is for
    core: Core, name: QueueName, job: bytes, lease: bytes, token: int, kept: Kept | None = None
) -> Unusual | None:
    straight = core.straight
    if straight is None:
        return UNUSUAL
    now = core.time.now_ms()
    try:
        with straight.lock:
            queue = core.registry.known(name)
            if queue is None:
                return UNUSUAL
            queue_number, _, _, _, _, _, retention_ms, _, _, _, prefix, counters, _, _, heads, limited, _, _ = queue
            if retention_ms or limited:
                return UNUSUAL
            row, held = prefix + job, prefix + lease
            commit_number = straight.begin()
            last, first, time_ms = core.tail
            at = now if now > time_ms else time_ms
            raw, given = straight.get(STATE, row), straight.get(LEASES, held)
            if last + 1 != commit_number or raw is None or given is None:
                return UNUSUAL
            if kept is not None and straight.get(REQUESTS, request_row(kept.key, 0)) is not None:
                return UNUSUAL
            if len(raw) != STATE_BYTES or len(given) != LEASE_BYTES:
                return UNUSUAL
            (
                version, kind, priority, _, flags, attempt, max_attempts, _, number, _, _, _, said, by, crc,
            ) = unpack_sealed_state(raw)  # fmt: skip
            lease_version, expires, _, _, still_open, lost, _, _, lease_crc = unpack_sealed_lease(given)
            if (
                version != 1 or crc != crc32(raw[:-4]) or lease_version != 1 or lease_crc != crc32(given[:-4])
                or kind != _LEASED or by != lease or number != token or flags or expires <= at or lost or still_open < 1
            ):  # fmt: skip
                return UNUSUAL
            event = pack_lone_event(
                1, 0, 1, first, at, heads[priority], job, lease, token, attempt, max_attempts, 0, said, 0, 0
            )
            event += pack_crc(crc32(event))
            expiry = due(_LEASE, expires, queue_number, lease)
            leased, removed = counters[_L], counters[_R]
            if still_open > 1:
                puts = ((LEASES, held, records.with_one_less(given)),)
                version = straight.commit(
                    puts if kept is None else puts + _kept_rows(kept, at, _ACKED),
                    ((JOBS, row), (STATE, row)),
                    ((leased, -1), (removed, 1)),
                    event,
                )
            elif kept is None:
                version = straight.acked(row, held, expiry, leased, removed, event)
            else:
                version = straight.commit(
                    _kept_rows(kept, at, _ACKED),
                    ((JOBS, row), (STATE, row), (LEASES, held), (LEASE_JOBS, held), (DUE, expiry)),
                    ((leased, -1), (removed, 1)),
                    event,
                )
            core.tail = _new(Tail, (commit_number, first + 1, at))
    except Corrupt:
        return UNUSUAL
    if version:
        straight.wait(version)
    if core.waiters.lines:
        core.waiters.wake(job, ALL)
        core.waiters.wake(JOURNAL_LINE, ALL)
    return None
