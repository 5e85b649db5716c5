"""The counts and faults of a check, and a reader that continues after damaged rows.

Stray index rows are found by counting: the check looks up every row that must exist and counts it in `expected`. If a
space has exactly as many rows, none is stray; only if the counts differ are its rows checked one by one.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tenure.errors import Corrupt
from tenure.queueing.registry import RegisteredQueue
from tenure.storage import keyspace
from tenure.storage.engine import Row, Snapshot, Space

Progress = Callable[[int, int | None], None]


class Fault(NamedTuple):
    """A violated invariant; `mend` is the name of its repair (a key of `repair.MENDERS`), empty if there is none."""

    rule: str
    detail: str
    mend: str = ""
    queue: int = 0
    job: bytes = b""
    space: Space = -1
    key: bytes = b""
    number: int = 0


class Survey:
    #: Faults beyond this number are dropped (`truncated`), so that a badly damaged store does not fill the memory.
    LISTED = 10_000

    def __init__(self, reader: Snapshot, progress: Progress | None = None) -> None:
        self.reader = reader
        self.faults: list[Fault] = []
        self.truncated = False
        self.queues: dict[int, RegisteredQueue] = {}
        self.jobs = self.events = self.leases = 0
        #: Jobs by (queue, state).
        self.recount: Tally[tuple[int, int]] = Tally()
        #: Bytes of payloads and results, by queue.
        self.weight: Tally[int] = Tally()
        #: By space: the rows that must exist and were found.
        self.expected: Tally[Space] = Tally()
        #: Jobs that name each (queue, lease).
        self.held: Tally[tuple[int, bytes]] = Tally()
        #: Leased jobs of each group, by the key of its row.
        self.group_leased: Tally[bytes] = Tally()
        #: Jobs whose state cannot be read, so that their state is unknown; and jobs with other damage.
        self.unknown: set[tuple[int, bytes]] = set()
        self.damaged: set[tuple[int, bytes]] = set()
        #: Spaces that could not be read completely: their counts are not conclusive.
        self.unreadable: set[Space] = set()
        #: How many rows of each space were read.
        self.read: dict[Space, int] = {}
        self._progress = progress

    def add(self, fault: Fault) -> None:
        if len(self.faults) < self.LISTED:
            self.faults.append(fault)
        else:
            self.truncated = True

    def excused(self, queue: int, job: bytes) -> bool:
        """Whether the job's damage is a fault already: its rows are not reported as stray."""
        return (queue, job) in self.unknown or (queue, job) in self.damaged

    def say(self) -> None:
        if self._progress is not None:
            self._progress(self.jobs + self.events, None)

    def rows(self, space: Space, chunk: int = 1000) -> Iterator[list[Row]]:
        """All readable rows of a space.

        Each unreadable row is added as a fault. Reading continues after it if the engine gives its key.
        """
        begin = b""
        self.read[space] = 0
        while True:
            try:
                rows, damage = self.reader.salvage(space, begin, chunk)
            except Corrupt as exc:
                self._note_damage(space, exc)
                return
            for found in damage:
                self._note_damage(space, found)
            self.read[space] += len(rows) + len(damage)
            if rows:
                yield rows
            if len(rows) + len(damage) < chunk:
                return
            begin = max(*(key for key, _ in rows), *(found.key or b"" for found in damage), begin) + b"\0"

    def _note_damage(self, space: Space, exc: Corrupt) -> None:
        key = exc.key or b""
        detail = f"{keyspace.NAMES[space]}: {exc.detail}"
        if space == keyspace.STATE and len(key) == 20:
            queue, job = keyspace.split_of_queue(key)
            self.unknown.add((queue, job))
            self.add(Fault("damaged", detail, "rebuild_state", queue, job, space, key))
            return
        if space in _JOB_SPACES and len(key) >= 20:
            queue, job = keyspace.split_of_queue(key[:20])
            if not self.excused(queue, job):  # else the job is a fault already
                self.add(Fault("damaged", detail, "delete_row", queue, job, space, key))
            return
        if space == keyspace.CHILDREN and keyspace.is_child_block(key):
            self.add(Fault("damaged", detail, "replace_block", space=space, key=key))
            return
        if space == keyspace.PARENTS and keyspace.is_parents_row(key):
            queue, job = keyspace.split_of_queue(key[:20])
            self.add(Fault("damaged", detail, "rebuild_parents", queue, job, space, key))
            return
        self.unreadable.add(space)
        self.add(Fault("damaged", detail, "delete_row" if key and space in _EXPENDABLE else "", space=space, key=key))


_JOB_SPACES = (keyspace.JOBS, keyspace.NOTES, keyspace.PAYLOAD, keyspace.STEPS)
#: Spaces whose damaged rows may be deleted: they are rebuilt from other rows, or not needed.
_EXPENDABLE = (
    keyspace.READY, keyspace.LEASES, keyspace.LEASE_JOBS, keyspace.CLAIMS, keyspace.DUE, keyspace.DONE,
    keyspace.DEAD, keyspace.DEDUP, keyspace.COUNTERS, keyspace.REQUESTS, keyspace.LIMITS, keyspace.JOB_QUEUES, keyspace.TURNS,
    keyspace.GROUP_READY, keyspace.GROUPS, keyspace.BLOCKED,
)  # fmt: skip
