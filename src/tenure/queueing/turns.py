"""The turn index: which of many sub-queues is served next. Weighted start-time fair queueing.

    scope    what takes turns: the tenants of the store, the queues of a tenant, the groups of one priority of a queue
    sub      one of them
    place    its row: when it is served next

A sub-queue's virtual time grows by what it was given, divided by its weight; the one with the least is next. One that was
idle starts at the virtual time of the one that is next, so that it saves up no turns; so does one that was PARKED or
BLOCKED and comes back. A place has one of three states:

    ACTIVE   it may have work, and stands in the order of virtual time
    PARKED   it has none before a moment: a row in the order of time brings it back
    BLOCKED  it is paused or at a limit: whoever lifts that brings it back

A sub-queue without work keeps its place until its turn comes, and loses it in the transaction that sees it empty: an
enqueue writes the same rows, so that no job is left without a place.

Requires: all places that a transaction moves are read before the first is moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Transaction
from tenure.storage.keyspace import DUE, TURNS, Due
from tenure.storage.records import TurnRecord, new_tuple

#: What one job adds to the virtual time of a sub-queue of weight 1.
ONE_JOB = 1 << 20
#: Sub-queues that are read at once, the first time and later: most claims are served by the first.
_FIRST_PAGE, _PAGE = 2, 32


class Status(IntEnum):
    """Stored on disk: do not renumber."""

    ACTIVE = 1
    PARKED = 2
    BLOCKED = 3


#: As records hold them.
ACTIVE, PARKED, BLOCKED = map(int, Status)


class Sub(NamedTuple):
    """A sub-queue: its scope, its name there, and what its row of `due` says."""

    scope: bytes
    name: bytes
    #: The queue's number, and the reference.
    due: tuple[int, bytes] = (0, b"")

    def parked_row(self, at_ms: int) -> tuple[int, bytes]:
        """Space and key of the row that brings it back."""
        return DUE, keyspace.due(Due.TURN, at_ms, *self.due)


def place(reader: Reader, sub: Sub) -> TurnRecord | None:
    raw = reader.get(TURNS, keyspace.turn_place(sub.scope, sub.name))
    return None if raw is None else records.decode_turn(raw)


def virtual_time(reader: Reader, scope: bytes) -> int:
    """The scope's own: of the sub-queue that is next."""
    first = reader.keys(TURNS, *keyspace.turn_range(scope), 1)
    return keyspace.split_turn(first[0])[0] if first else 0


class InTurn:
    """(virtual time, name) of the sub-queues that are ACTIVE, the next first.

    `snapshot`: takes no conflict with others who move places. The caller reads the place of each that it serves.
    """

    __slots__ = ("_at", "_end", "_keys", "_page", "_reader", "_snapshot")

    def __init__(self, reader: Reader, scope: bytes, *, snapshot: bool = False) -> None:
        begin, self._end = keyspace.turn_range(scope)
        self._reader, self._snapshot = reader, snapshot
        self._page, self._at = _FIRST_PAGE, 0
        self._keys = reader.keys(TURNS, begin, self._end, _FIRST_PAGE, snapshot=snapshot)

    @property
    def named(self) -> bool:
        """Whether one of the first has a name. Only one of them has none."""
        keys = self._keys
        return len(keys) > 1 or (bool(keys) and len(keys[0]) > keyspace.TURN_BYTES)

    def peek(self) -> tuple[int, bytes] | None:
        """The next one; None: there are no more."""
        keys = self._keys
        if self._at == len(keys):
            if len(keys) < self._page:
                return None
            begin, self._page, self._at = keys[-1] + b"\0", _PAGE, 0
            keys = self._keys = self._reader.keys(TURNS, begin, self._end, _PAGE, snapshot=self._snapshot)
            if not keys:
                return None
        return keyspace.split_turn(keys[self._at])

    def step(self) -> None:
        """Go on behind it."""
        self._at += 1

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        while (found := self.peek()) is not None:
            yield found
            self.step()


def served(record: TurnRecord, jobs: int, weight: float) -> TurnRecord:
    """Its place after it was given so many jobs."""
    return record._replace(virtual_time=record.virtual_time + round(jobs * ONE_JOB / weight))


def arrived(now: int, weight: float) -> TurnRecord:
    """A place for one whose past is not kept: behind what each of the others gets next, before what they get then.

    At the very time of what they get then, the order of the names would decide, and the last name would get half.
    """
    return new_tuple(TurnRecord, (ACTIVE, 0, now + round(ONE_JOB / weight) - 1, b""))


def activated(now: int, name: bytes = b"") -> TurnRecord:
    """A place from which it is served in turn, for a sub-queue that is new or comes back. `now`: the scope's virtual time.

    A virtual time that a PARKED or BLOCKED place has does not count. It lost its turn when that came, so it owes nothing
    to the others. And the scope's time starts again at 0 when none is ACTIVE: measured by that, it would owe everything.
    """
    return TurnRecord(ACTIVE, 0, now, name)


def parked(before: TurnRecord, at_ms: int) -> TurnRecord:
    return before._replace(status=PARKED, at_ms=at_ms)


def blocked(before: TurnRecord) -> TurnRecord:
    return before._replace(status=BLOCKED, at_ms=0)


def sooner(before: TurnRecord, at_ms: int, now: int, lifted: bool = False) -> int | None:
    """From when on a sub-queue has a turn that has one from this moment on, too; None: its place stays as it is."""
    if before.status == PARKED:
        if before.at_ms <= now:
            return now  # its moment has come, and is not put off
        return at_ms if at_ms < before.at_ms else None
    return at_ms if before.status == BLOCKED and lifted else None


def move(tx: Transaction, sub: Sub, before: TurnRecord | None, after: TurnRecord | None) -> None:
    """Change a place from what was read to what is to be; None: there is none."""
    if before == after:
        return
    writes = tx.writes
    if before is not None and before.status == ACTIVE:
        writes.append((TURNS, keyspace.turn(sub.scope, before.virtual_time, sub.name), None))
    elif before is not None and before.status == PARKED:
        writes.append((*sub.parked_row(before.at_ms), None))
    if after is not None and after.status == ACTIVE:
        writes.append((TURNS, keyspace.turn(sub.scope, after.virtual_time, sub.name), b""))
    elif after is not None and after.status == PARKED:
        writes.append((*sub.parked_row(after.at_ms), b""))
    key = keyspace.turn_place(sub.scope, sub.name)
    writes.append((TURNS, key, None if after is None else records.encode_turn(after)))
