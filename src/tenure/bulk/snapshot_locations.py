"""Where a snapshot of a store is kept, for readers in other processes: found by the store's address.

rocksdb:/path  lmdb:/path     its snapshot's folder, which readers on the store's host open themselves
foundationdb:                 in the cluster itself, read live by any process (`live_ranges`)
memory:                       nowhere: it lives in one process
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from tenure.api.opening import open as open_store
from tenure.api.store import Store
from tenure.backends.named_snapshots import FOLDER, SnapshotFolder
from tenure.backends.remote.backend import RemoteBackend
from tenure.bulk import table_messages
from tenure.bulk.live_ranges import LIVE, LivePlace
from tenure.bulk.plan import Part, event_parts, plan
from tenure.bulk.plan import read as read_part
from tenure.bulk.query import Query
from tenure.bulk.snapshots import FolderSnapshot
from tenure.clock import SystemClock
from tenure.contract.backend import Backend
from tenure.errors import InvalidArgument, OpenError, SnapshotExpired, StoreLocked
from tenure.model.snapshot import SnapshotInfo
from tenure.settings import parse_url, without_password
from tenure.storage.folder import expand

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
        return plan(FolderSnapshot(self.folder).view(), query, rows)

    def events(self, begin: int, end: int, rows: int) -> list[Part]:
        return event_parts(FolderSnapshot(self.folder).view().reader, begin, end, rows)

    def read(self, query: Query, part: Part) -> Iterator[pa.RecordBatch]:
        kept = FolderSnapshot(self.folder)
        return kept.in_use(read_part(kept.view(), query, part))


@dataclass(frozen=True)
class ServedPlace:
    """Behind a server."""

    url: str
    id: str
    token: str | None = None

    def plan(self, query: Query, rows: int) -> list[Part]:
        return self._parts(query.table, rows=rows, **table_messages.asked(query))

    def events(self, begin: int, end: int, rows: int) -> list[Part]:
        return self._parts("events", rows=rows, first_commit=begin, end_commit=end)

    def read(self, query: Query, part: Part) -> Iterator[pa.RecordBatch]:
        which = table_messages.asked(query)
        for begin, end in part.ranges:
            following: bytes | None = begin
            while following is not None:
                keys = {"space": part.space, "begin": following.hex(), "end": end.hex()}
                body = _server(self.url, self.token).read_table(self.id, query.table, **keys, **which)
                batches, following = table_messages.unpacked(body)
                yield from batches

    def _parts(self, table: str, **which: Any) -> list[Part]:
        found = _server(self.url, self.token).table_parts(self.id, table, **which)
        return table_messages.parts_of(found.parts)


#: Connections of this process to servers; they reconnect by themselves.
_servers: dict[tuple[str, str | None], RemoteBackend] = {}


def _server(url: str, token: str | None) -> RemoteBackend:
    found = _servers.get((url, token))
    if found is None:
        backend = opened(url, token).backend
        assert isinstance(backend, RemoteBackend)
        found = _servers[url, token] = backend
    return found


def take(url: str, ttl_ms: int, name: str = NAME, token: str | None = None) -> Place:
    """A new snapshot of the store, which is opened for it, through its owner where it has one."""
    if is_live(url):
        return LivePlace(url)
    with opened(url, token) as store:
        return take_from(store.backend, url, ttl_ms, name, token)


def take_from(backend: Backend, url: str, ttl_ms: int, name: str = NAME, token: str | None = None) -> Place:
    """As `take`, of a store that is open."""
    return LivePlace(url) if is_live(url) else place(url, backend.take_snapshot(name, ttl_ms), token)


def take_once(url: str, ttl_ms: int, name: str, token: str | None = None) -> Place:
    """The snapshot that was taken under this name, or a new one.

    Two that are taken at one moment, by two callers that both found none, are one for all later callers: the older.
    """
    if is_live(url):
        return LivePlace(url)
    found = _named(url, name, token)
    if found is None:
        own = take(url, ttl_ms, name, token)
        found = _named(url, name, token) or own
        if found.id != own.id:
            drop(url, own.id, token)
    return found


def _named(url: str, name: str, token: str | None) -> Place | None:
    if is_server(url):
        with opened(url, token) as store:
            infos = store.snapshots()
    else:
        infos = SnapshotFolder(home(url) / FOLDER).all(SystemClock().wall_ms())
    first = min((info for info in infos if info.name == name), key=lambda i: (i.taken_at_ms, i.id), default=None)
    try:
        return None if first is None else find(url, first.id, token)
    except SnapshotExpired:
        return None


def drop(url: str, id: str, token: str | None = None) -> bool:
    """Remove a snapshot; one in a folder without opening the store."""
    if is_live(url):
        return False
    if is_server(url):
        with opened(url, token) as store:
            return store.drop_snapshot(id)
    return SnapshotFolder(home(url) / FOLDER).drop(id)


def find(url: str, id: str, token: str | None = None) -> Place:
    """A snapshot that was taken before. Its folder is found without opening the store."""
    if is_live(url):
        if id != LIVE:
            raise InvalidArgument("tables in FoundationDB are read as they are now: leave out the option snapshot")
        return LivePlace(url)
    if is_server(url):
        with opened(url, token) as store:
            return place(url, store.renew_snapshot(id), token)
    return place(url, SnapshotFolder(home(url) / FOLDER).renew(id, SystemClock().wall_ms()))


def opened(url: str, token: str | None = None) -> Store:
    """A store that must be there: reading makes none. (In a cluster, an empty one is made.)"""
    if is_live(url):
        return open_store(url, sweep=False)
    if is_server(url):
        return open_store(url, sweep=False) if token is None else open_store(url, sweep=False, token=token)
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


def is_server(url: str) -> bool:
    return parse_url(url)[0] == "http"


def is_live(url: str) -> bool:
    return parse_url(url)[0] == "foundationdb"


def home(url: str) -> Path:
    """The folder of a store that has one."""
    engine, path = parse_url(url)
    if engine == "memory":
        raise InvalidArgument(
            "a memory: store lives in its own process, and Spark reads from others: use rocksdb: or lmdb:"
        )
    if engine not in ("rocksdb", "lmdb") or path is None:
        raise InvalidArgument(
            f"url={without_password(url)!r}: tables are read from rocksdb:/path, lmdb:/path, foundationdb: or http://host:port;"
            " copy this store first: tenure migrate SOURCE rocksdb:./copy"
        )
    return expand(path)


def place(url: str, info: SnapshotInfo, token: str | None = None) -> Place:
    if is_server(url):
        return ServedPlace(url, info.id, token)
    if info.where is None:
        raise InvalidArgument(f"the snapshots of {url} cannot be read from another process")
    return FolderPlace(info.where)
