"""One moment of the store, for long looks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tenure.errors import StoreClosed
from tenure.storage.engine import Row, Snapshot, Space
from tenure.storage.engines.rocksdb.iterators import backward, forward, forward_keys
from tenure.storage.engines.rocksdb.opening import translated


class RocksSnapshot(Snapshot):
    """One iterator a space, all of one moment. Safe for threads: its lock is held wherever the driver is called.

    Closed, by its user or with the engine, it raises StoreClosed.
    """

    def __init__(self, iterators: dict[Space, Any], points: dict[Space, Any]) -> None:
        self._iterators = iterators
        self._points = points
        self._closed = False
        self._lock = threading.RLock()  # reentrant: an exception may leave it to its thread, and must not block it

    def get(self, space: Space, key: bytes) -> bytes | None:
        with self._lock:
            self._refuse_closed()
            try:
                value: bytes = self._points[space][key]
            except Exception as exc:
                if str(exc) == "key not found":  # its way to say so, apart from every other error by its text alone
                    return None
                raise translated(exc) from exc
            return value

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(space, key) for key in keys]

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        with self._lock:
            self._refuse_closed()
            walk = backward if reverse else forward
            return walk(self._iterators[space], begin, end, limit)

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        with self._lock:
            self._refuse_closed()
            if reverse:
                return [key for key, _ in backward(self._iterators[space], begin, end, limit)]
            return forward_keys(self._iterators[space], begin, end, limit)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreClosed("this store was closed")

    def held(self) -> list[object]:
        """The driver's objects."""
        return [*self._iterators.values(), *self._points.values()]

    def close(self) -> None:
        """Returns once no thread is inside. Closing twice is fine."""
        with self._lock:
            self._closed = True
            self._iterators.clear()
            self._points.clear()
