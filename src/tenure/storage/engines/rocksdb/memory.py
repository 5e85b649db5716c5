"""What the owner keeps in memory beside the database: recent rows, where scans begin, counters.

All of it can be read again from the database, and is (`forget`) whenever a commit was interrupted. Everything here
requires that the writer's lock is held.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from tenure.storage.keyspace import COUNTERS, FRONTS, GROUPS, JOBS, JOURNAL, LEASES, NAMES, STATE
from tenure.storage.scan_heads import ScanHeads

#: Read again soon after they are written, by the claim and the ack of a job: the newest of them stay in memory.
RECENT_SPACES = (JOBS, STATE, LEASES, GROUPS)
#: Bytes written after which the older half of the recent rows is dropped. They bound the memory that these take.
RECENT_BYTES = 8 * 1024 * 1024


class Memory:
    def __init__(self) -> None:
        #: By space: its newest rows, the oldest first; None where they are not kept.
        self.recent: list[dict[bytes, bytes] | None] = [
            {} if space in RECENT_SPACES else None for space in range(len(NAMES))
        ]
        #: By space: where its scans begin; None where that is not remembered.
        self.heads = [ScanHeads(space) if space in FRONTS else None for space in range(len(NAMES))]
        #: Counters, as last written.
        self.counts: dict[bytes, int] = {}
        self._written = 0

    def forget(self) -> None:
        """Throw all of it away: it may differ from what is stored."""
        self._forget_rows()
        for heads in self.heads:
            if heads is not None:
                heads.fronts.clear()
        self.counts.clear()

    def learner(self, space: int) -> Callable[[bytes, bytes | None], None] | None:
        """What to call for a row of this space that is put, or deleted (None); None: nothing need be told.

        Recent rows are not told: the engine writes into them itself.
        """
        heads = self.heads[space]
        if heads is not None and space != JOURNAL:
            return heads.learn
        return self._forget_count if space == COUNTERS else None

    def _forget_count(self, key: bytes, value: bytes | None) -> None:
        self.counts.pop(key, None)

    def wrote(self, size: int) -> None:
        """So many bytes were written: drop the older half of the recent rows once in a while."""
        self._written += size
        if self._written < RECENT_BYTES:
            return
        self._written = 0
        if size >= RECENT_BYTES:
            self._forget_rows()
            return
        for rows in self.recent:
            if rows is not None:
                for key in list(islice(rows, len(rows) // 2)):
                    del rows[key]

    def _forget_rows(self) -> None:
        for rows in self.recent:
            if rows is not None:
                rows.clear()

    def delete_range(self, space: int, begin: bytes, end: bytes) -> None:
        """These rows are being deleted."""
        if space == COUNTERS:
            for key in [key for key in self.counts if begin <= key < end]:
                del self.counts[key]
        recent = self.recent[space]
        if recent is not None:
            recent.clear()
        heads = self.heads[space]
        if heads is not None:
            for front in heads.fronts.values():
                front.forget()
