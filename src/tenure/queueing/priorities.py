"""Caches which priorities of a queue have had a job, so that a claim need not scan all ten.

Only for an engine with one writer, which sees every enqueue. It is read from the queue's index on first use, kept in
memory, and only grows. Requires for every call: the writer's lock is held.
"""

from __future__ import annotations

from tenure.queueing.registry import RegisteredQueue
from tenure.storage import keyspace
from tenure.storage.engine import Reader


def _grouped(queue: int, priority: int) -> tuple[bytes, bytes]:
    grouped = keyspace.GROUPED
    return keyspace.ready_prefix(queue, priority, grouped), keyspace.ready_tier_end(queue, priority, grouped)


class Priorities:
    def __init__(self, *, known: bool) -> None:
        self._known = known
        #: By queue: the priorities that have had a job. Missing: not read yet.
        self.used: dict[int, set[int]] = {}
        #: By queue: what `of` returns, if it is known.
        self.prefixes: dict[int, tuple[bytes, ...]] = {}

    def of(self, reader: Reader, queue: RegisteredQueue) -> tuple[bytes, ...]:
        """The prefixes of this queue's ready rows, highest priority first."""
        if not self._known:
            return queue.tiers
        prefixes = self.prefixes.get(queue.number)
        if prefixes is None:
            found = {
                priority
                for priority, prefix in zip(range(9, -1, -1), queue.tiers, strict=True)
                if reader.keys(keyspace.READY, prefix, keyspace.ready_tier_end(queue.number, priority), 1)
                or (queue.grouped and reader.keys(keyspace.READY, *_grouped(queue.number, priority), 1))
            }
            prefixes = self._use(queue.number, found)
        return prefixes

    def add(self, queue: int, priority: int) -> None:
        """Add the priority of a job that is written. Requires: the queue's priorities were read."""
        self._use(queue, self.used[queue] | {priority})

    def _use(self, queue: int, priorities: set[int]) -> tuple[bytes, ...]:
        self.used[queue] = priorities
        prefixes = tuple(keyspace.ready_prefix(queue, priority) for priority in sorted(priorities, reverse=True))
        self.prefixes[queue] = prefixes
        return prefixes

    def forget(self) -> None:
        self.prefixes.clear()
        self.used.clear()
