"""A queue's limits on what is handed out: how many jobs are held at once (`max_leased`), and how many a second
(`rate`).

Both are decided inside the claim's own transaction, from the queue's counter and its bucket, so that they hold for all
workers of all processes together. Queues without limits read nothing of this.
"""

from __future__ import annotations

from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import Counter, Limit


def room(reader: Reader, queue: RegisteredQueue, now_ms: int, wanted: int) -> int:
    """How many jobs a claim may take now, of those it wants."""
    if queue.policy.max_leased is not None:
        wanted = min(wanted, _slots(reader, queue))
    if queue.rate is not None and wanted > 0:
        wanted = min(wanted, queue.rate.free(_full_at(reader, queue), now_ms))
    return max(wanted, 0)


def opens_at(reader: Reader, queue: RegisteredQueue) -> int | None:
    """From when on a claim may take a job (maybe in the past); None: not before one that is held is let go."""
    if queue.policy.max_leased is not None and _slots(reader, queue) <= 0:
        return None
    return 0 if queue.rate is None else queue.rate.free_at_ms(_full_at(reader, queue))


def take(unit: UnitOfWork, queue: RegisteredQueue, count: int) -> None:
    """A claim takes so many. Once a transaction: it reads what it writes."""
    if queue.rate is not None:
        full = queue.rate.take(_full_at(unit.tx, queue), unit.now, count)
        unit.tx.put(keyspace.LIMITS, keyspace.limit(Limit.QUEUE_RATE, queue.number), records.encode_bucket(full))


def _slots(reader: Reader, queue: RegisteredQueue) -> int:
    leased = records.decode_count(reader.get(keyspace.COUNTERS, keyspace.counter(queue.number, Counter.LEASED)))
    return (queue.policy.max_leased or 0) - leased


def _full_at(reader: Reader, queue: RegisteredQueue) -> int:
    return records.decode_bucket(reader.get(keyspace.LIMITS, keyspace.limit(Limit.QUEUE_RATE, queue.number)))
