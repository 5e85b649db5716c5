"""The memory engine: a sorted dictionary a space. For tests and trials; nothing survives the process.

It is also the strict one: a transaction that reads a row it wrote is refused here, so that no logic above the seam
comes to rely on what some engines cannot do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from sortedcontainers import SortedDict

from tenure.errors import Corrupt, InvalidArgument, StoreClosed
from tenure.storage.engine import Extent, Row, Snapshot, Space, Steps, Traits
from tenure.storage.keyspace import COUNTERS, LAST, NAMES, commit, split_commit
from tenure.storage.records import decode_count, encode_count

T = TypeVar("T")


class ReadOwnWrite(AssertionError):
    """A transaction looked at what it had written: a bug above the seam."""


class _Tables:
    """A reader of sorted dictionaries."""

    def __init__(self, tables: Sequence[SortedDict]) -> None:
        self._tables = tables

    def get(self, space: Space, key: bytes) -> bytes | None:
        value: bytes | None = self._tables[space].get(key)
        return value

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(space, key) for key in keys]

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        table = self._tables[space]
        return [(key, table[key]) for key in self.keys(space, begin, end, limit, reverse=reverse)]

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        found: Iterator[bytes] = self._tables[space].irange(begin, end, inclusive=(True, False), reverse=reverse)
        return [key for key, _ in zip(found, range(limit), strict=False)]


class _Transaction(_Tables):
    def __init__(self, tables: Sequence[SortedDict]) -> None:
        super().__init__(tables)
        self._writes: dict[tuple[Space, bytes], bytes | None] = {}
        self._ranges: list[tuple[Space, bytes, bytes]] = []
        self._adds: dict[bytes, int] = {}
        self._appended: dict[Space, list[bytes]] = {}

    def _refuse(self, space: Space, begin: bytes, end: bytes | None = None) -> None:
        stop = begin + b"\0" if end is None else end
        written = any(s == space and begin <= k < stop for s, k in self._written())
        if written or any(s == space and begin < e and b < stop for s, b, e in self._ranges):
            raise ReadOwnWrite(f"this transaction wrote to {NAMES[space]} where it now reads")

    def _written(self) -> Iterator[tuple[Space, bytes]]:
        yield from self._writes
        for key in self._adds:
            yield COUNTERS, key

    def get(self, space: Space, key: bytes) -> bytes | None:
        if self._writes or self._adds or self._ranges:
            self._refuse(space, key)
        return super().get(space, key)

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        if self._writes or self._adds or self._ranges:
            self._refuse(space, begin, end)
        return super().keys(space, begin, end, limit, reverse=reverse)

    def put(self, space: Space, key: bytes, value: bytes) -> None:
        self._writes[space, key] = value

    def put_many(self, space: Space, rows: Iterable[Row]) -> None:
        for key, value in rows:
            self._writes[space, key] = value

    def delete(self, space: Space, key: bytes) -> None:
        self._writes[space, key] = None

    def delete_many(self, space: Space, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._writes[space, key] = None

    def delete_range(self, space: Space, begin: bytes, end: bytes) -> None:
        self._ranges.append((space, begin, end))

    def add(self, key: bytes, delta: int) -> None:
        self._adds[key] = self._adds.get(key, 0) + delta

    def guard(self, space: Space, key: bytes) -> None:
        pass

    def next_append(self, space: Space) -> int:
        table = self._tables[space]
        return (split_commit(table.peekitem(-1)[0]) if table else 0) + 1 + len(self._appended.get(space, ()))

    def append(self, space: Space, value: bytes) -> int:
        number = self.next_append(space)
        self._appended.setdefault(space, []).append(value)
        return number

    def apply(self) -> bool:
        for space, values in self._appended.items():
            first = self.next_append(space) - len(values)
            for offset, appended in enumerate(values):
                self._tables[space][commit(first + offset)] = appended
        for space, begin, end in self._ranges:
            table = self._tables[space]
            for key in list(table.irange(begin, end, inclusive=(True, False))):
                del table[key]
        for (space, key), value in self._writes.items():
            if value is None:
                self._tables[space].pop(key, None)
            else:
                self._tables[space][key] = value
        table = self._tables[COUNTERS]
        for key, delta in self._adds.items():
            table[key] = encode_count(decode_count(table.get(key)) + delta)
        return bool(self._writes or self._ranges or self._adds or self._appended)


class _Snapshot(_Tables):
    def __enter__(self) -> _Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def walk(self, space: Space, begin: bytes, end: bytes) -> Steps:
        return Steps(self, space, begin, end)

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        return self.scan(space, begin, LAST, limit), []

    def extents(self, space: Space) -> list[Extent]:
        return []

    def entries(self, space: Space) -> int | None:
        return None

    def close(self) -> None:
        self._tables = ()


class MemoryEngine:
    traits = Traits(
        scope="process",
        order="strict",
        snapshot="store",
        durability="memory",
        atomic_bytes=2**40,
        key_bytes=2**16,
        value_bytes=2**31,
    )
    alone = True
    home = None
    remarks: tuple[str, ...] = ()
    straight = None
    loader = None

    def __init__(self) -> None:
        self.retried: Callable[[str], None] = lambda why: None
        self.reopened: Callable[[], None] = lambda: None
        self._tables = [SortedDict() for _ in NAMES]
        self._lock = threading.Lock()
        self._version = 0
        self._owner = os.getpid()
        self._closed = False

    def transact(self, fn: Callable[[_Transaction], T]) -> T:
        with self._lock:
            self._usable()
            transaction = _Transaction(self._tables)
            result = fn(transaction)
            if transaction.apply():
                self._version += 1
            return result

    def read(self, fn: Callable[[_Tables], T]) -> T:
        with self._lock:
            self._usable()
            return fn(_Tables(self._tables))

    def snapshot(self, spaces: Sequence[Space] | None = None) -> Snapshot:
        with self._lock:
            self._usable()
            return _Snapshot([SortedDict(table) for table in self._tables])

    def version(self) -> int:
        return self._version

    def share(self) -> None:
        pass

    def tend(self) -> None:
        pass

    def durable(self) -> int | None:
        return None

    def export(self, path: str) -> None:
        raise InvalidArgument("a memory store has no files: snapshot works for stores that are kept on disk")

    def close(self) -> None:
        self._closed = True

    def _usable(self) -> None:
        if self._closed:
            raise StoreClosed("this store was closed")
        if os.getpid() != self._owner:
            raise StoreClosed("this process is a fork of the one that opened the store: open it anew in the child")
