"""Jobs in: one transaction for the whole call, all or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tenure.errors import KeyConflict, QueueFull, TooLarge
from tenure.model.ids import NO_ID
from tenure.model.job import Enqueued
from tenure.model.lifecycle import TERMINAL, State
from tenure.model.names import QueueName
from tenure.model.request import JobRequest, all_plain, payloads_of
from tenure.queueing import quota_usage, quotas, single
from tenure.queueing.core import Core
from tenure.queueing.leases import whole_payload
from tenure.queueing.ledger import ALL, Ledger
from tenure.queueing.outcomes import ENQUEUED
from tenure.queueing.registry import Registered
from tenure.queueing.together import put_waiting
from tenure.storage import keyspace, records
from tenure.storage.engine import Row
from tenure.storage.keyspace import Counter, Due
from tenure.storage.segments import SegmentedTransaction

_WAITING = int(State.WAITING)
#: What a job costs besides its payload, for telling whether a batch fits one transaction.
JOB_OVERHEAD = 512

Keyed = tuple[int, bytes, bytes]
"""Index in the call, digest of the key, digest of the payload."""


def enqueue(core: Core, name: QueueName, requests: Sequence[JobRequest]) -> list[Enqueued]:
    if len(requests) == 1 and core.straight is not None:
        added = single.enqueue(core, name, requests[0])
        if not isinstance(added, single.Unusual):
            return [added]
    now, run = planned(core, name, requests)
    return core.write(run, now, answer=ENQUEUED)


def planned(
    core: Core, name: QueueName, requests: Sequence[JobRequest]
) -> tuple[int, Callable[[Ledger], list[Enqueued]]]:
    """The time, and what a transaction has to do: by itself, or together with a marker (`writes`)."""
    now = core.time.now_ms()
    ids = core.ids.take(now, len(requests))
    keyed: list[Keyed] = []
    moments: dict[int, int] = {}
    payloads = payloads_of(requests)
    sizes = list(map(len, payloads))
    size = JOB_OVERHEAD * len(requests) + sum(sizes)
    plain = max(sizes, default=0) <= records.PART_BYTES and all_plain(requests)
    if not plain:
        for index, (payload, _, at_ms, _, key, _, _, _) in enumerate(requests):
            if key is not None:
                # Digests are made once, outside the transaction: they cost more than the look-up.
                keyed.append((index, keyspace.digest(key.encode()), keyspace.digest(payload)))
            if at_ms is not None:
                moments[index] = core.time.from_calendar(at_ms, now)
    if size > core.engine.traits.atomic_bytes:
        raise TooLarge("the batch", size, core.engine.traits.atomic_bytes)

    def run(ledger: Ledger) -> list[Enqueued]:
        queue = ledger.queue(name)
        first_jobs = _find_duplicates(ledger, queue, requests, ids, keyed) if keyed else {}
        _check_room(ledger, queue, len(requests) - len(first_jobs))
        if queue.meter:
            _meter(ledger, queue, requests, first_jobs)
        if plain:
            _write_plain(ledger, queue, payloads, ids)
        else:
            _write(ledger, queue, requests, ids, moments, first_jobs)
        if keyed:
            hold_keys(ledger, queue, [Holding(k, ids[i], payload) for i, k, payload in keyed if i not in first_jobs])
        if not first_jobs:
            return list(map(Enqueued, map(bytes.hex, ids)))
        return [
            Enqueued(first_jobs[index].hex(), True) if index in first_jobs else Enqueued(job.hex())
            for index, job in enumerate(ids)
        ]

    return now, run


def _write_plain(ledger: Ledger, queue: Registered, payloads: Sequence[bytes], ids: Sequence[bytes]) -> None:
    """As `_write`, of jobs that differ in nothing but their payload: what they share is made once."""
    tx, now, max_attempts = ledger.tx, ledger.now, queue.policy.max_attempts
    head = queue.enqueued[0]
    tail = NO_ID + records.pack_event_middle(0, 0, max_attempts, now, 0) + records.NO_TEXT
    for begin, end, ref, _ in ledger.room(len(ids)):
        jobs, bodies = (ids, payloads) if end - begin == len(ids) else (ids[begin:end], payloads[begin:end])
        ledger.put_events([head + job + tail for job in jobs])
        if not isinstance(tx, SegmentedTransaction) or not put_waiting(tx, queue, now, jobs, bodies, ref):
            _write_rows(ledger, queue, bodies, jobs, ref)
    count = len(ids)
    ledger.count(queue.number, Counter.WAITING, count)
    ledger.count(queue.number, Counter.ENQUEUED, count)
    ledger.woken[queue.name] = count
    ledger.in_use(queue.number, (0,))


def _write_rows(ledger: Ledger, queue: Registered, payloads: Sequence[bytes], ids: Sequence[bytes], ref: int) -> None:
    """Of plain jobs, each its own; the event of the first stands at `ref`, and the others' behind it."""
    tx, now = ledger.tx, ledger.now
    alike = records.pack_state(
        1, _WAITING, 0, 0, 0, 0, queue.policy.max_attempts, 0, 0, now, 0, 0, 0, NO_ID
    )[: records.STATE_ALIKE]  # fmt: skip
    place = keyspace.ready_from(queue.number, 0, now)
    rows = [queue.prefix + job for job in ids]
    states = records.alike_states(alike, NO_ID, range(ref, ref + len(ids)))
    tx.put_many(keyspace.JOBS, list(zip(rows, records.encode_plain_jobs(now, payloads), strict=True)))
    tx.put_many(keyspace.STATE, list(zip(rows, states, strict=True)))
    tx.put_many(keyspace.READY, [(place + job, b"") for job in ids])


