"""What the owner keeps in memory beside the database: recent rows, where scans begin, counters, the journal's end.

All of it can be read again from the database, and is (`forget`) whenever a commit was interrupted. Everything here
requires that the writer's lock is held.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tenure.storage.keyspace import COUNTERS, FRONTS, JOBS, LEASES, NAMES, STATE
from tenure.storage.recent_rows import RecentRows
from tenure.storage.scan_heads import ScanHeads

#: Read again soon after they are written, by the claim and the ack of a job: the newest of them stay in memory.
RECENT_SPACES = (JOBS, STATE, LEASES)


class Memory:
    def __init__(self) -> None:
        #: By space: its newest rows; None where they are not kept.
        self.recent: list[RecentRows | None] = [
            RecentRows() if space in RECENT_SPACES else None for space in range(len(NAMES))
        ]
        self.heads = ScanHeads()
        #: Counters, as last written.
        self.counts: dict[bytes, int] = {}

    def forget(self) -> None:
        """Throw all of it away: it may differ from what is stored."""
        for recent in self.recent:
            if recent is not None:
                recent.clear()
        self.heads.clear()
        self.counts.clear()

    def learners(self, space: int) -> tuple[Callable[[bytes, bytes], None] | None, Callable[[bytes], None] | None]:
        """What to call for a row of this space that is put, and for one that is deleted; None: nothing is kept of it."""
        recent = self.recent[space]
        if recent is not None:
            return recent.put, recent.delete
        if space in FRONTS:
            return partial(self.heads.put, space), partial(self.heads.delete, space)
        if space == COUNTERS:
            return self._forget_count, self._forget_count
        return None, None

    def _forget_count(self, key: bytes, value: bytes = b"") -> None:
        self.counts.pop(key, None)

    def delete_range(self, space: int, begin: bytes, end: bytes) -> None:
        """These rows are being deleted."""
        if space in RECENT_SPACES:
            raise ValueError(f"rows of {NAMES[space]} are deleted one by one")
        if space == COUNTERS:
            for key in [key for key in self.counts if begin <= key < end]:
                del self.counts[key]
        elif space in FRONTS:
            for front in self.heads.fronts[space].values():
                front.forget()
