"""The journal as a job reads it: how far it goes, its events between two places, and how far this reader has come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

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


def events(
    spark: SparkSession, url: str, snapshot: str, start: Mapping[str, int], end: Mapping[str, int], since_ms: int | None
) -> DataFrame:
    """The events of commits after `start` up to `end`; `since_ms`, the time of `start`, is where to look from."""
    reader = spark.read.format("tenure").option("url", url).option("table", "events").option("snapshot", snapshot)
    if since_ms is not None:
        reader = reader.option("since", datetime.fromtimestamp(since_ms / 1000, UTC).isoformat())
    commit = F.col("commit")
    return reader.load().where((commit > start[SHARD]) & (commit <= end[SHARD]))


def register(url: str, consumer: str, read: Mapping[str, int]) -> None:
    """Ask the journal to keep what comes after."""
    with there(url) as store:
        store.events(after=cursor(read[SHARD] + 1, 0), limit=1, consumer=consumer)
