"""Caches beside the database: recent rows, where scans begin, counters.

All of it can be read again from the database; `forget` clears it whenever a commit was interrupted. Requires for every
call: the writer's lock is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from tenure.storage.keyspace import COUNTERS, FRONTS, GROUPS, JOBS, JOURNAL, LEASES, NAMES, STATE
from tenure.storage.scan_heads import ScanHeads

#: Spaces whose newest rows are cached: the claim and the ack of a job read them again soon after they are written.
RECENT_SPACES = (JOBS, STATE, LEASES, GROUPS)
#: After this many written bytes the older half of the recent rows is dropped. This bounds the cache.
RECENT_BYTES = 8 * 1024 * 1024
#: The most counters whose values are cached: a store may have millions of queues.
COUNTS_KEPT = 50_000
#: Up to so many fronts of a space are copied for a snapshot, while writers wait: 0.1 ms.
FRONTS_SHARED = 2_000


class Memory:
    def __init__(self) -> None:
        #: By space: its newest rows, the oldest first; None: not cached.
        self.recent: list[dict[bytes, bytes] | None] = [
            {} if space in RECENT_SPACES else None for space in range(len(NAMES))
        ]
        #: By space: where its scans begin; None: not cached.
        self.heads = [ScanHeads(space) if space in FRONTS else None for space in range(len(NAMES))]
        #: The counters' last written values.
        self.counts: dict[bytes, int] = {}
        self._written = 0

    def forget(self) -> None:
        """Clear all caches: they may differ from the database."""
        self._forget_rows()
        for heads in self.heads:
            if heads is not None:
                heads.fronts.clear()
        self.counts.clear()

    def learner(self, space: int) -> Callable[[bytes, bytes | None], None] | None:
        """The function to call with each row of this space that is put or deleted (value None); None: there is none.

        It does not update `recent`: the engine does that itself.
        """
        heads = self.heads[space]
        if heads is not None and space != JOURNAL:
            return heads.learn
        return self._forget_count if space == COUNTERS else None

    def _forget_count(self, key: bytes, value: bytes | None) -> None:
        self.counts.pop(key, None)

    def fronts_now(self, spaces: Iterable[int]) -> dict[int, dict[bytes, bytes]]:
        """By space and prefix of a front: a key that no key of the front is before, now. For readers of this moment."""
        found = {}
        for space in spaces:
            heads = self.heads[space]
            if heads is not None and len(heads.fronts) <= FRONTS_SHARED:
                found[space] = {prefix: front.head for prefix, front in heads.fronts.items()}
        return found

    def wrote(self, size: int) -> None:
        """Count written bytes; drop the older half of the recent rows each time they reach `RECENT_BYTES`."""
        if len(self.counts) > COUNTS_KEPT:
            self.counts.clear()
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
        """Update the caches for a range delete."""
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
