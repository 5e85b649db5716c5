"""An engine that counts: which rows of which space a verb reads and writes, on top of a real engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenure.api.store import Store
from tenure.backends.embedded import KvBackend
from tenure.clock import Clock
from tenure.storage.engines.lmdb import LmdbEngine
from tenure.storage.engines.memory import MemoryEngine
from tenure.storage.engines.rocksdb import RocksEngine
from tenure.storage.keyspace import COUNTERS, NAMES


class Work:
    """What was done, by kind and space: ("read" | "wrote" | "deleted" | "looked", name of the space)."""

    def __init__(self) -> None:
        self.rows: Counter[tuple[str, str]] = Counter()
        self.bytes_written = 0
        self.commits = 0

    def total(self, *kinds: str) -> int:
        return sum(count for (kind, _), count in self.rows.items() if kind in kinds)

    @property
    def reads(self) -> int:
        """Rows that came back, and looks for rows that did not."""
        return self.total("read", "looked")

    @property
    def writes(self) -> int:
        return self.total("wrote", "deleted")

    def of(self, space: int) -> dict[str, int]:
        return {kind: count for (kind, name), count in self.rows.items() if name == NAMES[space]}

    def __repr__(self) -> str:
        return f"Work({dict(sorted(self.rows.items()))}, {self.bytes_written} bytes, {self.commits} commits)"


class _Counting:
    """A reader or transaction, counted."""

    def __init__(self, inner: Any, work: Work) -> None:
        self._inner = inner
        self._work = work

    def _note(self, kind: str, space: int, count: int = 1) -> None:
        self._work.rows[kind, NAMES[space]] += count

    def get(self, space: int, key: bytes) -> bytes | None:
        value: bytes | None = self._inner.get(space, key)
        self._note("looked" if value is None else "read", space)
        return value

    def get_many(self, space: int, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = self._inner.get_many(space, keys)
        self._note("read", space, len(values))
        return values

    def scan(self, space: int, begin: bytes, end: bytes, limit: int, **how: Any) -> list[tuple[bytes, bytes]]:
        rows: list[tuple[bytes, bytes]] = self._inner.scan(space, begin, end, limit, **how)
        self._note("read" if rows else "looked", space, len(rows) or 1)
        return rows

    def keys(self, space: int, begin: bytes, end: bytes, limit: int, **how: Any) -> list[bytes]:
        keys: list[bytes] = self._inner.keys(space, begin, end, limit, **how)
        self._note("read" if keys else "looked", space, len(keys) or 1)
        return keys

    def put(self, space: int, key: bytes, value: bytes) -> None:
        self._note("wrote", space)
        self._work.bytes_written += len(key) + len(value)
        self._inner.put(space, key, value)

    def put_many(self, space: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        listed = list(rows)
        self._note("wrote", space, len(listed))
        self._work.bytes_written += sum(len(key) + len(value) for key, value in listed)
        self._inner.put_many(space, listed)

    def delete(self, space: int, key: bytes) -> None:
        self._note("deleted", space)
        self._inner.delete(space, key)

    def delete_many(self, space: int, keys: Iterable[bytes]) -> None:
        listed = list(keys)
        self._note("deleted", space, len(listed))
        self._inner.delete_many(space, listed)

    def delete_range(self, space: int, begin: bytes, end: bytes) -> None:
        self._note("deleted", space)
        self._inner.delete_range(space, begin, end)

    def add(self, key: bytes, delta: int) -> None:
        self._note("wrote", COUNTERS)
        self._inner.add(key, delta)

    def append(self, space: int, value: bytes) -> int:
        self._note("wrote", space)
        self._work.bytes_written += len(value)
        number: int = self._inner.append(space, value)
        return number

    def next_append(self, space: int) -> int:
        number: int = self._inner.next_append(space)
        return number

    def guard(self, space: int, key: bytes) -> None:
        self._inner.guard(space, key)


class CountingEngine:
    """Counts what goes through `transact` and `read`; everything else is the engine's own.

    The straight way is closed: `tests/queueing/test_single.py` holds it to the rows of the general one.
    """

    straight = None

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "work", Work())

    def transact(self, fn: Callable[[Any], Any]) -> Any:
        before = self.work.total("wrote", "deleted")
        result = self.inner.transact(lambda tx: fn(_Counting(tx, self.work)))
        self.work.commits += self.work.total("wrote", "deleted") > before
        return result

    def read(self, fn: Callable[[Any], Any]) -> Any:
        return self.inner.read(lambda reader: fn(_Counting(reader, self.work)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)


class Counted:
    """A store whose work can be measured."""

    def __init__(self, engine: Any, clock: Clock, url: str) -> None:
        self.engine = CountingEngine(engine)
        self.store = Store(KvBackend(self.engine, url, clock))

    @contextmanager
    def measured(self) -> Iterator[Work]:
        work = Work()
        object.__setattr__(self.engine, "work", work)
        yield work
        object.__setattr__(self.engine, "work", Work())


def counted(engine: str, folder: Path, clock: Clock) -> Counted:
    if engine == "memory":
        return Counted(MemoryEngine(), clock, "memory:")
    if engine == "lmdb":
        return Counted(LmdbEngine(str(folder / "data"), boot_id=clock.boot_id()), clock, "lmdb:")
    return Counted(RocksEngine(str(folder / "data"), durability="os", boot_id=clock.boot_id()), clock, "rocksdb:")
