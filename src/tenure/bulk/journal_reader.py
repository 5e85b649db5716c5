"""Following the journal from another process: where it begins and ends, and its rows between two places.

A place is a commit and the number of its first event; (commit, number) of a place that nothing is written at yet is where
the next will be. A little is fetched from the store as stored rows and decoded here; a lot is read from a snapshot, by
as many readers as there are.
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
from tenure.errors import InvalidArgument, JournalTrimmed, SnapshotExpired
from tenure.model.names import QueueName
from tenure.queueing.journal import cursor
from tenure.storage import keyspace, records

#: Up to this many events are fetched rather than read from a snapshot, and this many bytes at a time.
FEW = 20_000
_FETCH_BYTES = 4 * 1024 * 1024


class At(NamedTuple):
    commit: int
    number: int


class Journal:
    """The journal of a store that is opened for a look, and let go (`release`): its owner may be coming or going."""

    def __init__(self, url: str, ttl_ms: int, token: str | None = None) -> None:
        self._url = url
        self._token = token
        self._ttl_ms = ttl_ms
        self._store: Store | None = None
        self._names = Names(())
        #: The last snapshot taken, and up to where it reaches.
        self._place: Place | None = None
        self._reach = 0

    @property
    def _journal(self) -> Backend:
        """The store that is read, opened when it is first needed."""
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
        return _at(backend, low, end)

    def at_commit(self, commit: int) -> At:
        oldest, end = self.ends()
        self._check(commit, oldest, end)
        return _at(self._journal, commit, end)

    def after(self, start: At, end: At | None, most: int | None) -> tuple[At, At]:
        """How far to read, and where the journal ends now.

        To the end (that of now, or one that is known), or as far from `start` as `most` events go: in whole rows, at least one.
        """
        oldest, now = self.ends()
        end = now if end is None else end
        self._check(start.commit, oldest, end)
        return (end if most is None else _within(self._journal, start, end, most)), now

    def register(self, consumer: str, at: At) -> None:
        """Nothing from there on is trimmed, until the consumer is told of again or forgotten."""
        self._journal.events(cursor(at.commit, 0), 1, 0, consumer)

    def _check(self, commit: int, oldest: At, end: At) -> None:
        if commit < oldest.commit:
            trimmed = JournalTrimmed(cursor(oldest.commit, 0))
            trimmed.add_note(f"{self._url} keeps commits from {oldest.commit} on, and {commit} was asked for")
            raise trimmed
        if commit > end.commit:
            raise self._past(commit, end.commit)

    def _past(self, commit: int, end: int) -> InvalidArgument:
        return InvalidArgument(
            f"offset {commit} is past the end of the journal of {self._url}, which is {end}: it belongs to another store, "
            "or to this one before it was restored"
        )

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def fetch(self, query: Query, start: At, end: At) -> list[pa.RecordBatch]:
        """The events of [start, end), decoded here. Raises JournalTrimmed, and Corrupt naming a row that is missing."""
        batches, at = [], start.commit
        while at < end.commit:
            found = self._journal.journal_slice(at, end.commit, _FETCH_BYTES)
            if not found.rows:
                raise self._past(end.commit, found.newest + 1)
            rows = [(keyspace.commit(number), row) for number, row in enumerate(found.rows, at)]
            batch = events.decode(rows, at, query, lambda: self._known(rows))  # noqa: B023 - called at once
            if batch is not None and batch.num_rows:
                batches.append(batch)
            at += len(rows)
        return batches

    def _known(self, rows: list[tuple[bytes, bytes]]) -> Names:
        if not self._names.knows(events.queue_numbers(rows)):
            infos = self._journal.queues(None)
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
        self._place = snapshot_locations.place(
            self._url, backend.take_snapshot(snapshot_locations.NAME, self._ttl_ms), self._token
        )
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


def events_kept(url: str, token: str | None = None) -> int:
    """How many events the journal of a store has: by the numbers of its first and last, nothing is scanned."""
    looked = Journal(url, ttl_ms=0, token=token)
    try:
        oldest, end = looked.ends()
    finally:
        looked.release()
    return end.number - oldest.number


def _ends(backend: Backend) -> tuple[At, At]:
    looked = backend.journal_slice(None, None, 0)
    if looked.newest < looked.oldest:
        return At(1, 1), At(1, 1)
    last = _head(backend, looked.newest)
    return (
        At(looked.oldest, _head(backend, looked.oldest).first_number),
        At(looked.newest + 1, last.first_number + last.events),
    )


def _at(backend: Backend, commit: int, end: At) -> At:
    return end if commit >= end.commit else At(commit, _head(backend, commit).first_number)


def _within(backend: Backend, start: At, end: At, most: int) -> At:
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
    return _at(backend, low, end)


def _head(backend: Backend, commit: int) -> records.JournalHeader:
    return records.decode_journal_header(backend.journal_slice(commit, commit + 1, 1).rows[0])
