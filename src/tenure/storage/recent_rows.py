"""The newest rows of a space, kept in memory: a job's rows are read again by its claim and its ack, mostly soon.

Two generations of at most `ROWS` each: when the younger is full, the older is dropped. Only small values are kept, so
the memory is bounded. All under the writer's lock, in the section that applies the batch; a failed write stops the
engine, so what is here is what is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter

from tenure.storage.engine import Row

_value = itemgetter(1)
_NONE = repeat(None)
_all = deque[object](maxlen=0).extend
ROWS = 20_000
VALUE_BYTES = 512


class RecentRows:
    __slots__ = ("old", "young")

    def __init__(self) -> None:
        self.young: dict[bytes, bytes] = {}
        self.old: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.young.get(key) or self.old.get(key)

    def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows that are here; None says nothing about the rest."""
        found = list(map(self.young.get, keys))
        if None in found and self.old:
            old = self.old.get
            found = [value or old(key) for key, value in zip(keys, found, strict=True)]
        return found

    def put(self, rows: Sequence[Row]) -> None:
        """These rows are being written."""
        if len(self.young) > ROWS:
            self.turn()
        if not rows or max(map(len, map(_value, rows))) <= VALUE_BYTES:
            self.young.update(rows)
            return
        for key, value in rows:
            if len(value) <= VALUE_BYTES:
                self.young[key] = value
            else:
                self.delete((key,))  # an older, smaller value must not outlive it

    def turn(self) -> None:
        """Begin a generation: for whoever puts rows into `young` by hand, when `ROWS` of them are there."""
        self.old, self.young = self.young, {}

    def delete(self, keys: Sequence[bytes]) -> None:
        _all(map(self.young.pop, keys, _NONE))
        if self.old:
            _all(map(self.old.pop, keys, _NONE))
