"""An engine whose transactions and readers know segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tenure.storage.engine import Engine, Loader, Reader, Snapshot, Space, Straight, Traits, Transaction
from tenure.storage.keyspace import LAST, SEGMENT_READY, SEGMENT_STATE, SEGMENTS
from tenure.storage.segments.reader import MADE, RecentBodies, SegmentedReader
from tenure.storage.segments.snapshot import SegmentedSnapshot
from tenure.storage.segments.transaction import Habits, SegmentedTransaction

T = TypeVar("T")
_OWN = (SEGMENTS, SEGMENT_STATE, SEGMENT_READY)


class SegmentedEngine:
    """`storage.engine.Engine` on another one, whose only writer is this process."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.remarks = inner.remarks
        #: Whether there may be segments. Once there are, it stays so: looking for one in vain is cheap.
        self.there = inner.read(has_segments)
        self._recent = RecentBodies()
        self._habits = Habits()

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    @property
    def retried(self) -> Callable[[str], None]:
        return self.inner.retried

    @retried.setter
    def retried(self, told: Callable[[str], None]) -> None:
        self.inner.retried = told

    @property
    def reopened(self) -> Callable[[], None]:
        return self.inner.reopened

    @reopened.setter
    def reopened(self, told: Callable[[], None]) -> None:
        self.inner.reopened = told

    @property
    def home(self) -> Path | None:
        return self.inner.home

    @property
    def straight(self) -> Straight | None:
        """The rows that are stored, and no others: whoever misses one goes the other way."""
        return self.inner.straight

    @property
    def loader(self) -> Loader | None:
        """It takes in new jobs only, which no segment holds."""
        return self.inner.loader

    @property
    def alone(self) -> bool:
        return self.inner.alone

    def transact(self, fn: Callable[[Transaction], T]) -> T:
        def run(tx: Transaction) -> T:
            transaction = SegmentedTransaction(tx, self.there, self._recent, self._habits)
            result = fn(transaction)
            if transaction.finish():
                self.there = True
            return result

        return self.inner.transact(run)

    def read(self, fn: Callable[[Reader], T]) -> T:
        return self.inner.read(lambda reader: fn(SegmentedReader(reader, self.there, self._recent)))

    def snapshot(self, spaces: Sequence[Space] | None = None) -> Snapshot:
        if spaces is not None and not MADE.isdisjoint(spaces):
            spaces = tuple({*spaces, *_OWN})
        inner = self.inner.snapshot(spaces)
        return SegmentedSnapshot(inner, self.there)  # asked after the moment was taken: then it is known of all in it

    def version(self) -> int:
        return self.inner.version()

    def durable(self) -> int | None:
        return self.inner.durable()

    def share(self) -> None:
        self.inner.share()

    def tend(self) -> None:
        self.inner.tend()

    def export(self, path: str) -> None:
        self.inner.export(path)

    def close(self) -> None:
        self.inner.close()

    def __getattr__(self, name: str) -> Any:
        """What an engine has besides: a syncer to wait for, and what tests look at."""
        return getattr(self.inner, name)


def has_segments(reader: Reader) -> bool:
    return bool(reader.keys(SEGMENT_STATE, b"", LAST, 1))
