"""`storage.engine.Straight`: what `RocksTransaction` and `RocksEngine._apply` do, for a handful of rows, in one function.

A commit of one job is some 200 lines of Python between two calls of the driver when it goes through a transaction, and
the interpreter is then nine tenths of its cost. Here it is a fifth of that; the memory kept beside the database (recent
rows, fronts, counters, marks) learns the same. The three commonest commits are written out row by row: a loop over any
rows takes twice as long as what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from struct import Struct
from typing import TYPE_CHECKING, Any

from rocksdict import ReadOptions, WriteBatch

from tenure.errors import TenureError, Unavailable
from tenure.storage.checksum import crc32
from tenure.storage.durable_watermark import WORD
from tenure.storage.engine import Space
from tenure.storage.engines.rocksdb.iterators import check_status, until
from tenure.storage.engines.rocksdb.opening import translated
from tenure.storage.engines.rocksdb.recovery import may_pass
from tenure.storage.keyspace import (
    COUNTERS,
    DUE,
    FRONTS,
    JOBS,
    JOURNAL,
    LEASE_JOBS,
    LEASES,
    NAMES,
    READY,
    STATE,
    commit,
)
from tenure.storage.recent_rows import ROWS, VALUE_BYTES
from tenure.storage.records import COUNT_MASK, decode_count
from tenure.storage.scan_heads import LAST_REACH, Front

if TYPE_CHECKING:
    from tenure.storage.engines.rocksdb.engine import RocksEngine

_count = Struct(">Q").pack
_crc = Struct(">I").pack


class RocksStraight:
    def __init__(self, engine: RocksEngine) -> None:
        self._engine = engine
        self.lock: AbstractContextManager[object] = engine._lock
        self._heads = engine._heads
        self._fronts = engine._heads.fronts
        self._ready_fronts, self._due_fronts = self._fronts[READY], self._fronts[DUE]
        self._journal_fronts = self._fronts[JOURNAL]
        self._counts = engine._counts
        self._tables = engine._tables
        self._recent_jobs, self._recent_states, self._recent_leases = (
            engine._recent[space] for space in (JOBS, STATE, LEASES)
        )
        handles = engine._handles
        #: By space: its handle, and its recent rows or its fronts with the width of their prefixes, if it has any.
        self._table = [
            (handles[space], engine._recent.get(space), self._fronts.get(space), FRONTS.get(space, 0))
            for space in range(len(NAMES))
        ]
        self._jobs, self._state, self._ready = handles[JOBS], handles[STATE], handles[READY]
        self._leases, self._lease_jobs, self._due = handles[LEASES], handles[LEASE_JOBS], handles[DUE]
        self._counters, self._journal = handles[COUNTERS], handles[JOURNAL]
        self._syncer = engine._syncer
        self._grouped = engine._syncer.grouped
        self._words = engine._marks.words
        self._next_append = engine._next_append
        self._until: dict[bytes, ReadOptions] = {}

    def let_go(self) -> None:
        """Of the driver's objects, which keep its lock for as long as they live. Letting go twice is fine."""
        self._table.clear()
        self._until.clear()
        for name in ("jobs", "state", "ready", "leases", "lease_jobs", "due", "counters", "journal", "tables"):
            self.__dict__.pop(f"_{name}", None)

    def wait(self, version: int) -> None:
        self._syncer.wait(version)

    def begin(self) -> int:
        engine = self._engine
        if engine._stopped is not None:
            engine._refuse()
        return self._next_append[JOURNAL]

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
        front = self._fronts[space].get(prefix) or self._heads.made(space, prefix)
        if front.head >= end:
            return None
        if front.ahead:
            key = front.head = front.ahead[0]
            return key if key < end else None
        if front.whole:
            front.head = front.end
            return None
        options = self._until.get(front.end)
        if options is None:
            if len(self._until) > 1000:
                self._until.clear()
            options = self._until[front.end] = until(front.end)
        iterator = self._tables[space].iter(options)
        iterator.seek(front.head)
        if not iterator.valid():
            check_status(iterator)
            front.head = front.end
            if space == READY:
                self._heads.read_ahead = front.whole = True
            return None
        key = front.head = iterator.key()
        if space == READY:
            self._read_ahead(front, iterator)
        return key if key < end else None

    def _read_ahead(self, front: Front, iterator: Any) -> None:
        """The keys from the one on at which the iterator stands, for whoever takes them next."""
        self._heads.read_ahead = True
        ahead = front.ahead
        for _ in range(front.reach):
            ahead.append(iterator.key())
            iterator.next()
            if not iterator.valid():
                with suppress(TenureError):  # damage is told to whoever comes to it
                    check_status(iterator)
                    front.whole = True
                break
        front.reach = min(2 * front.reach, LAST_REACH)

    def enqueued(
        self, tier: bytes, row: bytes, job: bytes, state: bytes, ready: bytes, one: bytes, two: bytes, journal: bytes
    ) -> int:
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        put(row, job, self._jobs)
        put(row, state, self._state)
        put(ready, b"", self._ready)
        if len(job) <= VALUE_BYTES:
            self._recent_jobs.young[row] = job
        states = self._recent_states.young
        states[row] = state
        if len(states) > ROWS:
            self._turn()
        front = self._ready_fronts.get(tier)
        if front is not None:
            front.put(ready)
        try:
            return self._finish(batch, journal, one, 1, two, 1)
        except BaseException:
            del batch, put  # whoever keeps the exception keeps this frame, and must not keep those
            raise

    def claimed(
        self,
        tier: bytes,
        row: bytes,
        state: bytes,
        ready: bytes,
        held: bytes,
        lease: bytes,
        lease_jobs: bytes,
        due: bytes,
        down: bytes,
        up: bytes,
        journal: bytes,
    ) -> int:
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        put(row, state, self._state)
        put(held, lease, self._leases)
        put(held, lease_jobs, self._lease_jobs)
        put(due, b"", self._due)
        batch.delete(ready, self._ready)
        states = self._recent_states.young
        states[row] = state
        self._recent_leases.young[held] = lease
        if len(states) > ROWS:
            self._turn()
        front = self._due_fronts.get(due[:1])
        if front is not None and due < front.head:
            front.head = due
        front = self._ready_fronts.get(tier)
        if front is not None:
            if front.ahead and front.ahead[0] == ready:
                del front.ahead[0]
            else:
                front.forget()
        try:
            return self._finish(batch, journal, down, -1, up, 1)
        except BaseException:
            del batch, put
            raise

    def acked(self, row: bytes, held: bytes, due: bytes, down: bytes, up: bytes, journal: bytes) -> int:
        batch = WriteBatch(raw_mode=True)
        delete = batch.delete
        delete(row, self._jobs)
        delete(row, self._state)
        delete(held, self._leases)
        delete(held, self._lease_jobs)
        delete(due, self._due)
        jobs, states, leases = self._recent_jobs, self._recent_states, self._recent_leases
        jobs.young.pop(row, None)
        states.young.pop(row, None)
        leases.young.pop(held, None)
        if jobs.old:
            jobs.old.pop(row, None)
        if states.old:
            states.old.pop(row, None)
        if leases.old:
            leases.old.pop(held, None)
        try:
            return self._finish(batch, journal, down, -1, up, 1)
        except BaseException:
            del batch, delete
            raise

    def commit(
        self,
        puts: Sequence[tuple[Space, bytes, bytes]],
        deletes: Sequence[tuple[Space, bytes]],
        adds: Sequence[tuple[bytes, int]],
        journal: bytes,
    ) -> int:
        tables, counts = self._table, self._counts
        batch = WriteBatch(raw_mode=True)
        for space, key, value in puts:
            handle, recent, fronts, width = tables[space]
            batch.put(key, value, handle)
            if recent is not None:
                recent.put(((key, value),))
            elif fronts is not None:
                front = fronts.get(key[:width])
                if front is not None:
                    front.put(key)
        for space, key in deletes:
            handle, recent, _, _ = tables[space]
            batch.delete(key, handle)
            if recent is not None:
                recent.delete((key,))
            elif space == READY:
                self._heads.deleted(space, (key,))
        handle = self._counters
        for key, delta in adds:
            if key not in counts:
                counts[key] = decode_count(self._tables[COUNTERS].get(key))
            counts[key] = count = counts[key] + delta
            body = _count(count & COUNT_MASK)
            batch.put(key, body + _crc(crc32(body)), handle)
        try:
            return self._finish(batch, journal)
        except BaseException:
            del batch, handle
            raise

    def _turn(self) -> None:
        for recent in self._engine._recent.values():
            recent.turn()

    def _finish(
        self, batch: WriteBatch, journal: bytes, one: bytes = b"", delta: int = 0, two: bytes = b"", delta_two: int = 0
    ) -> int:
        """Two counters, the journal's row; then the write, and the notes of it."""
        put = batch.put
        if one:
            counts = self._counts
            try:
                count, count_two = counts[one], counts[two]
            except KeyError:
                table = self._tables[COUNTERS]
                count, count_two = (
                    counts[key] if key in counts else decode_count(table.get(key)) for key in (one, two)
                )
            counts[one] = count = count + delta
            counts[two] = count_two = count_two + delta_two
            body = _count(count & COUNT_MASK)
            put(one, body + _crc(crc32(body)), self._counters)
            body = _count(count_two & COUNT_MASK)
            put(two, body + _crc(crc32(body)), self._counters)
        number = self._next_append[JOURNAL]
        key = commit(number)
        put(key, journal, self._journal)
        if self._journal_fronts:
            front = self._journal_fronts[b""]
            if key < front.head:
                front.head = key
        engine = self._engine
        size = batch.size_in_bytes()
        try:
            engine._db.write(batch)
        except Exception as exc:  # noqa: BLE001 - the driver raises nothing more special
            engine._stop(exc, again=may_pass(exc))
            del batch, put
            raise Unavailable(str(engine._stopped)) from None
        self._next_append[JOURNAL] = number + 1
        engine._written = number
        # As `RocksEngine._written_out`.
        engine._sequence = sequence = engine._db.latest_sequence_number()
        engine._version = self._syncer.applied_to = version = engine._version + 1
        if not self._grouped:
            self._words[WORD] = sequence << 16 | sequence * 40_503 + 12_345 & 0xFFFF  # as `Marks.note_written`
        engine._count(size)
        return version if self._grouped else 0
