"""One moment of the store, for long looks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tenure.errors import Corrupt
from tenure.storage.engine import Extent, Row, Space, Steps
from tenure.storage.engines.rocksdb.iterators import backward, forward, forward_keys
from tenure.storage.engines.rocksdb.opening import translated
from tenure.storage.keyspace import LAST


class RocksSnapshot:
    """One iterator a space, all of one moment."""

    def __init__(self, iterators: dict[Space, Any], points: dict[Space, Any]) -> None:
        self._iterators = iterators
        self._points = points
        self._lock = threading.Lock()

    def get(self, space: Space, key: bytes) -> bytes | None:
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
            walk = backward if reverse else forward
            return walk(self._iterators[space], begin, end, limit)

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        with self._lock:
            if reverse:
                return [key for key, _ in backward(self._iterators[space], begin, end, limit)]
            return forward_keys(self._iterators[space], begin, end, limit)

    def held(self) -> list[object]:
        return [*self._iterators.values(), *self._points.values()]

    def walk(self, space: Space, begin: bytes, end: bytes) -> Steps:
        return Steps(self, space, begin, end)

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        return self.scan(space, begin, LAST, limit), []

    def extents(self, space: Space) -> list[Extent]:
        return []

    def entries(self, space: Space) -> int | None:
        return None  # it only estimates

    def __enter__(self) -> RocksSnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._iterators.clear()
        self._points.clear()
