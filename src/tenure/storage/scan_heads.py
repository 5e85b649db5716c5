"""Where each front begins: a lower bound of the keys still there, kept in memory, never stored.

A log-structured engine walks over the tombstones of everything consumed before it meets the first live row (5.5 ms
for 100,000 of them). A queue is consumed from the front, so the front is remembered: a scan starts there, and one
that would end before it need not start at all. Requires: the writer's lock is held; a key that is written before its
front's head lowers it, in the section that applies the changes.

A caller that takes the first row again and again has the first few keys read ahead (`Front.ahead`): opening an
iterator for each costs more than everything else that is done to find it.
"""

from __future__ import annotations

from bisect import bisect_left

from tenure.storage.keyspace import FRONTS, LAST, Space

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
        #: The first keys there are, in order, with no other before or between them; if `whole`, with no other behind
        #: them either. Empty and not whole: they are not known.
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

    def delete(self, key: bytes) -> None:
        """This key is being deleted."""
        ahead = self.ahead
        if ahead:
            if ahead[0] == key:
                del ahead[0]
            else:
                at = bisect_left(ahead, key)
                if at < len(ahead) and ahead[at] == key:
                    del ahead[at]

    def forget(self) -> None:
        """The keys read ahead may be wrong: only the head stands."""
        self.ahead = []
        self.whole = False
        self.reach = FIRST_REACH


class ScanHeads:
    def __init__(self) -> None:
        #: By space, then by prefix; a front is made when it is first scanned from its beginning.
        self.fronts: dict[Space, dict[bytes, Front]] = {space: {} for space in FRONTS}

    def front(self, space: Space, prefix: bytes) -> Front | None:
        """The front that begins with exactly this prefix, or None where nothing is remembered."""
        if FRONTS.get(space) != len(prefix):
            return None
        fronts = self.fronts[space]
        front = fronts.get(prefix)
        if front is None:
            front = fronts[prefix] = Front(prefix)
        return front

    def put(self, space: Space, key: bytes, value: bytes = b"") -> None:
        """This key is being written."""
        front = self.fronts[space].get(key[: FRONTS[space]])
        if front is not None:
            front.put(key)

    def delete(self, space: Space, key: bytes) -> None:
        """This key is being deleted."""
        front = self.fronts[space].get(key[: FRONTS[space]])
        if front is not None and front.ahead:
            front.delete(key)

    def clear(self) -> None:
        for fronts in self.fronts.values():
            fronts.clear()