def _write(
    ledger: Ledger,
    queue: Registered,
    requests: Sequence[JobRequest],
    ids: Sequence[bytes],
    moments: dict[int, int],
    skip: dict[int, bytes],
) -> None:
    now, number, default_attempts = ledger.now, queue.number, queue.policy.max_attempts
    jobs: list[Row] = []
    states: list[Row] = []
    ready: list[Row] = []
    events: list[bytes] = []
    parts: list[Row] = []
    due: list[Row] = []
    latest = now
    of_queue, seal_state, encode_job, ready_key = (
        keyspace.of_queue, records.seal_state, records.encode_job, keyspace.ready,
    )  # fmt: skip
    shape, head, tail = None, b"", b""
    wanted = [index for index in range(len(requests)) if index not in skip] if skip else range(len(requests))
    for begin, end, ref, _ in ledger.room(len(wanted)):
        for index in wanted[begin:end]:
            payload, delay_ms, at_ms, priority, key, attempts, ttl_ms, headers = requests[index]
            job = ids[index]
            visible = now + delay_ms if at_ms is None else max(now, moments[index])
            if visible > latest:
                latest = visible
            max_attempts = attempts or default_attempts
            row, further = encode_job(
                now, payload, key.encode() if key else b"", records.encode_headers(headers) if headers else b""
            )
            flags = due_at = 0
            at = of_queue(number, job)
            if further:
                flags |= records.HAS_PARTS
                parts.extend((keyspace.payload_part(number, job, part), value) for part, value in enumerate(further, 1))
            if key:
                flags |= records.HAS_KEY
            if ttl_ms is not None:
                due_at = now + ttl_ms
                due.append((keyspace.due(Due.TTL, due_at, number, job), b""))
            jobs.append((at, row))
            states.append((
                at,
                seal_state(
                    1, _WAITING, priority, 0, flags, 0, max_attempts, 0, 0, visible, 0, due_at, ref, NO_ID
                ),
            ))  # fmt: skip
            ready.append((ready_key(number, priority, visible, job), b""))
            if shape != (priority, visible, max_attempts):
                shape = (priority, visible, max_attempts)
                head = queue.enqueued[priority]
                tail = NO_ID + records.pack_event_middle(0, 0, max_attempts, visible, 0) + records.NO_TEXT
            events.append(head + job + tail)
            ref += 1
        ledger.put_events(events)
        events.clear()
    if not jobs:
        return
    tx = ledger.tx
    tx.put_many(keyspace.JOBS, jobs)
    tx.put_many(keyspace.STATE, states)
    tx.put_many(keyspace.READY, ready)
    if parts:
        tx.put_many(keyspace.PAYLOAD, parts)
    if due:
        tx.put_many(keyspace.DUE, due)
    ledger.count(number, Counter.WAITING, len(jobs))
    ledger.count(number, Counter.ENQUEUED, len(jobs))
    ledger.woken[queue.name] = ALL if latest > now else len(jobs)
    ledger.in_use(number, {request[3] for request in requests})


