"""Memory engines that run a transaction's function more than once, as engines with conflicts do.

    TwiceEngine      runs it on a transaction that is discarded, then again: the answers must be equal
    StaleEngine      runs it first on the store as it was one commit ago, as if another process had committed since

Both have `scope="host"`, so no layer above may cache what only a sole writer could know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sortedcontainers import SortedDict

from tenure.errors import TenureError
from tenure.storage.engine import Changes, Transaction
from tenure.storage.engines.memory import MemoryEngine, _StrictReader
from tenure.storage.keyspace import JOURNAL, NAMES, split_commit

T = TypeVar("T")


class TwiceEngine(MemoryEngine):
    traits = replace(MemoryEngine.traits, scope="host", poll=0.002)

    def __init__(self) -> None:
        super().__init__()
        self.reruns = 0

    def transact(self, fn: Callable[[Transaction], T]) -> T:
        def twice(tx: Transaction) -> T:
            thrown_away = _outcome(fn, _thrown_away(self, self._tables))
            self.reruns += 1
            kept = _outcome(fn, tx)
            assert _plain(kept) == _plain(thrown_away), "the second run of a transaction gave another answer"
            if isinstance(kept, _Raised):
                raise kept.error
            return kept

        return super().transact(twice)


class StaleEngine(MemoryEngine):
    traits = replace(MemoryEngine.traits, scope="host", poll=0.002)

    def __init__(self) -> None:
        super().__init__()
        self.reruns = 0
        #: A copy of the store, one commit behind.
        self._before = [SortedDict() for _ in NAMES]
        self._last: tuple[Changes, dict[bytes, bytes]] | None = None

    def transact(self, fn: Callable[[Transaction], T]) -> T:
        def again(tx: Transaction) -> T:
            _outcome(fn, _thrown_away(self, self._before))
            self.reruns += 1
            return fn(tx)

        return super().transact(again)

    def _apply(self, changes: Changes) -> None:
        super()._apply(changes)
        if self._last is not None:
            self._follow(*self._last)
        self._last = changes, dict(self._counts)

    def _follow(self, changes: Changes, counts: dict[bytes, bytes]) -> None:
        tables, version, current = self._tables, self._version, self._counts
        self._tables, self._counts, changes.on_written = self._before, counts, []
        super()._apply(changes)
        self._before, self._tables, self._version, self._counts = self._tables, tables, version, current


def _thrown_away(engine: MemoryEngine, tables: list[SortedDict]) -> Transaction:
    reader = _StrictReader(tables)
    journal = tables[JOURNAL]
    transaction = Transaction(reader, (split_commit(journal.peekitem(-1)[0]) if journal else 0) + 1)
    reader.changes = transaction
    return transaction


class _Raised:
    def __init__(self, error: TenureError) -> None:
        self.error = error


def _outcome(fn: Callable[[Transaction], T], tx: Transaction) -> T | _Raised:
    try:
        return fn(tx)
    except TenureError as error:
        return _Raised(error)


def _plain(outcome: object) -> object:
    """A comparable form of an outcome: errors as text."""
    if isinstance(outcome, _Raised):
        return _plain(outcome.error)
    if isinstance(outcome, Exception):
        return type(outcome), str(outcome)
    if isinstance(outcome, (list, tuple)):
        return [_plain(part) for part in outcome]
    return outcome
