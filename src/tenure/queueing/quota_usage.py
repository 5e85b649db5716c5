"""What the tenants with a quota have, counted as it changes: the jobs that wait, and the bytes that are stored.

    JOBS     jobs that wait, for their time or for other jobs
    STORED   bytes of payloads, whatever state their jobs are in, of results, and of manifests of staged writes

A queue's row names its tenant's meter, so nothing is looked up where there is none. A meter is a number of the queues'
own sequence, under which the tenant's counters are kept. A manifest counts in whole parts, by its row's number of them.
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
    """So many jobs more (or fewer) wait, and so many bytes more are stored."""
    if jobs:
        unit.tx.add(keyspace.counter(meter, Usage.JOBS), jobs)
    if stored:
        unit.tx.add(keyspace.counter(meter, Usage.STORED), stored)


def back(unit: UnitOfWork, queue: RegisteredQueue, jobs: Sequence[bytes]) -> None:
    """These jobs wait again."""
    if queue.meter:
        moved(unit, queue.meter, len(jobs), 0)


def removed(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord) -> None:
    """This job is about to be removed. Requires: its rows are not deleted yet."""
    meter = unit.meter_of(queue)
    if meter:
        waiting = state.state in (State.WAITING, State.BLOCKED)
        moved(unit, meter, -1 if waiting else 0, -weigh(unit.tx, queue, [job]))


def removed_done(unit: UnitOfWork, queue: RegisteredQueue, jobs: Sequence[bytes]) -> None:
    """These leased jobs are done and about to be removed. Requires: their rows are not deleted yet."""
    if queue.meter:
        moved(unit, queue.meter, 0, -weigh(unit.tx, queue.number, jobs))


def weigh(reader: Reader, queue: int, jobs: Sequence[bytes]) -> int:
    """The bytes of their payloads and results.

    What cannot be read weighs nothing: `check` finds it, and counts again.
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
    """What a manifest of so many parts counts as."""
    return parts * PART_BYTES


def usage(reader: Reader, meter: int) -> tuple[int, int]:
    """(waiting jobs, bytes stored)"""
    jobs, weight = reader.get_many(
        keyspace.COUNTERS, [keyspace.counter(meter, Usage.JOBS), keyspace.counter(meter, Usage.STORED)]
    )
    return records.decode_count(jobs), records.decode_count(weight)
