"""`storage.engine.Straight`: what `RocksTransaction` and `RocksEngine._apply` do, for a handful of rows, in one function.

A commit of one job is some 200 lines of Python between two calls of the driver when it goes through a transaction, and
the interpreter is then nine tenths of its cost. Here it is a third of that; the memory kept beside the database (recent
rows, fronts, counters, marks) learns the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from struct import Struct
from typing import TYPE_CHECKING

from rocksdict import ReadOptions, WriteBatch

from leasehold.errors import Unavailable
from leasehold.storage.checksum import crc32
from leasehold.storage.engine import Space
from leasehold.storage.engines.rocksdb.iterators import check_status, here, until
from leasehold.storage.engines.rocksdb.opening import translated
from leasehold.storage.keyspace import COUNTERS, FRONTS, JOURNAL, NAMES, STATE, commit
from leasehold.storage.recent import ROWS, VALUE_BYTES
from leasehold.storage.records import COUNT_MASK, decode_count

if TYPE_CHECKING:
    from leasehold.storage.engines.rocksdb.engine import RocksEngine

_count = Struct(">Q").pack
_crc = Struct(">I").pack


class RocksStraight:
    def __init__(self, engine: RocksEngine) -> None:
        self._engine = engine
        self.lock: AbstractContextManager[object] = engine._lock
        self._fronts = engine._heads.fronts
        self._counts = engine._counts
        self._tables = engine._tables
        self._states = engine._recent[STATE]
        #: By space: its handle, and its recent rows or its fronts with the width of their prefixes, if it has any.
        self._table = [
            (engine._handles[space], engine._recent.get(space), self._fronts.get(space), FRONTS.get(space, 0))
            for space in range(len(NAMES))
        ]
        self._counters, self._journal = engine._handles[COUNTERS], engine._handles[JOURNAL]
        self._journal_fronts = self._fronts[JOURNAL]
        self._grouped = engine._syncer.grouped
        self._until: dict[bytes, ReadOptions] = {}

    def let_go(self) -> None:
        """Of the driver's objects, which keep its lock for as long as they live."""
        self._table.clear()
        del self._counters, self._journal, self._tables
        self._until.clear()

    def wait(self, version: int) -> None:
        self._engine._syncer.wait(version)

    def begin(self) -> int:
        engine = self._engine
        if engine._stopped is not None:
            engine._refuse()
        return engine._next_append[JOURNAL]

    def get(self, space: Space, key: bytes) -> bytes | None:
        recent = self._table[space][1]
        if recent is not None:
            value = recent.young.get(key) or recent.old.get(key)
            if value is not None:
                return value
        try:
            stored: bytes | None = self._tables[space].get(key)
        except Exception as exc:
            raise translated(exc) from exc
        return stored

    def first(self, space: Space, prefix: bytes, end: bytes) -> bytes | None:
        front = self._fronts[space].get(prefix) or self._engine._heads.made(space, prefix)
        if front.head >= end:
            return None
        options = self._until.get(front.end)
        if options is None:
            if len(self._until) > 1000:
                self._until.clear()
            options = self._until[front.end] = until(front.end)
        iterator = self._tables[space].iter(options)
        iterator.seek(front.head)
        if iterator.valid():
            key: bytes = iterator.key()
            front.head = key
            return key if key < end else None
        check_status(iterator)
        front.head = here(iterator, front)
        return None

    def commit(  # noqa: C901 - one function is what it is for: each call it makes is felt
        self,
        puts: Sequence[tuple[Space, bytes, bytes]],
        deletes: Sequence[tuple[Space, bytes]],
        adds: Sequence[tuple[bytes, int]],
        journal: bytes,
    ) -> int:
        engine, tables, counts = self._engine, self._table, self._counts
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for space, key, value in puts:
            handle, recent, fronts, width = tables[space]
            put(key, value, handle)
            if recent is not None:
                if len(value) <= VALUE_BYTES:
                    recent.young[key] = value
                else:
                    recent.delete((key,))  # an older, smaller value must not outlive it
            elif fronts is not None:
                front = fronts.get(key[:width])
                if front is not None and key < front.head:
                    front.head = key
        for space, key in deletes:
            handle, recent, _, _ = tables[space]
            batch.delete(key, handle)
            if recent is not None:
                recent.young.pop(key, None)
                recent.old.pop(key, None)
        handle = self._counters
        for key, delta in adds:
            if key in counts:
                counts[key] = count = counts[key] + delta
            else:
                counts[key] = count = decode_count(self._tables[COUNTERS].get(key)) + delta
            body = _count(count & COUNT_MASK)
            put(key, body + _crc(crc32(body)), handle)
        number = engine._next_append[JOURNAL]
        key = commit(number)
        put(key, journal, self._journal)
        front = self._journal_fronts.get(b"")
        if front is not None and key < front.head:
            front.head = key
        if len(self._states.young) > ROWS:
            for recent in engine._recent.values():
                recent.turn()
        try:
            engine._db.write(batch)
        except Exception as exc:  # noqa: BLE001 - the driver raises nothing more special
            engine._stop(exc)
            del batch, put, handle  # whoever keeps the exception keeps this frame, and must not keep those
            raise Unavailable(str(engine._stopped)) from None
        engine._next_append[JOURNAL] = number + 1
        engine._written = number
        # As `RocksEngine._written_out`.
        engine._sequence = sequence = engine._db.latest_sequence_number()
        engine._version = version = engine._version + 1
        engine._syncer.applied_to = version
        if self._grouped:
            return version
        engine._marks.note_written(sequence)
        return 0
