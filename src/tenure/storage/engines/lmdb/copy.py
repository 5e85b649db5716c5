"""A copy of a store, opened for reading by any number of processes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import lmdb

from tenure.errors import Corrupt, OpenError
from tenure.storage.engine import Row, Snapshot, Space
from tenure.storage.engines.lmdb.opening import databases
from tenure.storage.engines.lmdb.reader import Rows, translated
from tenure.storage.keyspace import EVERYWHERE

#: One environment for each path: LMDB refuses to map a file twice in a process.
_shared: dict[str, tuple[lmdb.Environment, list[int]]] = {}
_sharing = threading.Lock()


class LmdbCopy(Rows, Snapshot):
    """`storage.engine.Snapshot` on a copy that no process writes: no lock file, no reader slots, every CRC checked."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        with _sharing:
            env, users = _shared.get(self._path) or (_open(self._path), [])
            _shared[self._path] = env, users
            users.append(id(self))
        self._env = env
        self._walking = threading.Lock()
        try:
            txn: Any = env.begin()
            super().__init__(txn, databases(env, txn, True))
        except BaseException:
            self._leave()
            raise

    def get(self, space: Space, key: bytes) -> bytes | None:
        with self._walking:
            return super().get(space, key)

    def _walk(self, space: Space, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Row]:
        with self._walking:
            return super()._walk(space, begin, end, limit, reverse)

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        with self._walking:
            return super().salvage(space, begin, limit)

    def entries(self, space: Space) -> int | None:
        return int(self.txn.stat(self.dbs[space])["entries"])

    def close(self) -> None:
        if id(self) in _shared.get(self._path, (None, []))[1]:
            self.txn.abort()
            self._leave()

    def __del__(self) -> None:
        if hasattr(self, "txn"):
            self.close()

    def _leave(self) -> None:
        with _sharing:
            _, users = _shared[self._path]
            users.remove(id(self))
            if not users:
                del _shared[self._path]
                self._env.close()


def _open(path: str) -> lmdb.Environment:
    try:
        return lmdb.open(path, readonly=True, lock=False, max_dbs=len(EVERYWHERE), create=False)
    except lmdb.Error as exc:
        found = translated(exc)
        raise found if isinstance(found, Corrupt) else OpenError(f"the copy at {path} cannot be opened: {exc}") from exc
