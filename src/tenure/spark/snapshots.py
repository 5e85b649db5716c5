"""Snapshots: one moment of a store for several reads, and the release of those that reads took by themselves."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType

import msgspec

from tenure.api.store import Store
from tenure.bulk import snapshot_locations
from tenure.bulk.live_ranges import LIVE
from tenure.errors import TenureError
from tenure.model.durations import Duration
from tenure.model.snapshot import SnapshotInfo
from tenure.spark.session import READS, reads_folder


def note_taken(url: str, id: str, token: str | None = None) -> None:
    """In the process that plans a read: tell the program that made the session of a snapshot, so that it can release
    it, with the token of the read. Only the user of the program may read the folder.
    """
    folder = os.environ.get(READS)
    if folder:
        with contextlib.suppress(OSError):
            (Path(folder) / id).write_bytes(msgspec.json.encode((url, token)))


def release() -> int:
    """Drop the snapshots that this program's DataFrames took by themselves, now rather than after their time to live.

    DataFrames that are to be used again must be loaded again. Only where `tenure.spark.session` started Spark; it
    happens by itself when the program ends. Returns how many there were.
    """
    dropped = 0
    for note in sorted(reads_folder().iterdir()):
        with contextlib.suppress(TenureError, OSError, msgspec.MsgspecError):  # the writer may have been killed
            url, token = msgspec.json.decode(note.read_bytes(), type=tuple[str, str | None])
            dropped += snapshot_locations.drop(url, note.name, token)
        note.unlink(missing_ok=True)
    return dropped


class snapshot:
    """`with snapshot("rocksdb:/data", ttl=3600) as snap:` and `.option("snapshot", snap.id)` in each read.

    It is kept for `ttl` after its last use, and dropped at the end of the block. Give the open store itself instead of
    its address where this process has it open. In FoundationDB nothing is taken: each read shows the store as it is then.
    """

    def __init__(
        self, store: str | Store, ttl: Duration = 3600, name: str = snapshot_locations.NAME, token: str | None = None
    ) -> None:
        self._store = store
        self._token = token
        self._ttl = ttl
        self._name = name
        self._live = isinstance(store, str) and snapshot_locations.is_live(store)
        self.info: SnapshotInfo | None = None

    @property
    def id(self) -> str:
        if self._live:
            return LIVE
        if self.info is None:
            raise RuntimeError("the snapshot is taken when its block is entered")
        return self.info.id

    def __enter__(self) -> snapshot:
        if self._live:
            return self
        if isinstance(self._store, Store):
            self.info = self._store.take_snapshot(self._name, self._ttl)
        else:
            with snapshot_locations.opened(self._store, self._token) as store:
                self.info = store.take_snapshot(self._name, self._ttl)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            return
        if isinstance(self._store, Store):
            self._store.drop_snapshot(self.id)
        else:
            snapshot_locations.drop(self._store, self.id, self._token)
