"""An engine whose transactions and readers know segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from tenure.storage.engine import Engine, Loader, Reader, Snapshot, Space, Traits, Transaction
from tenure.storage.group_commit import GroupCommit
from tenure.storage.keyspace import LAST, SEGMENT_SPACES, SEGMENT_STATE
from tenure.storage.segments.reader import MADE, SegmentedReader
from tenure.storage.segments.snapshot import SegmentedSnapshot
from tenure.storage.segments.transaction import SegmentedTransaction, SegmentMemory

T = TypeVar("T")


class SegmentedEngine:
    """`storage.engine.Engine` on another one, whose only writer is this process."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.remarks = inner.remarks
        self._segments = SegmentMemory(there=inner.read(has_segments))
        self.forgetters = inner.forgetters
        self.forgetters.append(self._forget)
        # The inner engine makes our transactions: each is one object, not one around another.
        inner.begin = partial(SegmentedTransaction, self._segments)
        self.transact = inner.transact

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    @property
    def begin(self) -> Callable[[Reader, int], Transaction]:
        return self.inner.begin

    @begin.setter
    def begin(self, begin: Callable[[Reader, int], Transaction]) -> None:
        self.inner.begin = begin

    @property
    def there(self) -> bool:
        """Whether there may be segments."""
        return self._segments.there

    @property
    def retried(self) -> Callable[[str], None]:
        return self.inner.retried

    @retried.setter
    def retried(self, told: Callable[[str], None]) -> None:
        self.inner.retried = told

    @property
    def home(self) -> Path | None:
        return self.inner.home

    @property
    def loader(self) -> Loader | None:
        """It takes in new jobs only, as rows or as segments of their own."""
        return self.inner.loader

    @property
    def group_commit(self) -> GroupCommit | None:
        return self.inner.group_commit

    @property
    def alone(self) -> bool:
        return self.inner.alone

    def _forget(self) -> None:
        """A commit was interrupted, or files were loaded: what is remembered of segments may not be what is stored."""
        self._segments.forget()

    def read(self, fn: Callable[[Reader], T]) -> T:
        def run(reader: Reader) -> T:
            return fn(SegmentedReader(reader, self._segments.there, self._segments.recent))

        return self.inner.read(run)

    def snapshot(self, spaces: Sequence[Space] | None = None) -> Snapshot:
        if spaces is not None and not MADE.isdisjoint(spaces):
            spaces = tuple({*spaces, *SEGMENT_SPACES})
        inner = self.inner.snapshot(spaces)
        return SegmentedSnapshot(
            inner, self._segments.there
        )  # asked after the moment was taken: then it is known of all in it

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


def has_segments(reader: Reader) -> bool:
    return bool(reader.keys(SEGMENT_STATE, b"", LAST, 1))
