"""Usage counters of tenants with a quota, updated by every verb that changes them.

    JOBS     waiting and blocked jobs
    STORED   bytes of payloads of jobs in any state, of results, and of manifests of staged writes

A queue's row has its tenant's meter, 0 without a quota, so that no lookup is needed. A meter is a number from the
sequence of queue numbers, under which the tenant's counters are stored. A manifest counts as whole parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, get_each
from tenure.storage.keyspace import Usage
from tenure.storage.records import PART_BYTES, StateRecord


def moved(unit: UnitOfWork, meter: int, jobs: int, stored: int) -> None:
    """Add to the counters: `jobs` more (or fewer) jobs wait, `stored` more (or fewer) bytes are stored."""
    if jobs:
        unit.tx.add(keyspace.counter(meter, Usage.JOBS), jobs)
    if stored:
        unit.tx.add(keyspace.counter(meter, Usage.STORED), stored)


def back(unit: UnitOfWork, queue: RegisteredQueue, jobs: Sequence[bytes]) -> None:
    """Count jobs that wait again."""
    if queue.meter:
        moved(unit, queue.meter, len(jobs), 0)


def removed(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord) -> None:
    """Count a job that will be removed. Requires: its rows are not deleted yet."""
    meter = unit.meter_of(queue)
    if meter:
        waiting = state.state in (State.WAITING, State.BLOCKED)
        moved(unit, meter, -1 if waiting else 0, -weigh(unit.tx, queue, [job]))


def removed_done(unit: UnitOfWork, queue: RegisteredQueue, jobs: Sequence[bytes]) -> None:
    """Count leased jobs that are done and will be removed. Requires: their rows are not deleted yet."""
    if queue.meter:
        moved(unit, queue.meter, 0, -weigh(unit.tx, queue.number, jobs))


def weigh(reader: Reader, queue: int, jobs: Sequence[bytes]) -> int:
    """The bytes of the jobs' payloads and results.

    A damaged row counts as 0: `check` reports it, and its repair recounts.
    """
    keys = [keyspace.of_queue(queue, job) for job in jobs]
    total = 0
    for job, row, noted in zip(
        jobs, get_each(reader, keyspace.JOBS, keys), get_each(reader, keyspace.NOTES, keys), strict=True
    ):
        try:
            if isinstance(row, bytes):
                total += records.decode_job(row, job).payload_bytes
            if isinstance(noted, bytes):
                total += records.decode_struct(records.Notes, noted, "its notes", job).result_bytes
        except Corrupt:
            continue
    return total


def manifest_bytes(parts: int) -> int:
    """The bytes that a manifest of `parts` parts counts as."""
    return parts * PART_BYTES


def usage(reader: Reader, meter: int) -> tuple[int, int]:
    """(waiting jobs, bytes stored)"""
    jobs, weight = reader.get_many(
        keyspace.COUNTERS, [keyspace.counter(meter, Usage.JOBS), keyspace.counter(meter, Usage.STORED)]
    )
    return records.decode_count(jobs), records.decode_count(weight)
