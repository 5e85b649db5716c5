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

from tenure.storage.keyspace import FRONTS, JOURNAL, LAST, Space

#: How many keys are read ahead, the first time and once it has proved worth it; and how many are kept.
FIRST_REACH, LAST_REACH = 2, 64
KEPT_AHEAD = 256
#: How many fronts of a space are remembered: groups and tenants may be millions.
FRONTS_KEPT = 20_000


class Front:
    """The keys that start with `prefix`: none of them is before `head`."""

    __slots__ = ("ahead", "emptied", "end", "head", "prefix", "reach", "whole")

    def __init__(self, prefix: bytes, *, appended: bool = False) -> None:
        self.prefix = prefix
        self.head = prefix
        self.end = (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big") if prefix else LAST
        #: What the head becomes when nothing is found. Rows that are `appended` come behind it untold.
        self.emptied = prefix if appended else self.end
        #: The first keys there are, in order, with no other before or between them; if `whole`, with no other behind
        #: them either. Empty and not whole: they are not known.
        self.ahead: list[bytes] = []
        self.whole = False
        #: How many to read ahead the next time.
        self.reach = FIRST_REACH

    def insert(self, key: bytes) -> None:
        """This key is being written among those read ahead."""
        at = bisect_left(self.ahead, key)
        if self.ahead[at] != key:
            self.ahead.insert(at, key)

    def remove(self, key: bytes) -> None:
        """This key is being deleted."""
        at = bisect_left(self.ahead, key)
        if at < len(self.ahead) and self.ahead[at] == key:
            del self.ahead[at]

    def forget(self) -> None:
        """The keys read ahead may be wrong: only the head stands."""
        self.ahead = []
        self.whole = False
        self.reach = FIRST_REACH


class ScanHeads:
    """The fronts of one space."""

    __slots__ = ("_appended", "_width", "fronts")

    def __init__(self, space: Space) -> None:
        self._width = FRONTS[space]
        self._appended = space == JOURNAL
        #: By prefix; a front is made when it is first scanned from its beginning.
        self.fronts: dict[bytes, Front] = {}

    def front(self, prefix: bytes) -> Front | None:
        """The front that begins with exactly this prefix, or None where nothing is remembered."""
        if len(prefix) != self._width:
            return None
        front = self.fronts.get(prefix)
        if front is None:
            if len(self.fronts) >= FRONTS_KEPT:
                self.fronts.clear()  # a front that is not remembered is scanned from its beginning, and remembered anew
            front = self.fronts[prefix] = Front(prefix, appended=self._appended)
        return front

    def learn(self, key: bytes, value: bytes | None) -> None:
        """This key is being written; or deleted, if the value is None. Rows of the journal need not be told."""
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
            if len(ahead) < KEPT_AHEAD:
                ahead.append(key)
            else:
                front.whole = False
