"""The rows of leases: which jobs a lease holds, and its update when jobs leave it.

A lease's row has a fixed width, and the list of its jobs is written once. So settling one job of a thousand costs as
much as settling the only job of a lease. The row is deleted with its last job.
"""

from __future__ import annotations

from typing import NamedTuple

from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Transaction, get_each
from tenure.storage.keyspace import DUE, LEASE_JOBS, LEASES, Due, due, of_queue
from tenure.storage.records import JobRecord, LeaseRecord, StateRecord, decode_lease

_LEASED = int(State.LEASED)
_LEASE_DUE = int(Due.LEASE)
#: How long the row of a claim made with an id is kept after its lease ends.
CLAIM_MEMORY_MS = 86_400_000


def read_lease(reader: Reader, queue: int, lease: bytes) -> LeaseRecord | None:
    raw = reader.get(LEASES, of_queue(queue, lease))
    return None if raw is None else decode_lease(raw, lease)


class Held(NamedTuple):
    """The jobs that a lease still holds; `damaged` counts jobs whose state cannot be read."""

    jobs: list[tuple[bytes, StateRecord]]
    damaged: int


def held_jobs(reader: Reader, queue: int, lease: bytes) -> Held:
    jobs = []
    damaged = 0
    for job, token, value in given_jobs(reader, queue, lease):
        if value is None:
            continue
        try:
            if isinstance(value, Corrupt):
                raise value
            state = records.decode_state(value, job)
        except Corrupt:
            damaged += 1
            continue
        if state.state == _LEASED and state.lease == lease and state.token == token:
            jobs.append((job, state))
    return Held(jobs, damaged)


def given_jobs(reader: Reader, queue: int, lease: bytes) -> list[tuple[bytes, int, bytes | Corrupt | None]]:
    """All jobs that a lease was granted for: job, token, and the job's stored state now. Raises Corrupt."""
    raw = reader.get(keyspace.LEASE_JOBS, keyspace.of_queue(queue, lease))
    if raw is None:
        raise Corrupt(f"the jobs of lease {lease.hex()} are missing")
    given = records.decode_lease_jobs(raw, lease)
    states = get_each(reader, keyspace.STATE, [keyspace.of_queue(queue, job) for job, _ in given])
    return [(job, token, state) for (job, token), state in zip(given, states, strict=True)]


def lost_jobs(reader: Reader, queue: int, lease: bytes) -> list[bytes]:
    """The lease's jobs that were cancelled while it held them."""
    keys = reader.keys(keyspace.LEASE_JOBS, *keyspace.lost_range(queue, lease), 1 << 20)
    return [key[20:] for key in keys]


def close_jobs(tx: Transaction, queue: int, lease: bytes, record: LeaseRecord, closed: int, lost: bytes = b"") -> None:
    """Count `closed` jobs that leave the lease; `lost` is one that was removed while the lease held it."""
    if record.open <= closed:
        end_lease(tx, queue, lease, record)
        return
    left = record._replace(open=record.open - closed, lost=record.lost + bool(lost))
    tx.put(keyspace.LEASES, keyspace.of_queue(queue, lease), records.encode_lease(left))
    if lost:
        tx.put(keyspace.LEASE_JOBS, keyspace.lost_job(queue, lease, lost), b"")


def end_lease(tx: Transaction, queue: int, lease: bytes, record: LeaseRecord) -> None:
    at, expires = of_queue(queue, lease), record.expires_at_ms
    if record.lost:
        tx.delete_range(LEASE_JOBS, *keyspace.lost_range(queue, lease))
    tx.writes += ((LEASES, at, None), (LEASE_JOBS, at, None), (DUE, due(_LEASE_DUE, expires, queue, lease), None))


def whole_payload(reader: Reader, queue: int, job: bytes, record: JobRecord) -> bytes:
    """The payload of a job with its further parts. Raises Corrupt."""
    if not record.parts:
        return record.payload
    keys = [keyspace.payload_part(queue, job, part) for part in range(1, record.parts + 1)]
    return records.join_parts(record.payload, reader.get_many(keyspace.PAYLOAD, keys), record.payload_bytes, job)
