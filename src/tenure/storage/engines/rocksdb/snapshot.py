"""A snapshot of an open store, for long reads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tenure.errors import StoreClosed
from tenure.storage.engine import Row, Snapshot, Space
from tenure.storage.engines.rocksdb.iterators import backward, forward, forward_keys
from tenure.storage.engines.rocksdb.opening import translated


class RocksSnapshot(Snapshot):
    """One iterator for each space, all opened under one hold of the writer's lock. Safe for threads.

    Raises StoreClosed after it, or the engine, was closed.
    """

    def __init__(
        self, iterators: dict[Space, Any], points: dict[Space, Any], fronts: dict[Space, dict[bytes, bytes]]
    ) -> None:
        """`fronts`: where keys with a prefix begin. A scan from there does not walk over the tombstones before."""
        self._iterators = iterators
        self._points = points
        self._fronts = fronts
        self._closed = False
        self._lock = threading.RLock()  # reentrant: an exception may leave it locked, and its thread must not block

    def get(self, space: Space, key: bytes) -> bytes | None:
        with self._lock:
            self._refuse_closed()
            try:
                value: bytes = self._points[space][key]
            except Exception as exc:
                if str(exc) == "key not found":  # the driver has no error class for it
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
            if reverse:
                return backward(self._iterators[space], begin, end, limit)
            begin = self._first(space, begin)
            return forward(self._iterators[space], begin, end, limit) if begin < end else []

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        with self._lock:
            self._refuse_closed()
            if reverse:
                return [key for key, _ in backward(self._iterators[space], begin, end, limit)]
            begin = self._first(space, begin)
            return forward_keys(self._iterators[space], begin, end, limit) if begin < end else []

    def _first(self, space: Space, begin: bytes) -> bytes:
        fronts = self._fronts.get(space)
        return begin if fronts is None else fronts.get(begin, begin)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreClosed("this store was closed")

    def held(self) -> list[object]:
        """The driver's objects that this snapshot uses."""
        return [*self._iterators.values(), *self._points.values()]

    def close(self) -> None:
        """Close once no thread reads. Closing twice is allowed."""
        with self._lock:
            self._closed = True
            self._iterators.clear()
            self._points.clear()
