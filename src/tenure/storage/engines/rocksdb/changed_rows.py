"""What a transaction changes, as rows of one batch of the driver and of the memory beside the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rocksdict import WriteBatch

from tenure.storage.checksum import crc32
from tenure.storage.engines.rocksdb.memory import Memory
from tenure.storage.keyspace import COUNTERS, JOURNAL, commit
from tenure.storage.records import decode_count, pack_count, seal_count
from tenure.storage.transaction import Changes


class ChangedRows:
    """Requires, for every use: the writer's lock is held."""

    def __init__(self, tables: Sequence[Any], handles: Sequence[Any], memory: Memory) -> None:
        self._tables = tables
        self._memory = memory
        #: By space: its handle, its recent rows, and what else of the memory learns of a row that is put or deleted there.
        self._spaces = [(handle, memory.recent[space], memory.learner(space)) for space, handle in enumerate(handles)]
        self._counters, self._journal = handles[COUNTERS], handles[JOURNAL]

    def fill(self, batch: WriteBatch, changes: Changes, number: int) -> None:
        """Put the changes into a batch, and into memory. The first row of the journal gets `number`."""
        put, spaces = batch.put, self._spaces
        if changes.ranges:
            self._delete_ranges(batch, changes)
        for space, key, value in changes.writes:
            handle, recent, learn = spaces[space]
            if value is not None:
                put(key, value, handle)
                if recent is not None:
                    recent[key] = value
                elif learn is not None:
                    learn(key, value)
            else:
                batch.delete(key, handle)
                if recent is not None:
                    recent.pop(key, None)
                elif learn is not None:
                    learn(key, None)
        if changes.adds:
            counts, handle = self._memory.counts, self._counters
            for key, delta in changes.adds.items():
                if key in counts:
                    delta += counts[key]
                else:
                    delta += decode_count(self._tables[COUNTERS].get(key))
                counts[key] = delta
                put(key, seal_count(delta, crc32(pack_count(delta))), handle)
        for row in changes.journal:
            put(commit(number), row, self._journal)
            number += 1

    def _delete_ranges(self, batch: WriteBatch, changes: Changes) -> None:
        for space, begin, end in changes.ranges:
            self._memory.delete_range(space, begin, end)
            batch.delete_range(begin, end, self._spaces[space][0])

    def close(self) -> None:
        """Let go of the driver's objects, which keep its lock for as long as they live."""
        self._tables = ()
        self._spaces.clear()
        self._counters = self._journal = None
