"""The only module that reads the time.

A `Clock` has two readings. `wall_ms` is the calendar, which people set and NTP corrects: it may step either way.
`steady_ms` only moves forward, at the pace of real time, and is comparable between processes of the same boot
(`boot_id`). Leases and delays run on steady time: `StoreTime` maps it to the calendar once, when a store opens.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Protocol

#: CLOCK_BOOTTIME includes the time a laptop was suspended. Platforms without it use the monotonic clock.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Signal(Protocol):
    """The part of `threading.Event` that `Clock.wait` needs."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Clock(Protocol):
    """A source of time."""

    def wall_ms(self) -> int:
        """Return calendar milliseconds since 1970. They may step."""

    def steady_ms(self) -> int:
        """Return milliseconds that only move forward, at the pace of real time, equal for all processes of a boot."""

    def boot_id(self) -> str:
        """Return the id of the boot. `steady_ms` values are comparable only under equal boot ids."""

    def wait(self, signal: Signal, seconds: float, poll: float | None = None) -> bool:
        """Sleep until the signal is set, `seconds` have passed by this clock, or `poll` real seconds have passed.

        Return whether the signal is set.
        """


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1_000_000

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""  # unknown: never equal to a stored id, so each open reads the calendar again

    def wait(self, signal: Signal, seconds: float, poll: float | None = None) -> bool:
        return signal.wait(min(seconds, poll) if poll is not None else min(seconds, threading.TIMEOUT_MAX))


class ManualClock:
    """A clock for tests. It moves only by `advance`, `step` and `reboot`, which wake sleepers in `wait`."""

    def __init__(self, start_ms: int = 1_800_000_000_000) -> None:
        self._wall = start_ms
        self._unset = start_ms
        self._steady = 1_000_000
        self._boot = "manual-1"
        self._moved = threading.Condition()

    def wall_ms(self) -> int:
        return self._wall

    def steady_ms(self) -> int:
        return self._steady

    def unset_ms(self) -> int:
        """Return the calendar without the effect of `step`: what another machine's clock shows."""
        return self._unset

    def boot_id(self) -> str:
        return self._boot

    def advance(self, seconds: float) -> None:
        """Let real time pass."""
        with self._moved:
            self._wall += round(seconds * 1000)
            self._unset += round(seconds * 1000)
            self._steady += round(seconds * 1000)
            self._moved.notify_all()

    def step(self, seconds: float) -> None:
        """Set the calendar forward or back, while no real time passes."""
        with self._moved:
            self._wall += round(seconds * 1000)
            self._moved.notify_all()

    def reboot(self) -> None:
        """Start a new boot: steady time begins near zero again."""
        with self._moved:
            self._steady = 5_000
            self._boot += "'"
            self._moved.notify_all()

    def wait(self, signal: Signal, seconds: float, poll: float | None = None) -> bool:
        until = self._steady + seconds * 1000
        give_up = None if poll is None else time.monotonic() + poll
        with self._moved:
            while not signal.is_set() and self._steady < until:
                if give_up is not None and time.monotonic() >= give_up:
                    break
                # Setting the signal does not notify this condition, so poll it. The cost is acceptable in tests.
                self._moved.wait(0.001)
        return signal.is_set()
