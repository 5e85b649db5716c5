"""Finds a job's queue by the job's id.

An id holds 18 bits of its queue's number (`model.ids.queue_mark`). So a lookup reads the job's state in that queue, and
in the few other queues whose numbers end in the same bits. A job whose id was made elsewhere (a restore, a store of
format 1) has a row in `job_queues` instead. A row for every job would cost a put and a delete each, and jobs could not
be stored in segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tenure.model.ids import MARK, MARKS, marked_queue, queue_mark
from tenure.queueing.registry import NEXT_QUEUE
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Space, Transaction


def locate(reader: Reader, job: bytes, meta: Callable[[Space, bytes], bytes | None] | None = None) -> int | None:
    """The number of the queue that has this job; None: no queue has it.

    `meta` reads the queue counter, for a transaction that may have written it: transactions do not read their own rows.
    """
    first = marked_queue(job)
    if first and _there(reader, first, job):
        return first
    raw = reader.get(keyspace.JOB_QUEUES, job)
    if raw is not None:
        number = records.decode_number(raw)
        return number if _there(reader, number, job) else None
    # Only a store with more queues than marks has several queues with the same mark.
    raw = (meta or reader.get)(keyspace.META, NEXT_QUEUE)
    last = 0 if raw is None else records.decode_struct(records.NumberRecord, raw, "the queue counter").value
    return next((number for number in range(first + MARKS, last, MARKS) if _there(reader, number, job)), None)


def _there(reader: Reader, queue: int, job: bytes) -> bool:
    return reader.get(keyspace.STATE, keyspace.of_queue(queue, job)) is not None


def is_foreign(queue: int, job: bytes) -> bool:
    """Whether the id does not hold this queue's mark, so that the job needs a row in `job_queues`."""
    return job[MARK] != queue_mark(queue)


def note_foreign(tx: Transaction, queue: int, jobs: Iterable[bytes]) -> None:
    """Write rows of `job_queues` for the jobs whose ids do not hold this queue's mark."""
    mark, row = queue_mark(queue), records.encode_number(queue)
    tx.writes += [(keyspace.JOB_QUEUES, job, row) for job in jobs if job[MARK] != mark]


def forget_foreign(tx: Transaction, queue: int, jobs: Iterable[bytes]) -> None:
    """Delete the rows of jobs that are removed from this queue. A row that names another queue's job stays."""
    mark = queue_mark(queue)
    for job in [job for job in jobs if job[MARK] != mark]:
        raw = tx.get(keyspace.JOB_QUEUES, job)
        if raw is not None and records.decode_number(raw) == queue:
            tx.delete(keyspace.JOB_QUEUES, job)
