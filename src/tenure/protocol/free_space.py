"""Free disk space reserved for the store's own work.

A store on a full disk cannot write at all, not even to end jobs. So while less than the reserve is free, a server
refuses operations that add data. Operations that end, remove or move jobs are still accepted, and free space.
"""

from __future__ import annotations

import os
import shutil

from tenure.clock import Clock, SystemClock
from tenure.errors import Unavailable

#: The operations that add more data than they remove.
GROWING = frozenset({"enqueue", "restore", "begin_write", "publish", "put_piece", "load", "take_snapshot"})
#: Milliseconds for which a measurement is used.
_AGE_MS = 1000
#: The largest share of the disk that is reserved.
_SHARE = 0.05


class DiskNearlyFull(Unavailable):
    """The store's disk has only the reserve left. Nothing was written: free some space, then try again."""

    retry_after = 30.0
    for_callers = True

    def __init__(self, free: int, reserve: int) -> None:
        super().__init__(
            f"the store's disk is nearly full ({free // 2**20:,} MiB free, {reserve // 2**20:,} MiB are reserved):"
            " nothing more is taken in until jobs are done or removed, or the disk has more room"
        )


class FreeSpace:
    """The free space of a folder's disk, measured at most once a second."""

    def __init__(self, folder: str | os.PathLike[str] | None, reserve: int, clock: Clock | None = None) -> None:
        """`folder` is None for a store without one: `check` then always succeeds."""
        self._folder = folder
        self._reserve = reserve
        self._clock = clock or SystemClock()
        self._measured_ms: int | None = None
        self._full: DiskNearlyFull | None = None

    def check(self) -> None:
        """Raises DiskNearlyFull."""
        if self._folder is None:
            return
        now = self._clock.steady_ms()
        if self._measured_ms is None or now - self._measured_ms >= _AGE_MS:
            self._measured_ms = now
            self._full = self._measure(self._folder)
        if self._full is not None:
            raise self._full

    def _measure(self, folder: str | os.PathLike[str]) -> DiskNearlyFull | None:
        try:
            total, _, free = shutil.disk_usage(folder)
        except OSError:
            return None  # the store itself reports what is wrong with its folder
        reserve = min(self._reserve, int(total * _SHARE))
        return DiskNearlyFull(free, reserve) if free < reserve else None
