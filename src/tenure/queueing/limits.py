"""A queue's limits on claims: the number of leased jobs (`max_leased`), and the rate of claimed jobs (`rate`).

Both are checked inside the claim's transaction, against the queue's counter and its bucket, so that they hold over all
workers of all processes. Claims from queues without limits do not read them.
"""

from __future__ import annotations

from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import Counter, Limit


def room(reader: Reader, queue: RegisteredQueue, now_ms: int, wanted: int) -> int:
    """How many of `wanted` jobs a claim may take now."""
    if queue.policy.max_leased is not None:
        wanted = min(wanted, _slots(reader, queue))
    if queue.rate is not None and wanted > 0:
        wanted = min(wanted, queue.rate.free(_full_at(reader, queue), now_ms))
    return max(wanted, 0)


def opens_at(reader: Reader, queue: RegisteredQueue) -> int | None:
    """When a claim may take a job (perhaps in the past); None: not before a leased job is settled."""
    if queue.policy.max_leased is not None and _slots(reader, queue) <= 0:
        return None
    return 0 if queue.rate is None else queue.rate.free_at_ms(_full_at(reader, queue))


def take(unit: UnitOfWork, queue: RegisteredQueue, count: int) -> None:
    """Take `count` jobs from the rate's bucket. At most once in a transaction: it reads the row that it writes."""
    if queue.rate is not None:
        full = queue.rate.take(_full_at(unit.tx, queue), unit.now, count)
        unit.tx.put(keyspace.LIMITS, keyspace.limit(Limit.QUEUE_RATE, queue.number), records.encode_bucket(full))


def _slots(reader: Reader, queue: RegisteredQueue) -> int:
    leased = records.decode_count(reader.get(keyspace.COUNTERS, keyspace.counter(queue.number, Counter.LEASED)))
    return (queue.policy.max_leased or 0) - leased


def _full_at(reader: Reader, queue: RegisteredQueue) -> int:
    return records.decode_bucket(reader.get(keyspace.LIMITS, keyspace.limit(Limit.QUEUE_RATE, queue.number)))
