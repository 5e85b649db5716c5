"""One moment for several reads."""

from __future__ import annotations

from types import TracebackType

from tenure.api.store import Store
from tenure.bulk import snapshot_locations
from tenure.model.durations import Duration
from tenure.model.snapshot import SnapshotInfo


class snapshot:
    """`with snapshot("rocksdb:/data", ttl=3600) as snap:` and `.option("snapshot", snap.id)` in each read.

    It is kept for `ttl` after its last use, and dropped at the end of the block. Give the open store itself instead of its
    address where this process has it open.
    """

    def __init__(
        self, store: str | Store, ttl: Duration = 3600, name: str = snapshot_locations.NAME, token: str | None = None
    ) -> None:
        self._store = store
        self._token = token
        self._ttl = ttl
        self._name = name
        self.info: SnapshotInfo | None = None

    @property
    def id(self) -> str:
        if self.info is None:
            raise RuntimeError("the snapshot is taken when its block is entered")
        return self.info.id

    def __enter__(self) -> snapshot:
        if isinstance(self._store, Store):
            self.info = self._store.take_snapshot(self._name, self._ttl)
        else:
            with snapshot_locations.opened(self._store, self._token) as store:
                self.info = store.take_snapshot(self._name, self._ttl)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._store, Store):
            self._store.drop_snapshot(self.id)
        else:
            with snapshot_locations.opened(self._store, self._token) as store:
                store.drop_snapshot(self.id)
