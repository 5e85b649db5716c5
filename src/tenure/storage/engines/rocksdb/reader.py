"""Reads the newest committed rows. Requires: the writer's lock is held."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from tenure.errors import TenureError
from tenure.storage.engine import Row, Space
from tenure.storage.engines.rocksdb.iterators import (
    at_keys,
    backward,
    check_status,
    first_keys,
    forward,
    forward_keys,
    next_head,
    until,
)
from tenure.storage.engines.rocksdb.opening import translated
from tenure.storage.keyspace import GROUP_READY, READY, SEGMENT_READY, TURNS
from tenure.storage.scan_heads import LAST_REACH, Front

if TYPE_CHECKING:
    from tenure.storage.engines.rocksdb.memory import Memory
    from tenure.storage.writer_lock import WriterLock

#: From this many rows on, an iterator steps from key to key: the keys are likely to be neighbours.
WORTH_WALKING = 8
#: Spaces whose first keys are read ahead: claims take the first keys repeatedly.
_READ_AHEAD = (READY, SEGMENT_READY, TURNS, GROUP_READY)
#: Of these, the ones where a claim that takes the first key reads the second with it.
_IN_PAIRS = (TURNS, GROUP_READY)


class RocksReader:
    """`storage.engine.Reader` on the newest rows. Requires: the writer's lock is held."""

    def __init__(self, tables: Sequence[Any], memory: Memory) -> None:
        self._tables = tables
        self._recent = memory.recent
        self._heads = memory.heads

    def get(self, space: Space, key: bytes) -> bytes | None:
        recent = self._recent[space]
        if recent is not None:
            kept = recent.get(key)
            if kept is not None:
                return kept
        try:
            value: bytes | None = self._tables[space].get(key)
        except Exception as exc:
            raise translated(exc) from exc
        return value

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            recent = self._recent[space]
            if recent is None:
                values: Any = self._tables[space].get(list(keys))
            else:
                values = list(map(recent.get, keys))
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
        """Values from the database. Jobs of a batch are neighbours: stepping takes half the time of single lookups."""
        if len(keys) < WORTH_WALKING:
            return self._tables[space].get(keys)
        return at_keys(self._tables[space].iter(), keys)

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        if reverse:
            return backward(self._tables[space].iter(), begin, end, limit)
        heads = self._heads[space]
        front = None if heads is None else heads.front(begin)
        if front is None or end > front.end:
            return forward(self._tables[space].iter(until(end)), begin, end, limit)
        if front.head >= end or limit <= 0:
            return []
        # Bounded by the front, not by the range: the first key after the range becomes the new head.
        iterator = self._tables[space].iter(until(front.end))
        rows = forward(iterator, front.head, end, limit)
        front.head = rows[0][0] if rows else next_head(iterator, front)
        return rows

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        if reverse:
            return [key for key, _ in backward(self._tables[space].iter(), begin, end, limit)]
        heads = self._heads[space]
        front = None if heads is None else heads.fronts.get(begin) or heads.front(begin)
        if front is None or end > front.end:
            return forward_keys(self._tables[space].iter(until(end)), begin, end, limit)
        if front.head >= end or limit <= 0:
            return []
        ahead = front.ahead
        if limit == 1 and ahead:
            front.head = key = ahead[0]
            return [key] if key < end else []
        if limit <= len(ahead) or front.whole:
            return self._from_ahead(front, end, limit)
        if limit == 1 or space == SEGMENT_READY or (limit == 2 and space in _IN_PAIRS):
            return self._first(space, front, end, limit)
        keys = first_keys(self._tables[space], front.head, end, front.end, limit)
        if not keys:
            iterator = self._tables[space].iter(until(front.end))
            keys = forward_keys(iterator, front.head, end, limit)
            if not keys:
                front.head = next_head(iterator, front)
                return keys
        front.head = keys[0]
        return keys

    def _from_ahead(self, front: Front, end: bytes, limit: int) -> list[bytes]:
        """The first keys, from those that were read ahead."""
        ahead = front.ahead
        if not ahead:
            front.head = front.emptied
            return []
        front.head = ahead[0]
        keys = ahead[:limit]
        if keys[-1] >= end:
            return [key for key in keys if key < end]
        return keys

    def _first(self, space: Space, front: Front, end: bytes, limit: int) -> list[bytes]:
        """The first few keys. Reads a few more ahead, which the next claims are likely to need."""
        iterator = self._tables[space].iter(until(front.end))
        iterator.seek(front.head)
        if not iterator.valid():
            check_status(iterator)
            front.head = front.emptied
            front.whole = space in _READ_AHEAD
            return []
        key: bytes = iterator.key()
        front.head = key
        if space in _READ_AHEAD:
            self._read_ahead(front, iterator, limit)
            return self._from_ahead(front, end, limit)
        return [key] if key < end else []

    def _read_ahead(self, front: Front, iterator: Any, least: int) -> None:
        """Keep the keys from the iterator's position on in `front.ahead`, at least `least`. Raises if damage lies before that."""
        ahead: list[bytes] = []
        whole = False
        for _ in range(max(front.reach, least)):
            ahead.append(iterator.key())
            iterator.next()
            if not iterator.valid():
                # Damage raises for the caller that reads that far.
                with suppress(TenureError) if len(ahead) >= least else nullcontext():
                    check_status(iterator)
                    whole = True
                break
        front.reach = min(2 * front.reach, LAST_REACH, front.kept)
        front.ahead, front.whole = ahead, whole

    def close(self) -> None:
        """Release the driver's objects, which hold the database's lock as long as they exist."""
        self._tables = ()


class CheckedReader(RocksReader):
    """Asserts at every read that the writer's lock is held; for debug runs."""

    def __init__(self, tables: Sequence[Any], memory: Memory, writer: WriterLock) -> None:
        super().__init__(tables, memory)
        self._writer = writer

    def get(self, space: Space, key: bytes) -> bytes | None:
        self._writer.assert_held()
        return super().get(space, key)

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        self._writer.assert_held()
        return super().get_many(space, keys)

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        self._writer.assert_held()
        return super().scan(space, begin, end, limit, reverse=reverse, snapshot=snapshot)

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        self._writer.assert_held()
        return super().keys(space, begin, end, limit, reverse=reverse, snapshot=snapshot)
