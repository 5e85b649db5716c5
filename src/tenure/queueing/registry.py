"""The registry of queues: name, number, policy, and whether a queue is paused.

A name gets a number once, and keeps it; keys hold only numbers. If one process owns the store, rows are cached until
this process changes them; else the row is read in every transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from tenure.errors import Corrupt
from tenure.model.durations import duration_ms
from tenure.model.ids import queue_mark
from tenure.model.lifecycle import Change, State
from tenure.model.names import QueueName
from tenure.model.rate import Rate
from tenure.model.retry import Policy
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, iterate
from tenure.storage.keyspace import Counter

NEXT_QUEUE = b"next_queue"
_PAGE = 1000


class RegisteredQueue(msgspec.Struct, frozen=True):
    number: int
    name: QueueName
    policy: Policy
    paused: bool
    raw: bytes
    max_attempts: int
    #: The policy's durations in milliseconds; and the prefix of each priority's ready rows, highest first.
    lease_ms: int
    retention_ms: int
    result_retention_ms: int
    dedup_ms: int
    tiers: tuple[bytes, ...]
    prefix: bytes
    #: The counters' keys by their number, 0 unused.
    counters: tuple[bytes, ...]
    #: The encoded heads of the most frequent events, by priority.
    enqueued: tuple[bytes, ...]
    claimed: tuple[bytes, ...]
    done: tuple[bytes, ...]
    #: Whether enqueues must check `max_waiting` or a quota; and whether claims must check `limits`.
    bounded: bool
    limited: bool
    rate: Rate | None
    #: The number of its tenant's usage counters (`quota_usage`); 0: the tenant has no quota.
    meter: int
    #: The bytes at `model.ids.MARK` in the ids of its jobs.
    mark: bytes
    deleted: bool
    #: It has or had jobs with a group: its groups take turns (`groups`).
    grouped: bool

    def record(self, **changes: object) -> records.QueueRecord:
        """The queue's row with these fields changed."""
        record = records.QueueRecord(
            self.number, *self.name, self.policy, self.paused, self.meter, self.deleted, self.grouped
        )
        return msgspec.structs.replace(record, **changes)


@lru_cache(4096)  # lists of all queues decode the same rows repeatedly
def registered(raw: bytes) -> RegisteredQueue:
    record = records.decode_struct(records.QueueRecord, raw, "a queue's row")
    policy = record.policy
    return RegisteredQueue(
        record.number,
        QueueName(record.tenant, record.queue),
        policy,
        record.paused,
        raw,
        policy.max_attempts,
        duration_ms("lease", policy.lease),
        duration_ms("retention", policy.retention),
        duration_ms("result_retention", policy.result_retention),
        duration_ms("dedup_window", policy.dedup_window),
        tuple(keyspace.ready_prefix(record.number, priority) for priority in range(9, -1, -1)),
        keyspace.queue_prefix(record.number),
        tuple(keyspace.counter(record.number, number) for number in range(max(Counter) + 1)),
        _heads(record.number, Change.ENQUEUED, State.WAITING),
        _heads(record.number, Change.CLAIMED, State.LEASED),
        _heads(record.number, Change.DONE, State.GONE),
        policy.max_waiting is not None or record.meter != 0,
        policy.max_leased is not None or policy.rate is not None or record.meter != 0,
        policy.rate if isinstance(policy.rate, Rate) else None,
        record.meter,
        queue_mark(record.number),
        record.deleted,
        record.grouped,
    )


def _heads(queue: int, change: Change, state: State) -> tuple[bytes, ...]:
    return tuple(records.pack_event_head(change, state, priority, 0, queue) for priority in range(10))


def _readable(reader: Reader) -> Iterator[bytes | Corrupt]:
    """The rows of all queues, and an error for each row that the engine cannot read."""
    begin = b""
    while True:
        try:
            rows = reader.scan(keyspace.QUEUES, begin, keyspace.LAST, _PAGE)
        except Corrupt as exc:
            if exc.key is None or exc.key < begin:
                raise
            yield exc
            # The rows before the damaged one; then continue after it.
            yield from [raw for _, raw in reader.scan(keyspace.QUEUES, begin, exc.key, _PAGE)]
            begin = exc.key + b"\0"
            continue
        yield from [raw for _, raw in rows]
        if len(rows) < _PAGE:
            return
        begin = rows[-1][0] + b"\0"


class Registry:
    def __init__(self, *, cached: bool) -> None:
        self._cached = cached
        self._known: dict[QueueName, RegisteredQueue] = {}
        self._by_number: dict[int, QueueName] = {}

    def find(self, reader: Reader, name: QueueName) -> RegisteredQueue | None:
        """The queue of that name; None if it was never created, or is deleted."""
        known = self._known.get(name)
        if known is not None and self._cached:
            return known
        found = self.read(reader, name)
        return None if found is None or found.deleted else found

    def read(self, reader: Reader, name: QueueName) -> RegisteredQueue | None:
        """As `find`, but also a deleted queue: a new queue of that name gets the same number."""
        raw = reader.get(keyspace.QUEUES, keyspace.queue_row(*name))
        if raw is None:
            return None
        known = self._known.get(name)
        if known is not None and known.raw == raw:
            return known
        found = registered(raw)
        self.learn(found)
        return found

    def by_number(self, reader: Reader, number: int) -> RegisteredQueue | None:
        """The queue of that number, also a deleted one: the journal still names it. Raises Corrupt."""
        name = self._by_number.get(number)
        found = None if name is None else self.find(reader, name) or self.read(reader, name)
        if found is not None and found.number == number:
            return found
        # Not cached, or cached by a transaction that was not committed: read all rows. A damaged row is skipped: it
        # must not make the other queues unreadable.
        damage: Corrupt | None = None
        for raw in _readable(reader):
            try:
                if isinstance(raw, Corrupt):
                    raise raw
                found = registered(raw)
            except Corrupt as exc:
                damage = exc
                continue
            self.learn(found)
            if found.number == number:
                return found
        if damage is not None:
            raise damage  # it may be the row of the requested queue
        return None

    def all(self, reader: Reader, tenant: str | None = None) -> list[RegisteredQueue]:
        return list(self.each(reader, tenant))

    def each(
        self, reader: Reader, tenant: str | None, begin: bytes = b"", chunk: int = 1000
    ) -> Iterator[RegisteredQueue]:
        """The queues of a tenant, or of all tenants, in the order of keys, from a key on; `chunk` at a time."""
        first, end = (b"", keyspace.LAST) if tenant is None else keyspace.tenant_range(tenant)
        for rows in iterate(reader, keyspace.QUEUES, max(first, begin), end, chunk):
            for _, raw in rows:
                queue = registered(raw)
                if not queue.deleted:
                    yield queue

    def forget(self) -> None:
        """Clear the cache."""
        self._known.clear()
        self._by_number.clear()

    def learn(self, found: RegisteredQueue) -> None:
        """Cache a committed row."""
        if found.deleted:
            self._known.pop(found.name, None)
        else:
            self._known[found.name] = found
        self._by_number[found.number] = found.name
