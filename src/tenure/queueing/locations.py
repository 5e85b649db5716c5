"""Which queue a job is in, found by its id alone.

An id names its queue (`model.ids.queue_mark`): 18 bits of the queue's number. So a lookup reads the state of that queue's
job, and of the few others whose numbers end in the same bits. A job that came with an id made elsewhere (a restore, a
store of format 1) has a row in `job_queues` instead. A row for every job would cost each of them a put and a delete, and
jobs that are stored together their one record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tenure.model.ids import MARK, MARKS, marked_queue, queue_mark
from tenure.queueing.registry import NEXT_QUEUE
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Space, Transaction


def locate(reader: Reader, job: bytes, meta: Callable[[Space, bytes], bytes | None] | None = None) -> int | None:
    """The number of the queue that has this job; None: no queue has.

    `meta` reads the queue counter, for a transaction that may have changed it: no transaction reads what it wrote.
    """
    first = marked_queue(job)
    if first and _there(reader, first, job):
        return first
    raw = reader.get(keyspace.JOB_QUEUES, job)
    if raw is not None:
        number = records.decode_number(raw)
        return number if _there(reader, number, job) else None
    # Only a store with more queues than there are marks has others with the same one.
    raw = (meta or reader.get)(keyspace.META, NEXT_QUEUE)
    last = 0 if raw is None else records.decode_struct(records.NumberRecord, raw, "the queue counter").value
    return next((number for number in range(first + MARKS, last, MARKS) if _there(reader, number, job)), None)


def _there(reader: Reader, queue: int, job: bytes) -> bool:
    return reader.get(keyspace.STATE, keyspace.of_queue(queue, job)) is not None


def is_foreign(queue: int, job: bytes) -> bool:
    """Whether the id does not name the queue, so that a row has to."""
    return job[MARK] != queue_mark(queue)


def note_foreign(tx: Transaction, queue: int, jobs: Iterable[bytes]) -> None:
    """Write the rows of those jobs whose ids do not name their queue."""
    mark, row = queue_mark(queue), records.encode_number(queue)
    tx.writes += [(keyspace.JOB_QUEUES, job, row) for job in jobs if job[MARK] != mark]


def forget_foreign(tx: Transaction, queue: int, jobs: Iterable[bytes]) -> None:
    """Delete the rows of jobs that are being removed from this queue. Of two jobs with one id, the row names the later."""
    mark = queue_mark(queue)
    for job in [job for job in jobs if job[MARK] != mark]:
        raw = tx.get(keyspace.JOB_QUEUES, job)
        if raw is not None and records.decode_number(raw) == queue:
            tx.delete(keyspace.JOB_QUEUES, job)
