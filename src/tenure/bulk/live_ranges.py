"""Tables of a cluster, read live by key ranges: no copy is made, and no process has to hold the store for others.

    plan    cuts a table at the boundaries of the cluster's shards (`Snapshot.boundaries`)
    read    opens the store in this process, and reads a range page by page, each page at one version of the cluster

A version can be read for five seconds, so a table is not one moment: within a page all rows agree, and the pages are as
far apart in time as they are read. Each job is in one page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tenure.api.opening import open as open_store
from tenure.api.store import Store
from tenure.backends.embedded import EmbeddedBackend
from tenure.bulk.plan import Part, event_parts, plan
from tenure.bulk.plan import read as read_part
from tenure.bulk.query import Query, Range, StoreView
from tenure.errors import JournalTrimmed, Unavailable
from tenure.queueing.journal import cursor
from tenure.storage import keyspace
from tenure.storage.engine import Snapshot

#: Rows of a page. One that takes longer than a version lives is read again with fewer.
_PAGE = 2_000
#: What stands for a snapshot's id: the store as it is now.
LIVE = "live"
#: Stores that this process reads, by address.
_stores: dict[str, Store] = {}


@dataclass(frozen=True)
class LivePlace:
    """`snapshot_locations.Place` of a cluster that any process can reach by the store's address."""

    url: str

    @property
    def id(self) -> str:
        return LIVE

    def plan(self, query: Query, rows: int) -> list[Part]:
        with _moment(self.url) as (moment, now_ms):
            return plan(StoreView(moment, now_ms), query, rows)

    def events(self, begin: int, end: int, rows: int) -> list[Part]:
        with _moment(self.url) as (moment, _):
            return event_parts(moment, begin, end, rows)

    def read(self, query: Query, part: Part) -> Iterator[pa.RecordBatch]:
        for begin, end in part.ranges:
            yield from self._read(query, part, begin, end)

    def _read(self, query: Query, part: Part, begin: bytes, end: bytes) -> Iterator[pa.RecordBatch]:
        rows = _PAGE
        while begin < end:
            try:
                batches, begin = self._page(query, part, (begin, end), rows)
            except Unavailable:
                if rows == 1:
                    raise
                rows = max(1, rows // 4)
                continue
            yield from batches

    def _page(self, query: Query, part: Part, within: Range, rows: int) -> tuple[list[pa.RecordBatch], bytes]:
        """The rows of one page, all of one version, and where the next page begins."""
        begin, end = within
        with _moment(self.url) as (moment, now_ms):
            keys = moment.keys(part.space, begin, end, rows)
            if part.space == keyspace.JOURNAL and keys and len(begin) == len(keys[0]) and keys[0] > begin:
                raise JournalTrimmed(cursor(keyspace.split_commit(keys[0]), 0))
            if len(keys) == rows:
                end = _after(part, keys[-1])
            view = StoreView(moment, now_ms)
            return list(read_part(view, query, Part(part.space, ((begin, end),)))), end


def _after(part: Part, key: bytes) -> bytes:
    if part.space == keyspace.JOURNAL:
        return keyspace.commit(keyspace.split_commit(key) + 1)
    return key + b"\0"


class _moment:
    """The store as it is now, for as long as one version can be read, and its time."""

    def __init__(self, url: str) -> None:
        store = _stores.get(url)
        if store is None or store.closed:
            store = _stores[url] = open_store(url, sweep=False)
        backend = store.backend
        assert isinstance(backend, EmbeddedBackend)
        self._moment, self._now_ms = backend.moment(), backend.now_ms()

    def __enter__(self) -> tuple[Snapshot, int]:
        return self._moment, self._now_ms

    def __exit__(self, *error: object) -> None:
        self._moment.close()
