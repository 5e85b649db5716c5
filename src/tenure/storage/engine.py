"""The engine interface: an ordered, transactional key-value store. All queue logic is written once, above it.

    Engine ── transact(fn) ──▶ Transaction (a Reader that writes)
       ├───── read(fn) ──────▶ Reader: a consistent view, for a short read
       └───── snapshot() ────▶ Snapshot (a Reader): a consistent view, until it is closed

Keys and values are bytes; keys are compared byte by byte. A space (see `keyspace`) is a number, which each engine maps
to a column family, a named database or a prefix.

What an engine promises:

1. A transaction is serializable and atomic: after a crash all of its rows are stored, or none.
2. `transact` returns once the transaction is as durable as `traits.durability` says, and not before.
3. `fn` may run more than once; it must take ids and the time from outside. If it raises, nothing is written.
   It never calls `transact` itself. An engine of scope `process` runs it once, and stops if its commit fails.
   `fn` collects its writes as a plain value (`transaction.Changes`), and one function of the engine applies it.
4. A transaction never reads rows that it wrote. The memory engine raises if it does; other engines do not check.
5. `append` keys are dense and in commit order: n+1 follows n, across restarts. (The last row of such a space is never
   deleted: the next number is taken from it.)
6. Damage is an error (`Corrupt`), never a missing row or the end of a scan.
7. Each engine translates its driver's errors in one place: Conflict (retried inside), CommitUnknown, TooLarge, Corrupt,
   Unavailable, StoreClosed.
8. After a fork the child's engine raises `StoreClosed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from tenure.errors import Corrupt
from tenure.storage.group_commit import GroupCommit
from tenure.storage.keyspace import LAST, Space
from tenure.storage.transaction import Changes, Transaction

if TYPE_CHECKING:
    from tenure.storage.segments.stored import SegmentRows, StoredSegment

T = TypeVar("T")
Row = tuple[bytes, bytes]
Run: TypeAlias = "list[Row] | SegmentRows"
"""Rows in order: stored rows, or the part of a segment that represents them."""
Durability = Literal["disk", "os", "memory"]
DURABILITIES: tuple[Durability, ...] = ("memory", "os", "disk")  # weakest first


@dataclass(frozen=True)
class Traits:
    """The differences between engines, which the conformance suite tests."""

    #: Who may have the store open at once: threads of one process, processes of one host, or several hosts.
    scope: Literal["process", "host", "cluster"]
    #: Whether claims follow the order strictly, or approximately (several hosts choose at random near the front).
    order: Literal["strict", "approximate"]
    #: Whether `snapshot()` is consistent over the whole store, or over each queue.
    snapshot: Literal["store", "queue"]
    durability: Durability
    #: The largest batch that is one transaction, and the largest key and value.
    atomic_bytes: int
    key_bytes: int
    value_bytes: int
    #: Whether a larger batch is enqueued in several atomic transactions. False: it is refused.
    cuts_batches: bool = False
    #: The interval at which to poll for other processes' commits, in seconds; None: this process sees every commit.
    poll: float | None = None
    #: Whether events are ordered and numbered over the whole store, or in each queue.
    journal: Literal["store", "queue"] = "store"
    #: Whether tenants can have quotas over all their queues.
    quotas: bool = True
    #: Whether `claim_any` is supported.
    any_queue: bool = True
    #: Where the parents and follow-up jobs of a job may be: in any queue of its tenant, in its own queue, or in its own
    #: partition of that queue.
    flows: Literal["tenant", "queue", "partition"] = "tenant"
    #: How long after its end an expired lease is not taken over, in milliseconds: the clocks of hosts differ.
    grace_ms: int = 0


class Reader(Protocol):
    """Reads one consistent view of the store."""

    def get(self, space: Space, key: bytes) -> bytes | None: ...

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys."""

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        """Up to `limit` rows with begin <= key < end. `snapshot`: add no read conflict (no effect with one writer)."""

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        """The keys of `scan`: for spaces that are indexes."""


class Extent(NamedTuple):
    """An estimate of the rows between two keys, inclusive."""

    first: bytes
    last: bytes
    rows: int


class Walk(Protocol):
    """Reads a range from its first key to its last."""

    def take(self, limit: int) -> list[Row]:
        """The next rows; fewer than `limit` only at the end."""

    def runs(self, limit: int) -> list[Run]:
        """The next rows in runs, for readers that decode a segment's jobs as columns."""
        rows = self.take(limit)
        return [rows] if rows else []


