"""Caches, for each front of a space, a lower bound of its keys. In memory only.

A front is the set of keys with one prefix, consumed in order. A log-structured engine walks over the tombstones of all
consumed rows before it reaches the first live one (5.5 ms for 100,000). So the head of each front is cached: a scan
starts there, and one that would end before it is skipped. Applying changes lowers the head if a key before it is
written. Requires for every call: the writer's lock is held.

For a caller that takes the first row repeatedly, the first few keys are read ahead (`Front.ahead`): opening an iterator
for each row costs more than the rest of the search.
"""

from __future__ import annotations

from bisect import bisect_left

from tenure.storage.keyspace import FRONTS, GROUP_READY, JOURNAL, LAST, Space

#: How many keys are read ahead: the first time, and at most; and how many are kept.
FIRST_REACH, LAST_REACH = 2, 64
KEPT_AHEAD = 256
#: The same of a front that has many beside it: each group has one.
_KEPT_OF_MANY = 4
#: How many fronts of a space are cached: there may be millions of groups and tenants.
FRONTS_KEPT = 20_000


class Front:
    """The keys that start with `prefix`: none of them is before `head`."""

    __slots__ = ("ahead", "emptied", "end", "head", "kept", "prefix", "reach", "whole")

    def __init__(self, prefix: bytes, kept: int = KEPT_AHEAD, *, appended: bool = False) -> None:
        """`kept`: how many keys are read ahead and kept at most."""
        self.prefix = prefix
        self.head = prefix
        self.end = (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big") if prefix else LAST
        #: The head of an empty front. If rows are `appended` without a call of `learn`, it is the prefix.
        self.emptied = prefix if appended else self.end
        #: The first keys of the front, in order and without gaps; if `whole`, all of its keys. Empty and not `whole`:
        #: not known.
        self.ahead: list[bytes] = []
        self.whole = False
        #: How many to read ahead the next time.
        self.reach = FIRST_REACH
        self.kept = kept

    def insert(self, key: bytes) -> None:
        """Add a key that is written between those read ahead. Keeps the first `kept`."""
        at = bisect_left(self.ahead, key)
        if self.ahead[at] != key:
            self.ahead.insert(at, key)
            if len(self.ahead) > self.kept:
                del self.ahead[self.kept :]
                self.whole = False

    def remove(self, key: bytes) -> None:
        """Remove a key that is deleted."""
        at = bisect_left(self.ahead, key)
        if at < len(self.ahead) and self.ahead[at] == key:
            del self.ahead[at]

    def forget(self) -> None:
        """Drop the keys read ahead, which may be wrong; keep the head."""
        self.ahead = []
        self.whole = False
        self.reach = FIRST_REACH


class ScanHeads:
    """The fronts of one space."""

    __slots__ = ("_appended", "_kept", "_width", "fronts")

    def __init__(self, space: Space) -> None:
        self._width = FRONTS[space]
        self._appended = space == JOURNAL
        self._kept = _KEPT_OF_MANY if space == GROUP_READY else KEPT_AHEAD
        #: By prefix; a front is made when it is first scanned from its beginning.
        self.fronts: dict[bytes, Front] = {}

    def front(self, prefix: bytes) -> Front | None:
        """The front with exactly this prefix, made if it is new; None: the prefix is not that of a front."""
        if len(prefix) != self._width:
            return None
        front = self.fronts.get(prefix)
        if front is None:
            if len(self.fronts) >= FRONTS_KEPT:
                self.fronts.clear()  # a front that is not cached is scanned from its prefix, and cached again
            front = self.fronts[prefix] = Front(prefix, self._kept, appended=self._appended)
        return front

    def learn(self, key: bytes, value: bytes | None) -> None:
        """Update the fronts for a key that is written, or deleted (value None). Not needed for rows of the journal."""
        front = self.fronts.get(key[: self._width])
        if front is None:
            return
        ahead = front.ahead
        if value is None:
            if ahead:
                if ahead[0] == key:
                    del ahead[0]
                else:
                    front.remove(key)
            return
        if key < front.head:
            front.head = key
        if ahead and key <= ahead[-1]:
            front.insert(key)
        elif front.whole:
            if len(ahead) < front.kept:
                ahead.append(key)
            else:
                front.whole = False
