"""Following the journal from another process: its first and last position, and its rows between two positions.

A position is a commit, the number of its first event, and the time of the commit before it; the end position is where
the next commit will be written. Few events are fetched from the store as stored rows and decoded here; many are read
from a snapshot, in parts. Every position that a caller brings is checked: the journal must have that commit with that
number after that time, in the store it was made for.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from tenure.api.store import Store
from tenure.bulk import events, snapshot_locations
from tenure.bulk.plan import Part
from tenure.bulk.query import Names, Query
from tenure.bulk.snapshot_locations import Place
from tenure.contract.backend import Backend
from tenure.contract.queue_infos import all_queues
from tenure.errors import InvalidArgument, JournalTrimmed, SnapshotExpired
from tenure.model.durations import as_datetime
from tenure.model.names import QueueName
from tenure.queueing.journal import cursor
from tenure.storage import keyspace, records

#: Up to this many events, and bytes of them, are fetched rather than read from a snapshot; so many bytes at a time.
FEW, FEW_BYTES = 20_000, 16 * 1024 * 1024
_FETCH_BYTES = 4 * 1024 * 1024


class At(NamedTuple):
    """A place in a journal. `number` 0, `store` "" and `after_ms` 0 stand for: not known, so not compared."""

    commit: int
    number: int
    store: str = ""
    #: The time of the commit before it. Two copies of a store that went on differently agree in numbers, hardly in times.
    after_ms: int = 0


class Journal:
    """The journal of a store that is opened for a look, and let go (`release`): its owner may be coming or going.

    A `store` that the caller has open is used instead, and stays open. Errors name what holds the caller's positions
    (`holder`), and say how to start anew (`remedy`).
    """

    def __init__(
        self,
        url: str,
        ttl_ms: int,
        token: str | None = None,
        *,
        store: Store | None = None,
        holder: str = "the offset",
        remedy: str = "Start the stream with a new checkpoint",
    ) -> None:
        self._url = url
        self._token = token
        self._ttl_ms = ttl_ms
        self._holder, self._remedy = holder, remedy
        self._callers = store
        self._store: Store | None = None
        self._names = Names(())
        #: The last snapshot taken, and up to where it reaches.
        self._place: Place | None = None
        self._reach = 0

    @property
    def _journal(self) -> Backend:
        """The store that is read, opened when it is first needed."""
        if self._callers is not None:
            return self._callers.backend
        if self._store is None:
            self._store = snapshot_locations.opened(self._url, self._token)
        return self._store.backend

    def release(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    # ── places ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def ends(self) -> tuple[At, At]:
        """Where it begins, and where it will go on."""
        return _ends(self._journal)

    def at_time(self, time_ms: int) -> At:
        """The first row written then or later."""
        backend = self._journal
        oldest, end = _ends(backend)
        low, high = oldest.commit, end.commit
        while low < high:
            middle = (low + high) // 2
            if _head(backend, middle).time_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        return _at(backend, low, oldest, end)

    def at_commit(self, commit: int) -> At:
        oldest, end = self.ends()
        self._check(At(commit, 0), oldest, end)
        return _at(self._journal, commit, oldest, end)

    def after(self, start: At, end: At | None, most: int | None) -> tuple[At, At]:
        """How far to read, and where the journal ends now.

        To the end (that of now, or one that is known), or as far from `start` as `most` events go: in whole rows, at
        least one. Raises JournalTrimmed, and InvalidArgument for a place of another store.
        """
        oldest, now = self.ends()
        self._check(start, oldest, now)
        end = now if end is None else end
        if start.commit >= end.commit:
            return start, now
        return (end if most is None else _within(self._journal, start, oldest, end, most)), now

    def check(self, start: At, end: At) -> None:
        """Raises JournalTrimmed if the journal no longer reaches back to `start`, InvalidArgument if it is another
        store's.
        """
        oldest, now = self.ends()
        self._check(start, oldest, now)
        self._check(end, oldest, now)

    def oldest_after(self, at: At) -> At:
        """The same place, or the oldest that is kept if the journal was trimmed past it.

        Raises as `check` but for that.
        """
        oldest, now = self.ends()
        if at.commit >= oldest.commit:
            return at
        self._check(At(oldest.commit, 0, at.store), oldest, now)
        return oldest

    def register(self, consumer: str, at: At) -> None:
        """Nothing from there on is trimmed, until the consumer is registered further on or forgotten."""
        self._journal.events(cursor(at.commit, 0), 1, 0, consumer)

    def _check(self, at: At, oldest: At, end: At) -> None:
        if at.store and end.store and at.store != end.store:
            raise InvalidArgument(
                f"{self._holder} is of store {at.store}, and {self._url} is store {end.store}: another store lies there now. "
                f"{self._remedy}, or bring the first store back"
            )
        if at.commit < oldest.commit:
            trimmed = JournalTrimmed(cursor(oldest.commit, 0))
            trimmed.add_note(f"{self._url} keeps commits from {oldest.commit} on, and {at.commit} was asked for")
            raise trimmed
        if at.commit > end.commit:
            raise self._past(at.commit, end.commit)
        found = _at(self._journal, at.commit, oldest, end)
        if at.number and found.number != at.number:
            raise self._other(f"commit {at.commit} of {self._url} begins with event {found.number}", str(at.number))
        if at.after_ms and found.after_ms and found.after_ms != at.after_ms:
            before = f"commit {at.commit - 1} of {self._url} was written at {as_datetime(found.after_ms).isoformat()}"
            raise self._other(before, as_datetime(at.after_ms).isoformat())

    def _other(self, found: str, said: str) -> InvalidArgument:
        return InvalidArgument(
            f"{found}, and {self._holder} says {said}: it is of another store, or of this one before it was restored. "
            f"{self._remedy}"
        )

    def _past(self, commit: int, end: int) -> InvalidArgument:
        return InvalidArgument(
            f"{self._holder} is at commit {commit}, past the end of the journal of {self._url}, which is {end}: it belongs to "
            f"another store, or to this one before it was restored. {self._remedy}"
        )

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def fetch_few(self, query: Query, start: At, end: At) -> list[pa.RecordBatch] | None:
        """The events of [start, end), decoded here; None if they are too many, or too large, to hold them all in
        memory.
        """
        return self.fetch(query, start, end, FEW_BYTES) if end.number - start.number <= FEW else None

    def fetch(self, query: Query, start: At, end: At, most_bytes: int = 2**62) -> list[pa.RecordBatch] | None:
        """The events of [start, end), decoded here; None if their rows are more than `most_bytes`.

        Raises JournalTrimmed, and Corrupt naming a row that is missing.
        """
        batches, at, size = [], start.commit, 0
        while at < end.commit:
            found = self._journal.journal_slice(at, end.commit, _FETCH_BYTES)
            if not found.rows:
                raise self._past(end.commit, found.newest + 1)
            size += sum(map(len, found.rows))
            if size > most_bytes:
                return None
            rows = [(keyspace.commit(number), row) for number, row in enumerate(found.rows, at)]
            batch = events.decode(rows, at, query, lambda: self._known(rows))  # noqa: B023 - called at once
            if batch is not None and batch.num_rows:
                batches.append(batch)
            at += len(rows)
        return batches

    def _known(self, rows: list[tuple[bytes, bytes]]) -> Names:
        if not self._names.knows(events.queue_numbers(rows)):
            infos = all_queues(self._journal, None)
            self._names = Names((info.number, QueueName(info.tenant, info.queue)) for info in infos)
        return self._names

    def parts(self, start: At, end: At, rows: int) -> tuple[Place, list[Part]]:
        """Where to read [start, end), in parts. One snapshot serves until it no longer reaches."""
        if self._place is not None and end.commit <= self._reach:
            try:
                return self._place, self._place.events(start.commit, end.commit, rows)
            except SnapshotExpired:
                self._place = None
        self.drop()
        backend = self._journal
        reach = _ends(backend)[1].commit
        self._place = snapshot_locations.take_from(backend, self._url, self._ttl_ms, token=self._token)
        self._reach = reach
        return self._place, self._place.events(start.commit, end.commit, rows)

    def read_up_to(self, at: At) -> None:
        """Everything before that place has been read: a snapshot that does not go past it is of no more use."""
        if at.commit >= self._reach:
            self.drop()

    def drop(self) -> None:
        if self._place is not None:
            self._journal.drop_snapshot(self._place.id)
            self._place = None


def events_kept(backend: Backend) -> int:
    """How many events the journal of a store has: by the numbers of its first and last, nothing is scanned."""
    oldest, end = _ends(backend)
    return end.number - oldest.number


def _ends(backend: Backend) -> tuple[At, At]:
    looked = backend.journal_slice(None, None, 0)
    if looked.newest < looked.oldest:
        return At(1, 1, looked.store), At(1, 1, looked.store)
    last = _head(backend, looked.newest)
    return (
        At(looked.oldest, _head(backend, looked.oldest).first_number, looked.store),
        At(looked.newest + 1, last.first_number + last.events, looked.store, last.time_ms),
    )


def _at(backend: Backend, commit: int, oldest: At, end: At) -> At:
    if commit >= end.commit:
        return end
    after_ms = _head(backend, commit - 1).time_ms if commit > oldest.commit else 0
    return At(commit, _head(backend, commit).first_number, end.store, after_ms)


def _within(backend: Backend, start: At, oldest: At, end: At, most: int) -> At:
    if end.number - start.number <= most or end.commit <= start.commit + 1:
        return end
    low, high = start.commit + 1, end.commit  # the last row boundary that is near enough, by bisection
    while low < high:
        middle = (low + high + 1) // 2
        number = end.number if middle == end.commit else _head(backend, middle).first_number
        if number - start.number <= most:
            low = middle
        else:
            high = middle - 1
    return _at(backend, low, oldest, end)


def _head(backend: Backend, commit: int) -> records.JournalHeader:
    return records.decode_journal_header(backend.journal_slice(commit, commit + 1, 1).rows[0])
