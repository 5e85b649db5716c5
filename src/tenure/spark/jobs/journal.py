"""The journal as a job reads it: how far it goes, and how far this reader has come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tenure.api.store import Store
from tenure.bulk.journal_reader import At, Journal
from tenure.bulk.snapshot_locations import home
from tenure.errors import InvalidArgument, OpenError
from tenure.queueing.journal import cursor
from tenure.settings import parse_url
from tenure.spark.connections import opened

SHARD = "0"


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


@contextmanager
def _opened(url: str, log: str) -> Iterator[Journal]:
    with there(url) as store:
        yield Journal(url, 0, store=store, holder=log, remedy="Give this one another ROOT")


def end(url: str) -> At:
    """Where the next commit will be written."""
    with there(url) as store:
        return Journal(url, 0, store=store).ends()[1]


def check(url: str, at: At, log: str) -> None:
    """Verify that a place, which `log` holds, is of this store. Where the journal was trimmed, only ids are compared.

    Raises InvalidArgument if it is of another store, or of this one before it was restored.
    """
    with _opened(url, log) as journal:
        kept = journal.oldest_after(at)
        journal.check(kept, kept)


def bounds(url: str, read: At | None, log: str) -> tuple[At, At]:
    """The first commit to read, and where the next one will be written.

    `read` is where the caller's `log` ends; None: nothing is read yet. Raises JournalTrimmed, and InvalidArgument as
    `check`.
    """
    with _opened(url, log) as journal:
        start = journal.ends()[0] if read is None else read
        return start, journal.after(start, None, None)[0]


def register(url: str, consumer: str, commit: int) -> None:
    """Ask the journal to keep what comes after that commit."""
    with there(url) as store:
        store.events(after=cursor(commit + 1, 0), limit=1, consumer=consumer)
