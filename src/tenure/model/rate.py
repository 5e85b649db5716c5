"""Rate limits: a token bucket, whose state the caller stores as one number.

The number is the time at which the bucket will be full again, in nanoseconds of the store's time ("full at"). Each job
taken adds one interval. There is no refill step, so an idle bucket costs nothing; a bucket that is not stored is full.

    full at ─────┐                        capacity × interval
    ·····now·····│························│
             taken: (full at − now) / interval, rounded up; the rest is free to take
"""

from __future__ import annotations

import math
import re

import msgspec

from tenure.errors import InvalidArgument

_NS = 1_000_000_000
_MS = 1_000_000
#: The longest time to fill a bucket, so that every sum fits 64 bits.
_LONGEST = 366 * 86_400 * _NS
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)?\s*(s|m|h|d)\s*\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`jobs` in `per` seconds, and at most `burst` at once (default: `jobs`). Text: `Rate.parse("100/s")`."""

    jobs: float
    per: float = 1.0
    burst: int | None = None

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Parse 100/s, 10/m, 5/30s, 0.5/s, 1000/h or 20000/d. Raises InvalidArgument."""
        found = _RATE.match(text)
        if found is None:
            raise InvalidArgument(f"rate {text!r}: a number, a slash and a time, such as 100/s, 10/m or 5/30s")
        return cls(float(found[1]), float(found[2] or 1) * _UNITS[found[3]]).checked()

    def checked(self) -> Rate:
        for name in ("jobs", "per"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e9:
                raise InvalidArgument(f"rate {name}={value!r} must be a number above 0")
        burst: object = self.burst
        if burst is not None and (isinstance(burst, bool) or not isinstance(burst, int) or not 1 <= burst <= 10**9):
            raise InvalidArgument(f"rate burst={burst!r} must be a whole number of at least 1")
        if self.per * _NS < self.jobs or self.capacity * self.interval_ns > _LONGEST:
            raise InvalidArgument(f"rate {self}: from one a year to a thousand million a second")
        return self

    @property
    def interval_ns(self) -> int:
        return max(1, round(self.per * _NS / self.jobs))

    @property
    def capacity(self) -> int:
        return self.burst if self.burst is not None else max(1, math.ceil(self.jobs))

    def __str__(self) -> str:
        unit = next((unit for unit, seconds in _UNITS.items() if seconds == self.per), f"{self.per:g}s")
        shown = f"{self.jobs:g}/{unit}"
        return shown if self.burst is None else f"{shown} (burst {self.burst})"

    # ── the bucket ───────────────────────────────────────────────────────────────────────────────────────────────────

    def free(self, full_at_ns: int, now_ms: int) -> int:
        """How many jobs may be taken now; 0 or less: none."""
        interval = self.interval_ns
        return (self.capacity * interval - max(0, full_at_ns - now_ms * _MS)) // interval

    def take(self, full_at_ns: int, now_ms: int, count: int) -> int:
        """Take `count` jobs: returns the new `full_at_ns`."""
        return max(full_at_ns, now_ms * _MS) + count * self.interval_ns

    def free_at_ms(self, full_at_ns: int, count: int = 1) -> int:
        """When `count` jobs may be taken at once; `count` must not exceed `capacity`."""
        return -(-(full_at_ns - (self.capacity - count) * self.interval_ns) // _MS)
