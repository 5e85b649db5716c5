"""Idempotency keys: which job holds one, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tenure.errors import KeyConflict
from tenure.model.lifecycle import TERMINAL
from tenure.model.request import JobRequest
from tenure.queueing.leases import whole_payload
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import Due


class Keyed(NamedTuple):
    """A job of the call that has an idempotency key."""

    place: int
    """Its index in the call."""
    key: bytes
    """The digest of its key."""
    payload: bytes
    """The digest of its payload."""


def find_duplicates(
    unit: UnitOfWork,
    queue: RegisteredQueue,
    requests: Sequence[JobRequest],
    ids: Sequence[bytes],
    keyed: Sequence[Keyed],
) -> dict[int, bytes]:
    """Which of the call's jobs are there already, and as what; raises KeyConflict, listing all, for those that are other jobs."""
    held = holders(unit, queue, [key for _, key, _ in keyed])
    duplicates: dict[int, bytes] = {}
    conflicts: list[tuple[int, str]] = []
    for index, key, payload in keyed:
        holder = held.get(key)
        if holder is None:
            held[key] = (ids[index], payload)
        elif holder[1] != payload and requests[index].on_conflict != "keep":
            conflicts.append((index, holder[0].hex()))
        else:
            duplicates[index] = holder[0]
    if conflicts:
        index, existing = conflicts[0]
        raise KeyConflict(index, str(requests[index].key), existing, conflicts)
    return duplicates


def holders(unit: UnitOfWork, queue: RegisteredQueue, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
    """Who holds these keys now: the job, and the digest of its payload."""
    return holders_at(unit.tx, queue.number, unit.now, keys)


def holders_at(reader: Reader, queue: int, now_ms: int, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
    """Who holds these keys of a queue (by its number) at a time."""
    rows = reader.get_many(keyspace.DEDUP, [keyspace.of_queue(queue, key) for key in keys])
    found: dict[bytes, tuple[bytes, bytes]] = {}
    lapsed: list[tuple[bytes, records.DedupRecord]] = []
    for key, raw in zip(keys, rows, strict=True):
        if raw is not None:
            record = records.decode_dedup(raw)
            if record.until_ms > now_ms:
                found[key] = (record.job, record.payload_digest)
            else:
                lapsed.append((key, record))
    # Past its window a key is still held by a job that has not ended.
    states = reader.get_many(keyspace.STATE, [keyspace.of_queue(queue, r.job) for _, r in lapsed])
    for (key, record), raw in zip(lapsed, states, strict=True):
        if raw is not None and records.decode_state(raw, record.job).state not in TERMINAL:
            found[key] = (record.job, record.payload_digest)
    return found


class Holding(NamedTuple):
    """A key, and the job that is to hold it."""

    key: bytes
    job: bytes
    payload: bytes


def hold_keys(unit: UnitOfWork, queue: RegisteredQueue, keys: Iterable[Holding]) -> None:
    until = unit.now + queue.dedup_ms
    for key, job, payload in keys:
        at = keyspace.of_queue(queue.number, key)
        unit.tx.put(keyspace.DEDUP, at, records.encode_dedup(job, payload, until))
        unit.tx.put(keyspace.DUE, keyspace.due(Due.DEDUP, until, queue.number, key), b"")


def free_keys(unit: UnitOfWork, queue: RegisteredQueue, jobs: Sequence[bytes]) -> list[Holding]:
    """The keys of jobs that wait again, as far as no other job has them; of two with one key the first takes it."""
    tx = unit.tx
    wanted: dict[bytes, Holding] = {}
    for job, raw in zip(
        jobs, tx.get_many(keyspace.JOBS, [keyspace.of_queue(queue.number, job) for job in jobs]), strict=True
    ):
        if raw is not None:
            record = records.decode_job(raw, job)
            payload = keyspace.digest(whole_payload(tx, queue.number, job, record))
            key = keyspace.digest(record.key)
            wanted.setdefault(key, Holding(key, job, payload))
    held = holders(unit, queue, list(wanted))
    return [holding for key, holding in wanted.items() if held.get(key, (holding.job,))[0] == holding.job]
