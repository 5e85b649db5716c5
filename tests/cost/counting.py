"""An engine wrapper that counts the rows that a verb reads and writes, by space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenure.api.store import Store
from tenure.backends.embedded import EmbeddedBackend
from tenure.clock import Clock
from tenure.storage.engines.lmdb import LmdbEngine
from tenure.storage.engines.memory import MemoryEngine
from tenure.storage.engines.rocksdb import RocksEngine
from tenure.storage.keyspace import COUNTERS, JOURNAL, NAMES


class Work:
    """Counts by kind and space: ("read" | "wrote" | "deleted" | "looked", name of the space)."""

    def __init__(self) -> None:
        self.rows: Counter[tuple[str, str]] = Counter()
        self.bytes_written = 0
        self.commits = 0

    def total(self, *kinds: str) -> int:
        return sum(count for (kind, _), count in self.rows.items() if kind in kinds)

    @property
    def reads(self) -> int:
        """The rows that were read, and the reads of missing rows."""
        return self.total("read", "looked")

    @property
    def writes(self) -> int:
        return self.total("wrote", "deleted")

    def of(self, space: int) -> dict[str, int]:
        return {kind: count for (kind, name), count in self.rows.items() if name == NAMES[space]}

    def __repr__(self) -> str:
        return f"Work({dict(sorted(self.rows.items()))}, {self.bytes_written} bytes, {self.commits} commits)"


class _Counting:
    """A wrapper of a reader or transaction that counts."""

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


def _note_changes(changes: Any, work: Work) -> None:
    for space, key, value in changes.writes:
        work.rows["deleted" if value is None else "wrote", NAMES[space]] += 1
        work.bytes_written += 0 if value is None else len(key) + len(value)
    for space, _, _ in changes.ranges:
        work.rows["deleted", NAMES[space]] += 1
    if changes.adds:
        work.rows["wrote", NAMES[COUNTERS]] += len(changes.adds)
    for row in changes.journal:
        work.rows["wrote", NAMES[JOURNAL]] += 1
        work.bytes_written += len(row)


class CountingEngine:
    """Counts the rows of `transact` and `read`; all else is passed to the engine."""

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "work", Work())

    def transact(self, fn: Callable[[Any], Any]) -> Any:
        def run(tx: Any) -> Any:
            counting = _Counting(tx.reader, self.work)
            tx.reader = counting
            tx.get, tx.get_many, tx.scan, tx.keys = counting.get, counting.get_many, counting.scan, counting.keys
            result = fn(tx)
            _note_changes(tx, self.work)
            self.work.commits += bool(tx)
            return result

        return self.inner.transact(run)

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
        self.store = Store(EmbeddedBackend(self.engine, url, clock))

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
