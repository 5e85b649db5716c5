"""The memory engine: a sorted dictionary for each space. For tests and trials; nothing survives the process.

It is the strict engine: a transaction that reads a row it wrote raises here, so that no code above the engine interface
relies on it. Some engines cannot do that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from sortedcontainers import SortedDict

from tenure.errors import InvalidArgument, StoreClosed
from tenure.storage.engine import Changes, Reader, Row, Snapshot, Space, Traits, Transaction
from tenure.storage.keyspace import COUNTERS, JOURNAL, NAMES, commit, split_commit
from tenure.storage.records import decode_count, encode_count
from tenure.storage.writer_lock import WriterLock

T = TypeVar("T")
_NONE = Changes()


class ReadOwnWrite(AssertionError):
    """A transaction read a row that it had written: a bug above the engine interface."""


class _Tables:
    """A reader of sorted dictionaries."""

    def __init__(self, tables: Sequence[SortedDict]) -> None:
        self._tables = tables

    def get(self, space: Space, key: bytes) -> bytes | None:
        value: bytes | None = self._tables[space].get(key)
        return value

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._tables[space].get, keys))

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        table = self._tables[space]
        return [(key, table[key]) for key in self.keys(space, begin, end, limit, reverse=reverse)]

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        table = self._tables[space]
        # Most stores leave some tables empty: those of groups, flows, schedules.
        return list(islice(table.irange(begin, end, (True, False), reverse), limit)) if table else []


class _StrictReader(_Tables):
    """Raises ReadOwnWrite for a read of rows that its transaction has written."""

    changes: Changes

    def _refuse(self, space: Space, begin: bytes, end: bytes | None = None) -> None:
        changes, stop = self.changes, begin + b"\0" if end is None else end
        if (
            any(s == space and begin <= k < stop for s, k, _ in changes.writes)
            or any(s == space and begin < e and b < stop for s, b, e in changes.ranges)
            or (space == COUNTERS and any(begin <= key < stop for key in changes.adds))
        ):
            raise ReadOwnWrite(f"this transaction wrote to {NAMES[space]} where it now reads")

    def get(self, space: Space, key: bytes) -> bytes | None:
        changes = self.changes
        if changes.writes or changes.adds or changes.ranges:
            self._refuse(space, key)
        value: bytes | None = self._tables[space].get(key)
        return value

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(space, key) for key in keys]

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        changes = self.changes
        if changes.writes or changes.adds or changes.ranges:
            self._refuse(space, begin, end)
        return super().keys(space, begin, end, limit, reverse=reverse)


class _Snapshot(_Tables, Snapshot):
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
    loader = None
    group_commit = None

    def __init__(self) -> None:
        self.retried: Callable[[str], None] = lambda why: None
        self._tables = [SortedDict() for _ in NAMES]
        self._writer = WriterLock()
        self._version = 0
        self._owner = os.getpid()
        self._closed = False
        self.forgetters: list[Callable[[], None]] = []
        self.begin: Callable[[Reader, int], Transaction] = Transaction
        #: Changes that are being applied. If an exception (Ctrl-C) interrupts that, the next thread that takes the
        #: writer's lock applies them again; applying is idempotent.
        self._applying: Changes | None = None
        self._counts: dict[bytes, bytes] = {}

    def transact(self, fn: Callable[[Transaction], T]) -> T:
        return self._under_lock(partial(self._transact, fn))

    def _transact(self, fn: Callable[[Transaction], T]) -> T:
        """Requires: the writer's lock is held."""
        reader = _StrictReader(self._tables)
        transaction = self.begin(reader, self._next_commit())
        reader.changes = transaction
        result = fn(transaction)
        reader.changes = _NONE  # `finish` of a layer above may read what was written
        if transaction.finish():
            self._counts = self._counted(transaction)
            self._applying = transaction
            self._apply(transaction)
        return result

    def _next_commit(self) -> int:
        journal = self._tables[JOURNAL]
        return (split_commit(journal.peekitem(-1)[0]) if journal else 0) + 1

    def _counted(self, changes: Changes) -> dict[bytes, bytes]:
        """The new values of the counters, computed before anything is written, so that applying twice adds once."""
        table = self._tables[COUNTERS]
        return {key: encode_count(decode_count(table.get(key)) + delta) for key, delta in changes.adds.items()}

    def _apply(self, changes: Changes) -> None:
        """Apply the changes; idempotent. Requires: the writer's lock is held."""
        if self._writer.checked:
            self._writer.assert_held()
        tables = self._tables
        assert isinstance(changes, Transaction)
        for offset, row in enumerate(changes.journal):
            tables[JOURNAL][commit(changes.next_commit + offset)] = row
        for space, begin, end in changes.ranges:
            for key in list(tables[space].irange(begin, end, inclusive=(True, False))):
                tables[space].pop(key, None)
        for space, key, value in changes.writes:
            if value is None:
                tables[space].pop(key, None)
            else:
                tables[space][key] = value
        for key, value in self._counts.items():
            tables[COUNTERS][key] = value
        for remember in changes.on_written:
            remember()
        self._version += 1
        self._applying = None

    def _under_lock(self, run: Callable[[], T]) -> T:
        """Run `run` with the writer's lock held. Raises StoreClosed."""
        writer = self._writer
        if writer.held_here():
            writer.take_back()
        with writer.lock:
            if self._closed or os.getpid() != self._owner:
                self._refuse()
            if self._applying is not None:
                self._mend(self._applying)
            return run()

    def _mend(self, changes: Changes) -> None:
        """Apply an interrupted commit again, to rebuilt sorted tables. Requires: the writer's lock is held."""
        for space, table in enumerate(self._tables):
            self._tables[space] = SortedDict(dict(dict.items(table)))
        for forget in self.forgetters:
            forget()
        self._apply(changes)

    def read(self, fn: Callable[[_Tables], T]) -> T:
        return self._under_lock(lambda: fn(_Tables(self._tables)))

    def snapshot(self, spaces: Sequence[Space] | None = None) -> Snapshot:
        return self._under_lock(lambda: _Snapshot([SortedDict(table) for table in self._tables]))

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

    def _refuse(self) -> None:
        if self._closed:
            raise StoreClosed("this store was closed")
        raise StoreClosed("this process is a fork of the one that opened the store: open it anew in the child")
