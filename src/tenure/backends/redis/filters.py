"""Rotating Bloom filters, which tell what this process has certainly not seen, in a few bits per key.

    current ◀── add          every `rotation` seconds current becomes previous, and the old previous is dropped
    previous                 a key may have been seen if either has it; if neither has, not for one to two rotations

A filter only saves reads. A step on the server always decides whether a job exists.
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
            # Past its capacity a filter has more and more false positives, so it rotates early.
            if self._added >= self._capacity or self._clock.steady_ms() - self._since >= self._rotation_ms:
                self._current, self._previous = Bloom(self._capacity, self._rate), self._current
                self._since, self._added = self._clock.steady_ms(), 0
            self._current.add(key)
            self._added += 1

    def __contains__(self, key: bytes) -> bool:
        """Whether the key may have been added. False is certain."""
        return key in self._current or key in self._previous

    @property
    def memory_bytes(self) -> int:
        return (self._current.size_in_bits + self._previous.size_in_bits) // 8


class Filters(NamedTuple):
    """The enabled filters; docs/adr/0020 says what each saves."""

    #: Idempotency keys of large jobs that this process sent: before it sends one again, it looks the key up.
    keys: RotatingFilter | None = None
    #: Ids that this process found gone: for these, it checks for existence before it reads the whole job.
    ghosts: RotatingFilter | None = None
    #: Ids that this process removed, or found removed: for these, it checks for existence before a step that writes.
    cleanup: RotatingFilter | None = None

    @property
    def memory_bytes(self) -> int:
        return sum(one.memory_bytes for one in self if one is not None)
