"""Opening a snapshot for readers of tables: from its folder, or from a store in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from tenure.api.store import Store
from tenure.backends.embedded import EmbeddedBackend
from tenure.backends.named_snapshots import SnapshotFolder, open_copy
from tenure.bulk.query import StoreView
from tenure.clock import SystemClock
from tenure.errors import InvalidArgument, SnapshotExpired
from tenure.model.snapshot import SnapshotInfo

#: Milliseconds between two renewals of a snapshot that is being read.
_RENEW_MS = 10_000
#: Open copies of this process, by folder: opening one costs as much as reading thousands of rows.
_open: dict[str, StoreView] = {}
_opening = threading.Lock()
_KEPT = 4


class FolderSnapshot:
    """A named snapshot in its folder, for readers on the store's host.

    Reading renews it, so that it does not expire.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._snapshots = SnapshotFolder(self._folder.parent)
        self._clock = SystemClock()
        self._renewed = 0

    @property
    def id(self) -> str:
        return self._folder.name

    def renew(self) -> SnapshotInfo:
        self._renewed = self._clock.steady_ms()
        return self._snapshots.renew(self.id, self._clock.wall_ms())

    def view(self) -> StoreView:
        """Open, or opened before by this process. Raises SnapshotExpired."""
        try:
            info = self.renew()
        except SnapshotExpired:
            _forget(str(self._folder))
            raise
        with _opening:
            found = _open.get(str(self._folder))
            if found is None:
                for gone in [folder for folder in _open if not Path(folder).exists()]:
                    del _open[gone]  # its last reader's handles kept its files until now
                while len(_open) >= _KEPT:
                    _open.pop(next(iter(_open)))  # closed when its last reader lets go of it
                found = _open[str(self._folder)] = StoreView(open_copy(self._folder, self.id), info.taken_at_ms)
        return found

    def in_use(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, the snapshot renewed as they are taken."""
        for batch in batches:
            if self._clock.steady_ms() - self._renewed > _RENEW_MS:
                self.renew()
            yield batch


def _forget(folder: str) -> None:
    with _opening:
        _open.pop(folder, None)


@contextmanager
def view_of(store: Store, snapshot: str | None = None) -> Iterator[StoreView]:
    """A moment of a store that is open in this process: a named one, or one taken now and dropped afterwards."""
    backend = store.backend
    if not isinstance(backend, EmbeddedBackend):
        raise InvalidArgument(f"{store.url} is not open in this process: read its tables through tenure.spark")
    info = backend.take_snapshot("read", 3_600_000) if snapshot is None else backend.renew_snapshot(snapshot)
    try:
        reader = backend.open_snapshot(info.id)
        try:
            yield StoreView(reader, info.taken_at_ms)
        finally:
            if info.where is not None:  # else it is held in memory, by the backend
                reader.close()
    finally:
        if snapshot is None:
            backend.drop_snapshot(info.id)
