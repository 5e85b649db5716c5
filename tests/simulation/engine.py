"""A memory engine with every fault that an engine may have, at most one in each transaction.

    conflict   (scope host)  the function runs on a transaction that is discarded; others run; it runs again
    slow       the commit is applied, and others run before it is durable: their commits make it durable too
    unknown    the caller gets CommitUnknown; the commit was made, or was not
    full       the disk is full: Unavailable, nothing is written
    damaged    one of the rows that the transaction reads is damaged: Corrupt
    cut        a power loss before or after the commit; commits that were not durable are undone

With one writing process (scope process), a claim is answered before it is durable, as on RocksDB at `disk`: it becomes
durable with the next commit that is waited for, or by `sync`.

The engine object survives, like a disk; a new backend on it stands for the process that opens the store again.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from tenure.errors import CommitUnknown, Corrupt, TenureError, Unavailable
from tenure.storage.engine import Changes, Reader, Snapshot, Space, Transaction
from tenure.storage.engines.memory import MemoryEngine, _Snapshot
from tenure.storage.keyspace import COUNTERS, GROUPS, JOURNAL, NAMES, Counter, commit, counter
from tenure.storage.records import decode_count
from tenure.storage.records.groups import decode_group

T = TypeVar("T")
Fate = Literal[
    "", "others", "conflict", "slow", "unknown_done", "unknown_lost", "full", "damaged", "cut_done", "cut_lost"
]


class PowerCut(BaseException):
    """The process has ended: none of our handlers may catch this."""


class SmallTable(dict[bytes, bytes]):
    """A `SortedDict` for a few hundred rows: one sorted list of keys, which an insertion shifts."""

    def __init__(self, rows: Mapping[bytes, bytes] | None = None) -> None:
        super().__init__(rows or {})
        self._sorted = sorted(self)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        if key not in self:
            insort(self._sorted, key)
        dict.__setitem__(self, key, value)

    def pop(self, key: bytes, default: bytes | None = None) -> bytes | None:  # type: ignore[override]  # never without one
        if key in self:
            del self._sorted[bisect_left(self._sorted, key)]
        return dict.pop(self, key, default)

    def peekitem(self, place: int) -> tuple[bytes, bytes]:
        key = self._sorted[place]
        return key, self[key]

    def irange(
        self,
        begin: bytes,
        end: bytes | None,
        inclusive: tuple[bool, bool] = (True, True),
        reverse: bool = False,
    ) -> Iterator[bytes]:
        """The keys from `begin`, which always belongs to them, to `end`."""
        keys = self._sorted
        stop = len(keys) if end is None else (bisect_right if inclusive[1] else bisect_left)(keys, end)
        found = keys[bisect_left(keys, begin) : stop]
        return reversed(found) if reverse else iter(found)


class LiveSnapshot(_Snapshot):
    """The tables themselves: no commit is made while a snapshot is open, since there is one thread."""

    def __init__(self, engine: FaultyEngine) -> None:
        super().__init__(engine._tables)
        self._engine = engine
        engine.open_snapshots += 1

    def close(self) -> None:
        super().close()
        self._engine.open_snapshots -= 1


class FaultyEngine(MemoryEngine):
    def __init__(self, scope: Literal["process", "host"]) -> None:
        super().__init__()
        self._tables = [SmallTable() for _ in NAMES]
        self.traits = replace(
            MemoryEngine.traits, scope=scope, durability="disk", poll=None if scope == "process" else 0.002
        )
        self.begin_plain = self.begin
        #: Draws the fault of the next transaction.
        self.fate: Callable[[], Fate] = lambda: ""
        #: Runs other actors, while a transaction is between two of its steps.
        self.others: Callable[[], None] = lambda: None
        #: The old values of each commit that is not durable yet, oldest first: (space, key, value before).
        self._not_durable: list[list[tuple[Space, bytes, bytes | None]]] = []
        self._slow = 0
        self.open_snapshots = 0
        #: The last durable row of the journal; and whether the last commit is a claim that did not wait for durability.
        self.durable_to = 0
        self._claimed = False

    def transact(self, fn: Callable[[Transaction], T]) -> T:
        fate = self.fate()
        if fate in ("", "others", "conflict"):
            if fate:
                if fate == "conflict" and self.traits.scope == "host":
                    self._run_in_vain(fn)
                self.others()
            return self._answered(fn)
        return self._go_wrong(fate, fn)

    def _answered(self, fn: Callable[[Transaction], T]) -> T:
        """A transaction whose caller gets its answer once it is durable, with all before it; a claim does not wait.

        One that writes nothing, or refuses, waits for the commits that it may have read.
        """
        before = self.version()
        waits = True

        def run(tx: Transaction) -> T:
            nonlocal waits
            result = fn(tx)
            waits = tx.answers_after is None
            return result

        try:
            result = super().transact(run)
        except TenureError:
            self.sync()
            raise
        if waits if self.version() == before else not self._claimed:
            self.sync()
        return result

    def sync(self) -> None:
        """Make all commits durable."""
        self._not_durable.clear()
        self.durable_to = self._next_commit() - 1

    def _go_wrong(self, fate: Fate, fn: Callable[[Transaction], T]) -> T:
        if fate == "slow":
            self._slow += 1
            try:
                result = super().transact(fn)
                self.others()
            finally:
                self._slow -= 1
            self.sync()
            return result
        if fate == "full":
            raise Unavailable("the simulated disk is full")
        if fate == "damaged":
            return self._answered(lambda tx: fn(_damaged(tx)))
        if fate in ("unknown_lost", "cut_lost"):
            self._run_in_vain(fn)
        else:
            super().transact(fn)
            self.sync()
        if fate.startswith("cut"):
            raise PowerCut
        raise CommitUnknown("the simulated connection was lost")

    def _run_in_vain(self, fn: Callable[[Transaction], T]) -> None:
        """Run the function, and discard its writes."""

        def in_vain(tx: Transaction) -> None:
            with contextlib.suppress(TenureError):
                fn(tx)
            raise _ThrownAway

        with contextlib.suppress(_ThrownAway):
            super().transact(in_vain)

    def _apply(self, changes: Changes) -> None:
        assert not self.open_snapshots
        assert isinstance(changes, Transaction)
        needed = changes.answers_after
        self._claimed = self.traits.scope == "process" and needed is not None and needed <= self.durable_to
        if self._slow or self._claimed:
            self._not_durable.append(self._undo_of(changes))
        super()._apply(changes)

    def _undo_of(self, changes: Changes) -> list[tuple[Space, bytes, bytes | None]]:
        assert isinstance(changes, Transaction)
        keys: list[tuple[Space, bytes]] = [(space, key) for space, key, _ in changes.writes]
        keys += [(COUNTERS, key) for key in self._counts]
        keys += [(JOURNAL, commit(changes.next_commit + offset)) for offset in range(len(changes.journal))]
        for space, begin, end in changes.ranges:
            keys += [(space, key) for key in self._tables[space].irange(begin, end, inclusive=(True, False))]
        return [(space, key, self._tables[space].get(key)) for space, key in keys]

    def lose_what_is_not_durable(self) -> int:
        """Undo the commits that are not durable, after a power loss. Returns how many."""
        lost = len(self._not_durable)
        for undo in reversed(self._not_durable):
            for space, key, value in undo:
                if value is None:
                    self._tables[space].pop(key, None)
                else:
                    self._tables[space][key] = value
        self._not_durable.clear()
        self._slow = 0
        self.begin = self.begin_plain
        return lost

    def snapshot(self, spaces: Sequence[Space] | None = None) -> Snapshot:
        return LiveSnapshot(self)

    def leased(self, queue: int) -> tuple[int, int]:
        """The number of leased jobs of the queue; and of its group with the most leased jobs."""
        found = decode_count(self._tables[COUNTERS].get(counter(queue, Counter.LEASED)))
        rows = self._tables[GROUPS].items()
        groups = [decode_group(value).leased for key, value in rows if key.startswith(queue.to_bytes(4, "big"))]
        return found, max(groups, default=0)

    def journal_from(self, number: int, durable: bool = True) -> list[tuple[int, bytes]]:
        """The rows of the journal from this commit on, by number: only durable ones, or all."""
        table = self._tables[JOURNAL]
        end = self.durable_to + 1 if durable else self._next_commit()
        return [(at, table[commit(at)]) for at in range(number, end)]


class _ThrownAway(Exception):
    pass


class _DamagedReader:
    """A reader whose second row is damaged."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._left = 2
        self.get_many, self.scan, self.keys = reader.get_many, reader.scan, reader.keys

    def get(self, space: Space, key: bytes) -> bytes | None:
        self._left -= 1
        if not self._left:
            raise Corrupt("the simulated disk gave other bytes than were written", key=key)
        return self._reader.get(space, key)


def _damaged(tx: Transaction) -> Transaction:
    tx.reader = _DamagedReader(tx.reader)
    return tx
