"""The journal as a job reads it: how far it goes, and how far this reader has come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tenure.api.store import Store
from tenure.bulk.snapshot_locations import home
from tenure.errors import InvalidArgument, JournalTrimmed, OpenError
from tenure.queueing.journal import cursor
from tenure.settings import parse_url
from tenure.spark.connections import opened

SHARD = "0"
Places = dict[str, int]
"""Shard → a commit."""


@contextmanager
def there(url: str) -> Iterator[Store]:
    """A store that must be there already: a mistyped path must not become an empty one."""
    engine = parse_url(url)[0]
    if engine == "memory":
        raise InvalidArgument("a memory store is in one process only: Spark's are others")
    if engine in ("rocksdb", "lmdb") and not (home(url) / "FORMAT").exists():
        raise OpenError(f"there is no store at {home(url)}")
    with opened(url) as store:
        yield store


def bounds(url: str, after: Mapping[str, int] | None) -> tuple[Places, Places]:
    """From where (exclusive) and up to where there are events to read. Raises JournalTrimmed."""
    with there(url) as store:
        kept = store.backend.journal_slice(None, None, 0)
    if after is None:
        return {SHARD: kept.oldest - 1}, {SHARD: max(kept.newest, kept.oldest - 1)}
    start = after.get(SHARD, 0)
    if start + 1 < kept.oldest:
        raise JournalTrimmed(cursor(kept.oldest, 0))
    if kept.newest < start:
        raise InvalidArgument(
            f"the journal ends at commit {kept.newest}, and {start} was read before: this is another store"
        )
    return {SHARD: start}, {SHARD: kept.newest}


def register(url: str, consumer: str, read: Mapping[str, int]) -> None:
    """Ask the journal to keep what comes after."""
    with there(url) as store:
        store.events(after=cursor(read[SHARD] + 1, 0), limit=1, consumer=consumer)
