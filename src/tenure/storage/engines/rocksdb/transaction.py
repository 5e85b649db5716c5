"""Reading the newest moment under the writer's lock, and collecting what is to be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rocksdict import WriteBatch

from tenure.storage.engine import Row, Space
from tenure.storage.engines.rocksdb.iterators import (
    at_keys,
    backward,
    first_keys,
    forward,
    forward_keys,
    here,
    until,
)
from tenure.storage.engines.rocksdb.opening import translated
from tenure.storage.keyspace import COUNTERS, FRONTS, JOBS, LEASES, NAMES, READY, STATE, commit

if TYPE_CHECKING:
    from tenure.storage.engines.rocksdb.engine import RocksEngine

#: Read again soon after they are written, by the claim and the ack of a job: the newest of them stay in memory.
RECENT_SPACES = (JOBS, STATE, LEASES)
#: Of what there are copies in memory: recent rows, counters (read once, then counted on), keys read ahead. Where fronts
#: begin is noted too.
COPIED = frozenset({*RECENT_SPACES, COUNTERS, READY})
#: As many rows are read by walking from one to the next, where they are likely to be neighbours.
WORTH_WALKING = 8
NOTED = frozenset({*FRONTS, *COPIED})


class Reader:
    """Reads the newest moment; the caller holds the lock."""

    def __init__(self, engine: RocksEngine) -> None:
        self._engine = engine
        self._tables = engine._tables

    def get(self, space: Space, key: bytes) -> bytes | None:
        if space in RECENT_SPACES:
            kept = self._engine._recent[space].get(key)
            if kept is not None:
                return kept
        try:
            value: bytes | None = self._tables[space].get(key)
        except Exception as exc:
            raise translated(exc) from exc
        return value

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            recent = self._engine._recent.get(space)
            if recent is None:
                values: Any = self._tables[space].get(list(keys))
            else:
                values = recent.find(keys)
                if None in values:
                    missing = [index for index, value in enumerate(values) if value is None]
                    stored = self._stored(space, [keys[index] for index in missing])
                    for index, value in zip(missing, stored, strict=True):
                        values[index] = value
        except Exception as exc:
            raise translated(exc) from exc
        found: list[bytes | None] = values
        return found

    def _stored(self, space: Space, keys: Any) -> Any:
        """Jobs that were enqueued together lie together: stepping costs half of looking each of them up."""
        if len(keys) < WORTH_WALKING:
            return self._tables[space].get(keys)
        return at_keys(self._tables[space].iter(), keys)

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        if reverse:
            return backward(self._tables[space].iter(), begin, end, limit)
        front = self._engine._heads.front(space, begin)
        if front is None or end > front.end:
            return forward(self._tables[space].iter(until(end)), begin, end, limit)
        if front.head >= end or limit <= 0:
            return []
        # Bounded by the front, not by the range: the first key past the range is worth knowing too.
        iterator = self._tables[space].iter(until(front.end))
        rows = forward(iterator, front.head, end, limit)
        front.head = rows[0][0] if rows else here(iterator, front)
        return rows

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        if reverse:
            return [key for key, _ in backward(self._tables[space].iter(), begin, end, limit)]
        front = self._engine._heads.front(space, begin)
        if front is None or end > front.end:
            return forward_keys(self._tables[space].iter(until(end)), begin, end, limit)
        if front.head >= end or limit <= 0:
            return []
        keys = first_keys(self._tables[space], front.head, end, front.end, limit)
        if not keys:
            iterator = self._tables[space].iter(until(front.end))
            keys = forward_keys(iterator, front.head, end, limit)
            if not keys:
                front.head = here(iterator, front)
                return keys
        front.head = keys[0]
        return keys


class RocksTransaction(Reader):
    """Collects writes in the driver's batch, and notes what the memory kept beside the database must learn of them."""

    def __init__(self, engine: RocksEngine) -> None:
        self._engine = engine
        self._tables = engine._tables
        self._handles = engine._handles
        self.batch = batch = WriteBatch(raw_mode=True)
        self._put, self._delete = batch.put, batch.delete
        #: Rows written to fronts and to spaces whose newest rows stay in memory, and keys deleted from the latter.
        self.noted: list[tuple[Space, Sequence[Row]]] = []
        self.gone: list[tuple[Space, Sequence[bytes]]] = []
        self.adds: dict[bytes, int] = {}
        self.appended: dict[Space, int] = {}

    def put(self, space: Space, key: bytes, value: bytes) -> None:
        self._put(key, value, self._handles[space])
        if space in NOTED:
            self.noted.append((space, ((key, value),)))

    def put_many(self, space: Space, rows: Sequence[Row]) -> None:
        batch = self.batch
        batch.set_default_column_family(self._handles[space])  # said once: two thirds of saying it for each row
        for key, value in rows:
            batch[key] = value
        if space in NOTED:
            self.noted.append((space, rows))

    def delete(self, space: Space, key: bytes) -> None:
        self._delete(key, self._handles[space])
        if space in COPIED:
            self.gone.append((space, (key,)))

    def delete_many(self, space: Space, keys: Sequence[bytes]) -> None:
        batch = self.batch
        batch.set_default_column_family(self._handles[space])
        for key in keys:
            del batch[key]
        if space in COPIED:
            self.gone.append((space, keys))

    def delete_range(self, space: Space, begin: bytes, end: bytes) -> None:
        if space in RECENT_SPACES:
            raise ValueError(f"rows of {NAMES[space]} are deleted one by one")
        if begin >= end:
            return  # the driver counts such a commit, and forgets it: the log would seem to have lost one
        if space == COUNTERS:
            self.gone.append((space, [key for key in self._engine._counts if begin <= key < end]))
        elif space == READY:
            self.gone.append((space, list(self._engine._heads.fronts[space])))
        self.batch.delete_range(begin, end, self._handles[space])

    def forget(self) -> None:
        """Let go of the driver's objects: whoever keeps an exception keeps this transaction, and must not keep those."""
        del self.batch, self._put, self._delete
        self._tables, self._handles = [], []

    def add(self, key: bytes, delta: int) -> None:
        self.adds[key] = self.adds.get(key, 0) + delta

    def guard(self, space: Space, key: bytes) -> None:
        pass

    def next_append(self, space: Space) -> int:
        return self.appended.get(space) or self._engine._next_append.get(space) or self._engine._last_append(space) + 1

    def append(self, space: Space, value: bytes) -> int:
        number = self.next_append(space)
        self.put(space, commit(number), value)
        self.appended[space] = number + 1
        return number
