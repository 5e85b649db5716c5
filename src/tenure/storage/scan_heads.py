"""Where each front begins: a lower bound of the keys still there, kept in memory, never stored.

A log-structured engine walks over the tombstones of everything consumed before it meets the first live row (5.5 ms
for 100,000 of them). A queue is consumed from the front, so the front is remembered: a scan starts there, and
one that would end before it need not start at all. Everything here is done under the writer's lock; a key that is
written before its front's head lowers it, in the section that applies the batch.

Who takes the first row again and again has the first few read ahead (`Front.ahead`): opening an iterator for each costs
more than all else that is done to find it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tenure.storage.engine import Row, Space
from tenure.storage.keyspace import FRONTS, LAST

#: How many keys are read ahead, the first time and once it has proved worth it; and how many are kept.
FIRST_REACH, LAST_REACH = 2, 64
KEPT_AHEAD = 256


class Front:
    """The keys that start with `prefix`: none of them is before `head`."""

    __slots__ = ("ahead", "end", "head", "prefix", "reach", "whole")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.head = prefix
        self.end = (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big") if prefix else LAST
        #: The first keys there are, in their order, with no other before or between them; if it is the `whole` front,
        #: with no other behind them either. Empty and not whole: they are not known.
        self.ahead: list[bytes] = []
        self.whole = False
        #: How many to read ahead the next time.
        self.reach = FIRST_REACH

    def put(self, key: bytes) -> None:
        """This key is being written."""
        if key < self.head:
            self.head = key
        ahead = self.ahead
        if ahead and key <= ahead[-1]:
            at = bisect_left(ahead, key)
            if ahead[at] != key:
                ahead.insert(at, key)
        elif self.whole:
            if len(ahead) < KEPT_AHEAD:
                ahead.append(key)
            else:
                self.whole = False

    def put_from(self, key: bytes) -> None:
        """This key is being written, and others behind it."""
        if key < self.head:
            self.head = key
        if self.ahead and key > self.ahead[-1]:
            self.whole = False
        else:
            self.forget()

    def forget(self) -> None:
        """What was read ahead may be wrong: only the head stands."""
        self.ahead = []
        self.whole = False
        self.reach = FIRST_REACH


class Heads:
    def __init__(self) -> None:
        #: By space, then by prefix; a front is made when it is first scanned from its beginning.
        self.fronts: dict[Space, dict[bytes, Front]] = {space: {} for space in FRONTS}
        #: Whether keys were ever read ahead.
        self.read_ahead = False

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
            first = min(rows)[0]
            if first[:width] == max(rows)[0][:width]:  # and so are all between them
                front = fronts.get(first[:width])  # of one front only the first row matters
                if front is not None:
                    front.put_from(first)
                return
        for key, _ in rows:
            front = fronts.get(key[:width])
            if front is not None:
                front.put(key)

    def deleted(self, space: Space, keys: Sequence[bytes]) -> None:
        """These rows are being deleted."""
        if not self.read_ahead:
            return
        fronts, width = self.fronts[space], FRONTS[space]
        for prefix in {key[:width] for key in keys}:
            front = fronts.get(prefix)
            if front is not None and (front.ahead or front.whole):
                front.forget()
