"""Rotating Bloom filters: they tell for sure what this process has not seen, in a few bits per key.

    current ◀── add          every `rotation` seconds current becomes previous, and what was previous is forgotten
    previous                 a key may have been seen if either has it; if neither has, not for one to two rotations

A filter may save a read. Whether something is there or gone is always decided by a step on the server.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from rbloom import Bloom

from tenure.clock import Clock


class RotatingFilter:
    def __init__(self, clock: Clock, capacity: int, rate: float, rotation_s: float) -> None:
        self._clock = clock
        self._capacity, self._rate, self._rotation_ms = capacity, rate, rotation_s * 1000
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._current = Bloom(capacity, rate)
        self._previous = Bloom(capacity, rate)
        self._since = clock.steady_ms()
        self._added = 0

    def add(self, key: bytes) -> None:
        with self._lock:
            # Past its capacity a filter has ever more false positives, so it rotates early.
            if self._added >= self._capacity or self._clock.steady_ms() - self._since >= self._rotation_ms:
                self._current, self._previous = Bloom(self._capacity, self._rate), self._current
                self._since, self._added = self._clock.steady_ms(), 0
            self._current.add(key)
            self._added += 1

    def __contains__(self, key: bytes) -> bool:
        """Whether it may have been added: False is sure."""
        return key in self._current or key in self._previous

    @property
    def memory_bytes(self) -> int:
        return (self._current.size_in_bits + self._previous.size_in_bits) // 8


class Filters(NamedTuple):
    """Those that are on. What each saves is in docs/adr/0020."""

    #: Idempotency keys of large jobs that this process sent: one of them is looked for before it is sent again.
    keys: RotatingFilter | None = None
    #: Ids that this process found gone: for one of them, whether it is there is asked before all that there is of it.
    ghosts: RotatingFilter | None = None
    #: Ids that this process removed, or found removed by others: for those, the same before a step that would write.
    cleanup: RotatingFilter | None = None

    @property
    def memory_bytes(self) -> int:
        return sum(one.memory_bytes for one in self if one is not None)
