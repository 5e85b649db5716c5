"""A transaction: it reads through an engine's reader, and collects what it writes as a plain value (`Changes`).

Every engine uses this one class. An engine supplies the reader and applies the changes; the queue's logic does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tenure.storage.keyspace import JOBS, JOURNAL, LEASES, NAMES, STATE

if TYPE_CHECKING:
    from tenure.storage.engine import Reader, Row, Space
    from tenure.storage.segments.stored import SegmentShare, StoredSegment

_BY_KEY = frozenset({JOBS, STATE, LEASES})
#: For `Transaction.answers_after`: the answer contains nothing that was read, so it waits for nothing.
NOTHING_TOLD = 0
Write = tuple[int, bytes, bytes | None]
"""Space, key, value. None deletes the row."""


class Changes:
    """What one transaction writes. An engine applies it whole, or not at all."""

    # What few transactions have is set when it is needed.
    #: Space, first key, end. Deleted before the writes are made.
    ranges: Sequence[tuple[int, bytes, bytes]] = ()
    #: Called once the changes are written, while nobody else can write: for what is kept in memory beside the
    #: database. Only an engine of scope `process` calls them; elsewhere nothing is kept.
    on_written: Sequence[Callable[[], None]] = ()

    def __init__(self) -> None:
        #: In order: the last write of a key stands.
        self.writes: list[Write] = []
        #: Counters: key, and what is added to it.
        self.adds: dict[bytes, int] = {}
        #: Rows appended to the journal.
        self.journal: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self.writes or self.adds or self.journal or self.ranges)


class Transaction(Changes):
    """`storage.engine.Reader`, and the verbs that write. Nothing is seen, by itself or by others, before it commits."""

    #: Among how many times the rows it takes a claim chooses at random. More than 1 where hosts claim side by side: they
    #: would all want the same first rows, and all but one would have to try again.
    spread = 1
    #: Whether the engine has a say in when an expired lease may be taken over: then `hold` is called.
    holds_leases = False
    #: The row of the journal that must be durable before the caller is answered; None: this transaction's own, or, if it
    #: writes none, all that it may have read. A claim sets it (`grant`): it waits for what made its jobs ready, and its own
    #: row is durable soon. A claim that finds no job sets `NOTHING_TOLD`. Engines may wait longer.
    answers_after: int | None = None

    def __init__(self, reader: Reader, next_commit: int) -> None:
        self.writes = []
        self.adds = {}
        self.journal = []
        self.reader = reader
        #: The number of the first row that this transaction appends to the journal.
        self.next_commit = next_commit

    def get(self, space: Space, key: bytes) -> bytes | None:
        return self.reader.get(space, key)

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.reader.get_many(space, keys)

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        return self.reader.scan(space, begin, end, limit, reverse=reverse, snapshot=snapshot)

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        return self.reader.keys(space, begin, end, limit, reverse=reverse, snapshot=snapshot)

    def put(self, space: Space, key: bytes, value: bytes) -> None:
        self.writes.append((space, key, value))

    def put_many(self, space: Space, rows: Iterable[Row]) -> None:
        self.writes += [(space, key, value) for key, value in rows]

    def delete(self, space: Space, key: bytes) -> None:
        self.writes.append((space, key, None))

    def delete_many(self, space: Space, keys: Iterable[bytes]) -> None:
        self.writes += [(space, key, None) for key in keys]

    def delete_range(self, space: Space, begin: bytes, end: bytes) -> None:
        """Delete begin <= key < end. Not for jobs, state and leases, of which an engine may keep copies by key."""
        if space in _BY_KEY:
            raise ValueError(f"rows of {NAMES[space]} are deleted one by one: engines keep copies of them by key")
        if begin >= end:
            return
        if self.writes:  # ranges are deleted first: what was written into this one before must not come back
            self.writes[:] = [w for w in self.writes if w[0] != space or not begin <= w[1] < end]
        self.ranges = (*self.ranges, (space, begin, end))

    def add(self, key: bytes, delta: int) -> None:
        """Add to a row of `counters`. A counter below zero is damage, and `check` says so."""
        self.adds[key] = self.adds.get(key, 0) + delta

    def guard(self, space: Space, key: bytes) -> None:
        """Conflict with a transaction that writes this key, without reading it. Nothing to do where there is one writer."""

    def hold(self, lease: bytes, remaining_ms: int) -> None:
        """The lease of this row of `leases` lasts so much longer. For engines that measure time by more than clocks."""

    def may_take_over(self, lease: bytes) -> bool:
        """Whether as much time has passed as `hold` said, by the engine's measure. True where only clocks decide."""
        return True

    def at_most(self, count: int) -> int:
        """How many of `count` jobs or rows this transaction may take on. The caller leaves the rest to another transaction.

        Fewer than `count` only on an engine that keeps transactions small, and has tried with more.
        """
        return count

    def next_append(self, space: Space) -> int:
        """The number the next `append` will get."""
        _only_journal(space)
        return self.next_commit + len(self.journal)

    def append(self, space: Space, value: bytes) -> int:
        """Write at the next number of the journal (a big-endian u64 key); returns the number."""
        _only_journal(space)
        self.journal.append(value)
        return self.next_commit + len(self.journal) - 1

    def when_written(self, remember: Callable[[], None]) -> None:
        """Call this once the changes are written (`on_written`)."""
        self.on_written = (*self.on_written, remember)

    def finish(self) -> bool:
        """Called by the engine once the function has returned: the last chance to add to the changes.

        Returns whether there are any.
        """
        return bool(self.writes or self)

    # ── jobs that were enqueued together ─────────────────────────────────────────────────────────────────────────────
    # An engine may keep them as one record (`storage.segments`). Here it does not: the caller handles rows.

    def put_together(
        self,
        prefix: bytes,
        jobs: Sequence[bytes],
        payloads: Sequence[bytes],
        now_ms: int,
        priority: int,
        max_attempts: int,
        last_event: int,
        group: bytes = b"",
        most_leased: int | None = None,
    ) -> bool:
        """Write plain jobs that wait from now on; `last_event` is the first's, the others' follow. False: write rows.

        `group`: the name of the group that all of them have, of whose jobs at most `most_leased` may be leased at once.
        """
        return False

    def first_together(self, tiers: Sequence[bytes], until: bytes, limit: int) -> Sequence[SegmentShare]:
        """The next `limit` ready jobs, if they are whole segments and the beginning of one more. Empty: read rows."""
        return ()

    def next_together(self, space: Space, begin: bytes, end: bytes, limit: int) -> StoredSegment | None:
        """The segment whose jobs come first in this range of an index, for a claim of `limit`. None: read rows."""
        return None

    def shares_out(self, segment: StoredSegment, count: int) -> bool:
        """Whether so many of the first jobs of a segment can be leased together."""
        return False

    def lease_together(self, share: SegmentShare, lease: bytes, token: int, last_event: int) -> None:
        """The share's jobs are held by `lease`, each with this token, from now on."""
        raise NotImplementedError("this transaction gave out no segment")

    def held_together(
        self, prefix: bytes, lease: bytes, jobs: Sequence[bytes], tokens: Sequence[int]
    ) -> Sequence[StoredSegment]:
        """The segments that these jobs are, whole and in order, if the lease holds them. Empty: read rows."""
        return ()

    def drop_together(self, segment: StoredSegment) -> None:
        """Remove all jobs of a segment that `held_together` gave."""
        raise NotImplementedError("this transaction gave out no segment")

    def break_up(self, key: bytes) -> bool:
        """Turn a damaged segment into rows, as far as it can be read. False: there are no segments."""
        return False


def _only_journal(space: Space) -> None:
    if space != JOURNAL:
        raise ValueError("only the journal is appended to")
