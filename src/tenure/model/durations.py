"""Conversion of durations and points in time, as users write them, to whole milliseconds."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from tenure.errors import InvalidArgument

Duration = float | timedelta
Moment = float | datetime

#: A hundred years: longer is a mistake in units, and every sum of two such spans still fits the stored 64 bits.
MAX_MS = 100 * 366 * 86_400_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def duration_ms(name: str, value: object, *, minimum_ms: int = 0) -> int:
    """A duration in milliseconds, rounded up so that no job is early and no lease is short. Raises InvalidArgument."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = value
    else:
        raise InvalidArgument(f"{name} must be seconds or a timedelta, not {value!r}")
    if not -MAX_MS / 1000 <= seconds <= MAX_MS / 1000:  # also refuses NaN
        raise InvalidArgument(f"{name}={value!r} is not a usable duration (at most 100 years)")
    # A timedelta is divided as an integer: its float of seconds is not exact to the millisecond.
    ms = -(-value // _MS) if isinstance(value, timedelta) else math.ceil(round(seconds * 1000, 3))
    if ms < minimum_ms:
        raise InvalidArgument(f"{name}={value!r} must be {'more than 0' if minimum_ms else '0 or more'}")
    return ms


def moment_ms(name: str, value: object) -> int:
    """Milliseconds since 1970 of a datetime with a time zone, or of seconds since 1970. Raises InvalidArgument."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument(f"{name}={value!r} has no time zone: use datetime.now(timezone.utc) or the like")
        seconds = value.timestamp()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = value
    else:
        raise InvalidArgument(f"{name} must be a datetime or seconds since 1970, not {value!r}")
    if not 0 <= seconds <= MAX_MS / 1000 * 2:
        raise InvalidArgument(f"{name}={value!r} is not a usable moment")
    if isinstance(value, datetime):
        return -((_EPOCH - value) // _MS)  # rounded up, in integers: a float is not exact to the millisecond
    return math.ceil(round(seconds * 1000, 3))


def as_datetime(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