class Snapshot(Reader, AbstractContextManager["Snapshot"], Protocol):
    """A consistent view, held until closed.

    Methods with a body here read row by row; an engine overrides them if it has a faster way.
    """

    #: The spaces of segments, if the snapshot may have any (`storage.segments`).
    segment_spaces: ClassVar[tuple[Space, ...]] = ()

    def segments(self, begin: bytes, limit: int) -> list[tuple[bytes, StoredSegment | Corrupt]]:
        """The next segments from the key `begin` on, each with its key; a damaged one as its error."""
        return []

    def walk(self, space: Space, begin: bytes, end: bytes) -> Walk:
        """A `Walk` of the rows with begin <= key < end, for a caller that reads all of them: the engine seeks once."""
        return Steps(self, space, begin, end)

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        """The next `limit` rows from `begin` on: the readable rows, and an error with its key for each damaged one.

        Raises Corrupt where the engine cannot read on past damage.
        """
        return self.scan(space, begin, LAST, limit), []

    def extents(self, space: Space) -> list[Extent]:
        """Estimates of where the rows are, made without reading them. Extents may overlap and count deleted rows.

        Empty if the engine has no estimates.
        """
        return []

    def boundaries(self, space: Space) -> list[bytes]:
        """Keys at which the engine's shards of a space begin, for callers that read them in parallel.

        Empty if there is one shard.
        """
        return []

    def entries(self, space: Space) -> int | None:
        """The engine's own exact count of the rows of a space; None if it keeps none."""
        return None

    def close(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Table(NamedTuple):
    """A sorted file of rows of one space, made outside the database."""

    space: Space
    path: str


class Loader(Protocol):
    """Ingests sorted files together with one commit, atomically: also if the process ends in between."""

    def write_table(self, path: str, rows: Iterable[Row]) -> None:
        """Write a sorted file of rows, which come in ascending order."""

    def load(
        self,
        intend: Callable[[Transaction], Sequence[Table]],
        finish: Callable[[Transaction], T],
        *,
        again: bool = False,
    ) -> T:
        """Commit the writes of `intend`, ingest the files it returned, commit the writes of `finish`; nothing between.

        If `intend` raises, nothing is written. Once its writes are committed, the load must be finished: the process
        that opens the store next and finds them calls `load` with `again` and the same files. A file must not hold a
        key that was ever written before.
        """


class Engine(Protocol):
    """An open database."""

    @property
    def traits(self) -> Traits: ...

    #: Warnings from opening the store.
    remarks: tuple[str, ...]
    #: Called with the reason each time a transaction runs again ("conflict", "map_full", …). Set by the store.
    retried: Callable[[str], None]

    @property
    def home(self) -> Path | None:
        """The store's folder; None if it has none."""

    @property
    def loader(self) -> Loader | None:
        """Ingests sorted files; None if the engine cannot."""

    @property
    def group_commit(self) -> GroupCommit | None:
        """Shares syncs between commits, for callers that must not wait inside a verb; None: verbs do not wait."""

    @property
    def alone(self) -> bool:
        """Whether no other process had the store open when this one opened it (its clock may then be set anew)."""

    #: Functions that clear caches of the layers above. The engine calls them, with the writer's lock held, whenever it
    #: cleared its own caches: after an exception between the write and the end of a commit (Ctrl-C), and after it
    #: reopened its database because a write failed. An interrupted call is repeated. An engine with several writing
    #: processes calls none: no layer caches its rows.
    forgetters: list[Callable[[], None]]

    #: Makes a transaction from a reader and the number of its first journal row. A layer above the engine may set it.
    begin: Callable[[Reader, int], Transaction]

    def transact(self, fn: Callable[[Transaction], T]) -> T:
        """Run `fn`, commit the changes it collected, wait until they are durable, and return its result.

        `fn` must not call the engine. If an exception interrupts it, nothing is written.
        """

    def read(self, fn: Callable[[Reader], T]) -> T:
        """Run `fn` on a consistent view. For short reads: it may block writers."""

    def snapshot(self, spaces: Sequence[Space] | None = None) -> Snapshot:
        """A snapshot of these spaces (default: all), for long reads."""

    def version(self) -> int:
        """A number that changes with every commit, of any process. Cheap."""

    def durable(self) -> int | None:
        """The last journal row known to be durable; None if a commit is durable as soon as it is visible."""

    def share(self) -> None:
        """Called when the exclusive part of opening is done: let other processes open the store."""

    def tend(self) -> None:
        """Cheap housekeeping, called by every sweep."""

    def export(self, path: str) -> None:
        """Write a consistent copy that can be opened as a store. `path` must not exist."""

    def close(self) -> None:
        """Make everything durable and release all resources. Closing twice is allowed."""


class Steps(Walk):
    """A `Walk` made of successive scans, for a snapshot without a faster way."""

    def __init__(self, reader: Reader, space: Space, begin: bytes, end: bytes) -> None:
        self._reader, self._space, self._begin, self._end = reader, space, begin, end

    def take(self, limit: int) -> list[Row]:
        rows = self._reader.scan(self._space, self._begin, self._end, limit)
        if rows:
            self._begin = rows[-1][0] + b"\0"
        return rows


def iterate(reader: Reader, space: Space, begin: bytes, end: bytes, chunk: int = 1000) -> Iterator[list[Row]]:
    """All rows of a range in chunks, each read when it is needed."""
    while True:
        rows = reader.scan(space, begin, end, chunk)
        if rows:
            yield rows
        if len(rows) < chunk:
            return
        begin = rows[-1][0] + b"\0"


def iterate_keys(reader: Reader, space: Space, begin: bytes, end: bytes, chunk: int = 1000) -> Iterator[list[bytes]]:
    """All keys of a range in chunks, each read when it is needed."""
    while True:
        keys = reader.keys(space, begin, end, chunk)
        if keys:
            yield keys
        if len(keys) < chunk:
            return
        begin = keys[-1] + b"\0"


#: Up to this many rows are read faster one by one.
_FEW = 2


def get_each(reader: Reader, space: Space, keys: Sequence[bytes]) -> list[bytes | Corrupt | None]:
    """As `get_many`, but a damaged row is returned as its error, and the others are read."""
    if len(keys) <= _FEW:
        return [_get_or_damage(reader, space, key) for key in keys]
    try:
        return list(reader.get_many(space, keys))
    except Corrupt:
        return [_get_or_damage(reader, space, key) for key in keys]


def _get_or_damage(reader: Reader, space: Space, key: bytes) -> bytes | Corrupt | None:
    try:
        return reader.get(space, key)
    except Corrupt as exc:
        return exc


__all__ = [
    "DURABILITIES",
    "Changes",
    "Durability",
    "Engine",
    "Extent",
    "Loader",
    "Reader",
    "Row",
    "Run",
    "Snapshot",
    "Space",
    "Steps",
    "Table",
    "Traits",
    "Transaction",
    "Walk",
    "get_each",
    "iterate",
    "iterate_keys",
]
