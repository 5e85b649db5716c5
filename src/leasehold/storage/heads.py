"""Where each front begins: a lower bound of the keys still there, kept in memory, never stored.

A log-structured engine walks over the tombstones of everything consumed before it meets the first live row (5.5 ms
for 100,000 of them). A queue is consumed from the front, so the front is remembered: a scan starts there, and
one that would end before it need not start at all. Everything here is done under the writer's lock; a key that is
written before its front's head lowers it, in the section that applies the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.storage.engine import Row, Space
from leasehold.storage.keyspace import FRONTS, LAST


class Front:
    """The keys that start with `prefix`: none of them is before `head`."""

    __slots__ = ("end", "head", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.head = prefix
        self.end = (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big") if prefix else LAST


class Heads:
    def __init__(self) -> None:
        #: By space, then by prefix; a front is made when it is first scanned from its beginning.
        self.fronts: dict[Space, dict[bytes, Front]] = {space: {} for space in FRONTS}

    def front(self, space: Space, prefix: bytes) -> Front | None:
        """The front that begins with exactly this prefix, or None where nothing is remembered."""
        if FRONTS.get(space) != len(prefix):
            return None
        return self.fronts[space].get(prefix) or self.made(space, prefix)

    def made(self, space: Space, prefix: bytes) -> Front:
        front = self.fronts[space][prefix] = Front(prefix)
        return front

    def lower(self, space: Space, rows: Sequence[Row]) -> None:
        """These rows are being written."""
        fronts, width = self.fronts[space], FRONTS[space]
        if len(rows) > 2:
            first = min(rows)
            if first[0][:width] == max(rows)[0][:width]:  # and so are all between them
                rows = (first,)  # of one front only the first row matters
        for key, _ in rows:
            front = fronts.get(key[:width])
            if front is not None and key < front.head:
                front.head = key
