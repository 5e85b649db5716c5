"""The newest rows of a space, kept in memory: a job's rows are read again by its claim and its ack, mostly soon.

Two generations of at most `ROWS` each: when the younger is full, the older is dropped. Only small values are kept, so
the memory is bounded. Requires: the writer's lock is held.
"""

from __future__ import annotations

from collections.abc import Sequence

ROWS = 20_000
VALUE_BYTES = 512


class RecentRows:
    __slots__ = ("old", "young")

    def __init__(self) -> None:
        self.young: dict[bytes, bytes] = {}
        self.old: dict[bytes, bytes] = {}

    def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows that are here; None says nothing about the rest."""
        found = list(map(self.young.get, keys))
        if None in found and self.old:
            old = self.old.get
            found = [value or old(key) for key, value in zip(keys, found, strict=True)]
        return found

    def put(self, key: bytes, value: bytes) -> None:
        """This row is being written."""
        young = self.young
        if len(value) <= VALUE_BYTES:
            if len(young) > ROWS:
                self.old, self.young = young, {}
                young = self.young
            young[key] = value
        else:  # an older, smaller value must not outlive it
            young.pop(key, None)
            self.old.pop(key, None)

    def delete(self, key: bytes) -> None:
        """This row is being deleted."""
        self.young.pop(key, None)
        if self.old:
            self.old.pop(key, None)

    def clear(self) -> None:
        self.young, self.old = {}, {}