def _check_room(ledger: Ledger, queue: Registered, more: int) -> None:
    limit = queue.policy.max_waiting
    if limit is None or not more:
        return
    waiting = records.decode_count(ledger.tx.get(keyspace.COUNTERS, keyspace.counter(queue.number, Counter.WAITING)))
    if waiting + more > limit:
        raise QueueFull(str(queue.name), waiting, limit)


def _meter(ledger: Ledger, queue: Registered, requests: Sequence[JobRequest], skip: dict[int, bytes]) -> None:
    """Of a tenant with a quota."""
    weight = sum([len(request.payload) for index, request in enumerate(requests) if index not in skip])
    jobs = len(requests) - len(skip)
    quotas.admit(ledger, queue, jobs, weight)
    quota_usage.moved(ledger, queue.meter, jobs, weight)


# ── idempotency keys ─────────────────────────────────────────────────────────────────────────────────────────────────


def _find_duplicates(
    ledger: Ledger, queue: Registered, requests: Sequence[JobRequest], ids: Sequence[bytes], keyed: Sequence[Keyed]
) -> dict[int, bytes]:
    """Which of the call's jobs are there already, and as what; raises KeyConflict, listing all, for those that are other jobs."""
    held = holders(ledger, queue, [key for _, key, _ in keyed])
    duplicates: dict[int, bytes] = {}
    conflicts: list[tuple[int, str]] = []
    for index, key, payload in keyed:
        holder = held.get(key)
        if holder is None:
            held[key] = (ids[index], payload)
        elif holder[1] != payload:
            conflicts.append((index, holder[0].hex()))
        else:
            duplicates[index] = holder[0]
    if conflicts:
        index, existing = conflicts[0]
        raise KeyConflict(index, str(requests[index].key), existing, conflicts)
    return duplicates


def holders(ledger: Ledger, queue: Registered, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
    """Who holds these keys now: the job, and the digest of its payload."""
    rows = ledger.tx.get_many(keyspace.DEDUP, [keyspace.of_queue(queue.number, key) for key in keys])
    found: dict[bytes, tuple[bytes, bytes]] = {}
    lapsed: list[tuple[bytes, records.DedupRecord]] = []
    for key, raw in zip(keys, rows, strict=True):
        if raw is not None:
            record = records.decode_dedup(raw)
            if record.until_ms > ledger.now:
                found[key] = (record.job, record.payload_digest)
            else:
                lapsed.append((key, record))
    # Past its window a key is still held by a job that has not ended.
    states = ledger.tx.get_many(keyspace.STATE, [keyspace.of_queue(queue.number, r.job) for _, r in lapsed])
    for (key, record), raw in zip(lapsed, states, strict=True):
        if raw is not None and records.decode_state(raw, record.job).state not in TERMINAL:
            found[key] = (record.job, record.payload_digest)
    return found


class Holding(NamedTuple):
    """A key, and the job that is to hold it."""

    key: bytes
    job: bytes
    payload: bytes


def hold_keys(ledger: Ledger, queue: Registered, keys: Iterable[Holding]) -> None:
    until = ledger.now + queue.dedup_ms
    for key, job, payload in keys:
        at = keyspace.of_queue(queue.number, key)
        ledger.tx.put(keyspace.DEDUP, at, records.encode_dedup(job, payload, until))
        ledger.tx.put(keyspace.DUE, keyspace.due(Due.DEDUP, until, queue.number, key), b"")


def free_keys(ledger: Ledger, queue: Registered, jobs: Sequence[bytes]) -> list[Holding]:
    """The keys of jobs that wait again, as far as no other job has them; of two with one key the first takes it."""
    tx = ledger.tx
    wanted: dict[bytes, Holding] = {}
    for job, raw in zip(
        jobs, tx.get_many(keyspace.JOBS, [keyspace.of_queue(queue.number, job) for job in jobs]), strict=True
    ):
        if raw is not None:
            record = records.decode_job(raw, job)
            payload = keyspace.digest(whole_payload(tx, queue.number, job, record))
            key = keyspace.digest(record.key)
            wanted.setdefault(key, Holding(key, job, payload))
    held = holders(ledger, queue, list(wanted))
    return [holding for key, holding in wanted.items() if held.get(key, (holding.job,))[0] == holding.job]
