"""Snapshots: one version of the cluster (readable for five seconds), or a copy of it in memory for longer reads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from tenure.storage.engine import Row, Snapshot, Space
from tenure.storage.engines.foundationdb.binding import Binding, Database, translated
from tenure.storage.engines.foundationdb.rows import Rows
from tenure.storage.keyspace import LAST, NAMES

T = TypeVar("T")
_PAGE = 2_000
_TRIES = 4


class VersionSnapshot(Snapshot):
    """`storage.engine.Snapshot` that reads one version on demand. Raises Unavailable once the version is too old."""

    def __init__(self, pinned: Callable[[], Rows], fdb: Binding, db: Database) -> None:
        """`pinned` makes a reader of the version, in a transaction of its own."""
        self._pinned, self._fdb, self._db = pinned, fdb, db
        self._rows = pinned()

    def _retrying(self, read: Callable[[], T]) -> T:
        left = _TRIES
        while True:
            try:
                return read()
            except self._fdb.FDBError as error:
                left -= 1
                if not left or not self._fdb.predicates.is_retryable(error):
                    raise translated(error) from error
                self._rows = self._pinned()  # the same version: a server may have been slow or briefly away

    def get(self, space: Space, key: bytes) -> bytes | None:
        return self._retrying(lambda: self._rows.get(space, key))

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._retrying(lambda: self._rows.get_many(space, keys))

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        return self._retrying(lambda: self._rows.scan(space, begin, end, limit, reverse=reverse, snapshot=True))

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        return self._retrying(lambda: self._rows.keys(space, begin, end, limit, reverse=reverse, snapshot=True))

    def boundaries(self, space: Space) -> list[bytes]:
        """Where the cluster's shards begin now. Shards move, and belong to no version."""
        prefix = self._rows.layout.spaces[space]
        found = self._retrying(lambda: list(self._fdb.locality.get_boundary_keys(self._db, prefix, prefix + LAST)))
        return sorted({bytes(key)[len(prefix) :] for key in found} - {b""})

    def close(self) -> None:
        self._rows.transaction.cancel()

    def __enter__(self) -> VersionSnapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CopiedSnapshot(VersionSnapshot):
    """All rows of one version, copied into this process: for reads that take longer than five seconds."""

    def __init__(self, pinned: Callable[[], Rows], fdb: Binding, db: Database) -> None:
        """Raises the binding's error if the version becomes too old before all of it is read."""
        super().__init__(pinned, fdb, db)
        self._tables = [_all(self._rows, space) for space in range(len(NAMES))]
        self._rows.transaction.cancel()

    def get(self, space: Space, key: bytes) -> bytes | None:
        keys, values = self._tables[space]
        at = bisect_left(keys, key)
        return values[at] if at < len(keys) and keys[at] == key else None

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(space, key) for key in keys]

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        keys, values = self._tables[space]
        low, high = bisect_left(keys, begin), bisect_left(keys, end)
        places = range(low, high)[::-1][:limit] if reverse else range(low, high)[:limit]
        return [(keys[at], values[at]) for at in places]

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        return [key for key, _ in self.scan(space, begin, end, limit, reverse=reverse)]

    def boundaries(self, space: Space) -> list[bytes]:
        return []

    def entries(self, space: Space) -> int | None:
        return len(self._tables[space][0])

    def close(self) -> None:
        self._tables = []


def _all(rows: Rows, space: Space) -> tuple[list[bytes], list[bytes]]:
    keys: list[bytes] = []
    values: list[bytes] = []
    begin = b""
    while True:
        page: list[Any] = rows.scan(space, begin, LAST, _PAGE, snapshot=True)
        keys += [key for key, _ in page]
        values += [value for _, value in page]
        if len(page) < _PAGE:
            return keys, values
        begin = keys[-1] + b"\0"
