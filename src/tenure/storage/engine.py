"""The seam: an ordered, transactional key-value store. All queue logic is written once, above it.

    Engine ── transact(fn) ──▶ Transaction (a Reader that writes)
       ├───── read(fn) ──────▶ Reader, one moment, for something short
       └───── snapshot() ────▶ Snapshot (a Reader), one moment, for as long as it is held

Keys and values are bytes; keys are compared byte by byte. A space (see `keyspace`) is a number, and what an engine
makes of it (a column family, a named database, a prefix) is its own affair.

What an engine promises:

1. A transaction is serializable, and atomic: all of it is there after a crash, or nothing.
2. `transact` returns once the transaction is as durable as `traits.durability` says, and not before.
3. `fn` may run more than once; it must take ids and the time from outside. If it raises, nothing is written.
   It never calls `transact` itself. An engine of scope `process` runs it once, and stops if its commit fails.
   What `fn` collects is a plain value (`transaction.Changes`), and one function of the engine applies it.
4. A transaction never reads what it wrote. The memory engine refuses to let it; other engines need not notice.
5. `append` keys are dense and in commit order: n+1 follows n, across restarts. (The last row of such a space is never
   deleted: the numbers go on from it.)
6. Damage is an error (`Corrupt`), never a missing row or the end of a scan.
7. The driver's errors become ours in one place: Conflict (retried inside), CommitUnknown, TooLarge, Corrupt,
   Unavailable, StoreClosed.
8. After a fork the child's engine answers `StoreClosed`.
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
"""Rows in order: as they are stored, or the part of a segment that stands for them."""
Durability = Literal["disk", "os", "memory"]
DURABILITIES: tuple[Durability, ...] = ("memory", "os", "disk")  # weakest first


@dataclass(frozen=True)
class Traits:
    """What differs between engines, said so that the conformance suite can test it."""

    #: Who may have it open at once: threads of one process, processes of one host, or hosts.
    scope: Literal["process", "host", "cluster"]
    #: Whether claims follow the order strictly, or nearly (where many hosts pick at random).
    order: Literal["strict", "approximate"]
    #: Whether `snapshot()` is one moment of the whole store.
    snapshot: Literal["store", "queue"]
    durability: Durability
    #: The largest batch that is one transaction, and the largest key and value.
    atomic_bytes: int
    key_bytes: int
    value_bytes: int
    #: Whether a larger batch is enqueued in several transactions, each of them whole. Without: it is refused.
    cuts_batches: bool = False
    #: How often to look for other processes' commits, in seconds; None where this process sees every commit.
    poll: float | None = None
    #: Whether events have one order and one count for the whole store, or each queue its own.
    journal: Literal["store", "queue"] = "store"
    #: Whether tenants can be given quotas, which hold over all their queues.
    quotas: bool = True
    #: Whether a claim can be served by any queue, in turn.
    any_queue: bool = True
    #: How far a flow reaches: the jobs that a job waits for, or hands over to, are in any queue of its tenant, in its own
    #: queue, or in its own partition of that.
    flows: Literal["tenant", "queue", "partition"] = "tenant"
    #: How long past its end an expired lease is left alone, in milliseconds: for hosts whose clocks differ.
    grace_ms: int = 0


class Reader(Protocol):
    """Looks at one moment."""

    def get(self, space: Space, key: bytes) -> bytes | None: ...

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of the keys."""

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        """Up to `limit` rows with begin <= key < end. `snapshot`: takes no conflict (nothing, with one writer)."""

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        """As `scan`, the keys only: for spaces that are indexes."""


class Extent(NamedTuple):
    """About how many rows lie between two keys, both among them."""

    first: bytes
    last: bytes
    rows: int


class Walk(Protocol):
    """A range, read from its beginning to its end."""

    def take(self, limit: int) -> list[Row]:
        """The next rows; fewer than `limit` only at the end."""

    def runs(self, limit: int) -> list[Run]:
        """The rows that `take` would return, in runs, for readers that decode a segment's jobs as columns."""
        rows = self.take(limit)
        return [rows] if rows else []


