"""What the tenants with a quota have waiting, counted as it changes: jobs, and the bytes of their payloads.

A queue's row names its tenant's meter, so nothing is looked up where there is none. A meter is a number of the queues' own
sequence, under which the tenant's two counters are kept. Whatever changes which jobs wait tells it here.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import Corrupt
from tenure.queueing.registry import Registered
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, get_each
from tenure.storage.keyspace import Usage


def moved(unit: UnitOfWork, meter: int, jobs: int, weight: int) -> None:
    """So many jobs more (or fewer) wait, of so many bytes."""
    if jobs:
        unit.tx.add(keyspace.counter(meter, Usage.JOBS), jobs)
    if weight:
        unit.tx.add(keyspace.counter(meter, Usage.BYTES), weight)


def back(unit: UnitOfWork, queue: Registered, jobs: Sequence[bytes]) -> None:
    """These jobs wait again."""
    if queue.meter:
        moved(unit, queue.meter, len(jobs), weigh(unit.tx, queue.number, jobs))


def gone(unit: UnitOfWork, queue: int, job: bytes) -> None:
    """This job, which waited, is about to be removed."""
    meter = unit.meter_of(queue)
    if meter:
        moved(unit, meter, -1, -weigh(unit.tx, queue, [job]))


def weigh(reader: Reader, queue: int, jobs: Sequence[bytes]) -> int:
    """The bytes of their payloads. What cannot be read weighs nothing: `check` finds it, and counts again."""
    total = 0
    rows = get_each(reader, keyspace.JOBS, [keyspace.of_queue(queue, job) for job in jobs])
    for job, row in zip(jobs, rows, strict=True):
        if isinstance(row, bytes):
            try:
                total += records.decode_job(row, job).payload_bytes
            except Corrupt:
                continue
    return total


def usage(reader: Reader, meter: int) -> tuple[int, int]:
    """(waiting jobs, their bytes)"""
    jobs, weight = reader.get_many(
        keyspace.COUNTERS, [keyspace.counter(meter, Usage.JOBS), keyspace.counter(meter, Usage.BYTES)]
    )
    return records.decode_count(jobs), records.decode_count(weight)
