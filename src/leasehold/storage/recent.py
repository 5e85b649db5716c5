"""The newest rows of a space, kept in memory: a job's rows are read again by its claim and its ack, mostly soon.

Two generations of at most `ROWS` each: when the younger is full, the older is dropped. Only small values are kept, so
the memory is bounded. All under the writer's lock, in the section that applies the batch; a failed write stops the
engine, so what is here is what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.storage.engine import Row

ROWS = 20_000
VALUE_BYTES = 512


class RecentRows:
    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._young.get(key) or self._old.get(key)

    def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows that are here; None says nothing about the rest."""
        young, old = self._young.get, self._old.get
        return [young(key) or old(key) for key in keys]

    def put(self, rows: Sequence[Row]) -> None:
        """These rows are being written."""
        if len(self._young) > ROWS:
            self._old, self._young = self._young, {}
        young = self._young
        for key, value in rows:
            if len(value) <= VALUE_BYTES:
                young[key] = value
            else:
                self.delete((key,))  # an older, smaller value must not outlive it

    def delete(self, keys: Sequence[bytes]) -> None:
        young, old = self._young, self._old
        for key in keys:
            young.pop(key, None)
            old.pop(key, None)