class Snapshot(Reader, AbstractContextManager["Snapshot"], Protocol):
    """A moment, held until closed.

    What has a body here is the row-by-row default, for engines that inherit it and have nothing quicker.
    """

    #: The spaces of segments, where this moment may have any (`storage.segments`).
    segment_spaces: ClassVar[tuple[Space, ...]] = ()

    def segments(self, begin: bytes, limit: int) -> list[tuple[bytes, StoredSegment | Corrupt]]:
        """The next segments from the key `begin` on, each with its key; or what is wrong with it."""
        return []

    def walk(self, space: Space, begin: bytes, end: bytes) -> Walk:
        """The rows with begin <= key < end, for a caller that reads them all: the engine seeks once."""
        return Steps(self, space, begin, end)

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        """The next `limit` rows from `begin` on: the sound ones, and the damage of the others, with their keys.

        Raises Corrupt where the engine cannot read on past damage.
        """
        return self.scan(space, begin, LAST, limit), []

    def extents(self, space: Space) -> list[Extent]:
        """Where rows lie, as far as the engine knows without reading them. Extents may overlap and count deleted rows.

        Empty where the engine knows nothing.
        """
        return []

    def boundaries(self, space: Space) -> list[bytes]:
        """Keys at which the engine's own parts of a space begin, for callers that read parts side by side.

        Empty where all of it is in one place.
        """
        return []

    def entries(self, space: Space) -> int | None:
        """How many rows the engine counts in a space, where it keeps an exact count apart from the rows; else None."""
        return None

    def close(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Table(NamedTuple):
    """A sorted file of rows of one space, made apart from the database."""

    space: Space
    path: str


class Loader(Protocol):
    """Takes sorted files in as they are, together with one commit: all of it, or nothing, whenever the process ends."""

    def write_table(self, path: str, rows: Iterable[Row]) -> None:
        """Make such a file, of rows in ascending order."""

    def load(
        self,
        intend: Callable[[Transaction], Sequence[Table]],
        finish: Callable[[Transaction], T],
        *,
        again: bool = False,
    ) -> T:
        """Commit what `intend` wrote, take in the files it named, commit what `finish` wrote. Nothing comes between.

        If `intend` raises, nothing is written. Once it is committed, the load must be finished: the process that opens
        the store next and finds what it wrote calls `load` with `again`, with the same files. New rows only: no file
        may hold a key that was ever written before.
        """


class Engine(Protocol):
    """An open database."""

    @property
    def traits(self) -> Traits: ...

    #: What opening it found worth a warning, though it goes on.
    remarks: tuple[str, ...]
    #: Told why, each time a transaction has to run again ("conflict", "map_full", …). Set by the store.
    retried: Callable[[str], None]

    @property
    def home(self) -> Path | None:
        """The folder it lives in; None if it has none."""

    @property
    def loader(self) -> Loader | None:
        """Takes in files as they are; None where an engine cannot."""

    @property
    def group_commit(self) -> GroupCommit | None:
        """What makes commits durable together, for callers that must not wait in a verb; None: a verb does not wait."""

    @property
    def alone(self) -> bool:
        """Whether no other process had it open when this one opened it (so that the calendar may be taken anew)."""

    #: Called, with the writer's lock held, whenever the engine had to forget what it keeps in memory beside the database:
    #: after an exception between the write and the end of a commit (Ctrl-C), and when it has opened its database anew
    #: after a failed write. A layer that keeps something of the store in memory adds a function that forgets it. An engine
    #: that several processes write to calls none: nothing is kept there. An interrupted call is repeated.
    forgetters: list[Callable[[], None]]

    #: Makes a transaction of a reader and the number of its first journal row. A layer above the engine may set it.
    begin: Callable[[Reader, int], Transaction]

    def transact(self, fn: Callable[[Transaction], T]) -> T:
        """Run `fn`, commit the changes it collected, wait until they are durable; return what `fn` returned.

        `fn` must not call the engine. It may be interrupted by an exception anywhere: then nothing is written.
        """

    def read(self, fn: Callable[[Reader], T]) -> T:
        """Run `fn` on one moment. For short looks: it may hold up writers."""

    def snapshot(self, spaces: Sequence[Space] | None = None) -> Snapshot:
        """One moment of these spaces (all, if not said), for long looks."""

    def version(self) -> int:
        """A number that changes with every commit, of any process. Cheap."""

    def durable(self) -> int | None:
        """The last journal row known durable, or None where a commit is durable as soon as it is seen."""

    def share(self) -> None:
        """The store has done what it does alone on opening: let other processes in, where the engine has any."""

    def tend(self) -> None:
        """Cheap housekeeping, called by every sweep."""

    def export(self, path: str) -> None:
        """Write a copy of one moment that can be opened as a store. `path` does not exist yet."""

    def close(self) -> None:
        """Make everything durable and let go. Closing twice is fine."""


class Steps(Walk):
    """A `Walk` by one scan after another, for a snapshot that has nothing quicker."""

    def __init__(self, reader: Reader, space: Space, begin: bytes, end: bytes) -> None:
        self._reader, self._space, self._begin, self._end = reader, space, begin, end

    def take(self, limit: int) -> list[Row]:
        rows = self._reader.scan(self._space, self._begin, self._end, limit)
        if rows:
            self._begin = rows[-1][0] + b"\0"
        return rows


def iterate(reader: Reader, space: Space, begin: bytes, end: bytes, chunk: int = 1000) -> Iterator[list[Row]]:
    """All rows of a range, a chunk at a time, each read as it is needed."""
    while True:
        rows = reader.scan(space, begin, end, chunk)
        if rows:
            yield rows
        if len(rows) < chunk:
            return
        begin = rows[-1][0] + b"\0"


def iterate_keys(reader: Reader, space: Space, begin: bytes, end: bytes, chunk: int = 1000) -> Iterator[list[bytes]]:
    while True:
        keys = reader.keys(space, begin, end, chunk)
        if keys:
            yield keys
        if len(keys) < chunk:
            return
        begin = keys[-1] + b"\0"


def every(reader: Reader, space: Space, begin: bytes, end: bytes, step: int) -> Iterator[bytes]:
    """Every `step`-th key of a range: where to cut it into parts of that many rows."""
    while True:
        keys = reader.keys(space, begin, end, step + 1)
        if len(keys) <= step:
            return
        begin = keys[-1]
        yield begin


#: So few rows are quicker read one by one.
_FEW = 2


def get_each(reader: Reader, space: Space, keys: Sequence[bytes]) -> list[bytes | Corrupt | None]:
    """As `get_many`, but a damaged row is an answer for itself alone."""
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
    "every",
    "get_each",
    "iterate",
    "iterate_keys",
]
