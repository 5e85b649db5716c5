"""Where a moment of a store is kept, for readers in other processes: found by the store's address.

rocksdb:/path  lmdb:/path     its snapshot's folder, which readers on the store's host open themselves
memory:                       nowhere: it lives in one process
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from leasehold.bulk.moments import Kept
from leasehold.bulk.plan import Part, event_parts, plan
from leasehold.bulk.plan import read as read_part
from leasehold.bulk.query import Query
from leasehold.clock import SystemClock
from leasehold.errors import InvalidArgument, OpenError, StoreLocked
from leasehold.model.snapshot import SnapshotInfo
from leasehold.settings import parse_url
from leasehold.storage.folder import expand
from leasehold.stores.opening import open as open_store
from leasehold.stores.snapshots import FOLDER, FolderShelf
from leasehold.stores.store import Store

#: Seconds to wait for a process that has the store open and does not let others in.
PATIENCE = 5.0

NAME = "spark"
"""Of snapshots that a read takes by itself."""


class Place(Protocol):
    """A named snapshot, reached from here. It is handed to other processes, so it holds only what finds it."""

    @property
    def id(self) -> str: ...

    def plan(self, query: Query, rows: int) -> list[Part]: ...

    def events(self, begin: int, end: int, rows: int) -> list[Part]:
        """Parts of the journal's rows [begin, end), of about `rows` events each."""

    def read(self, query: Query, part: Part) -> Iterator[pa.RecordBatch]:
        """Raises SnapshotExpired."""


@dataclass(frozen=True)
class FolderPlace:
    folder: str

    @property
    def id(self) -> str:
        return Path(self.folder).name

    def plan(self, query: Query, rows: int) -> list[Part]:
        return plan(Kept(self.folder).moment(), query, rows)

    def events(self, begin: int, end: int, rows: int) -> list[Part]:
        return event_parts(Kept(self.folder).moment().reader, begin, end, rows)

    def read(self, query: Query, part: Part) -> Iterator[pa.RecordBatch]:
        kept = Kept(self.folder)
        return kept.in_use(read_part(kept.moment(), query, part))


def take(url: str, ttl_ms: int, name: str = NAME) -> Place:
    """A new snapshot of the store, which is opened for it, through its owner where it has one."""
    with opened(url) as store:
        return place(url, store._backend.take_snapshot(name, ttl_ms))


def find(url: str, id: str) -> Place:
    """A snapshot that was taken before. Its folder is found without the store, whoever has that open."""
    info = FolderShelf(home(url) / FOLDER).renew(id, SystemClock().wall_ms())
    return place(url, info)


def opened(url: str) -> Store:
    """A store that must be there: reading makes none."""
    path = home(url)
    if not (path / "FORMAT").exists():
        raise OpenError(f"{path} holds no store: url={url!r} is to name one that exists")
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return open_store(url, sweep=False)
        except StoreLocked:
            # Another reader or writer of the same job may have it for a moment, and nobody listens there.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def home(url: str) -> Path:
    engine, path = parse_url(url)
    if engine == "memory":
        raise InvalidArgument(
            "a memory: store lives in its own process, and Spark reads from others: use rocksdb: or lmdb:"
        )
    if path is None:
        raise InvalidArgument(f"url={url!r} names no folder: rocksdb:/path or lmdb:/path")
    return expand(path)


def place(url: str, info: SnapshotInfo) -> Place:
    if info.where is None:
        raise InvalidArgument(f"the snapshots of {url} cannot be read from another process")
    return FolderPlace(info.where)
