"""Parse and format durations and times for people; verbs take seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tenure.clock import SystemClock

if TYPE_CHECKING:
    SecondsType = click.ParamType[float]
else:
    SecondsType = click.ParamType  # generic only since click 8.4

_CLOCK = SystemClock()
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(?P<number>-?[0-9]*\.?[0-9]+)\s*(?P<unit>ms|s|min|m|h|d|w)\Z")


def now_ms() -> int:
    return _CLOCK.wall_ms()


def seconds_of(text: str) -> float | None:
    """Parse `30`, `1.5`, `250ms`, `30s`, `5m`, `2h`, `7d`; None for any other text."""
    match = _DURATION.match(text.strip())
    if match:
        return float(match["number"]) * _UNITS[match["unit"]]
    try:
        return float(text)
    except ValueError:
        return None


class DurationType(SecondsType):
    """Seconds, or a number with its unit."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        seconds = seconds_of(str(value))
        if seconds is None:
            self.fail(
                f"{value!r} is not a duration: seconds, or a number with ms, s, m, h, d or w (30, 1.5, 5m)", param, ctx
            )
        return seconds


class MomentType(SecondsType):
    """A time in seconds since 1970: ISO 8601 (local time without a zone), or a duration relative to now.

    `direction` says what a bare duration means: +1 from now, -1 ago.
    """

    name = "moment"

    def __init__(self, direction: int) -> None:
        self.direction = direction

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value).strip()
        if text == "now":
            return now_ms() / 1000
        seconds = seconds_of(text)
        if seconds is not None and re.search("[a-z]$", text):
            return now_ms() / 1000 + self.direction * seconds
        try:
            if seconds is not None and seconds < 1e8:  # `--since 2024` is a year, not 34 minutes past 1970
                raise ValueError
            return seconds if seconds is not None else datetime.fromisoformat(text).astimezone().timestamp()
        except (ValueError, OverflowError, OSError):
            example = "2h (from now)" if self.direction > 0 else "2h (ago)"
            self.fail(f"{value!r} is not a time: an ISO 8601 time such as 2030-01-31T09:00, or {example}", param, ctx)


DURATION = DurationType()
FUTURE_TIME = MomentType(+1)
PAST_TIME = MomentType(-1)


def iso(ms: int | None) -> str | None:
    """Format a time as ISO 8601 in UTC, to the millisecond, for programs."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local(ms: int, *, precise: bool = False) -> str:
    """Format a local time, with its date unless that is today; `precise`: to the millisecond."""
    moment = datetime.fromtimestamp(ms / 1000, UTC).astimezone()
    today = datetime.fromtimestamp(now_ms() / 1000, UTC).astimezone().date()
    clock = moment.strftime("%H:%M:%S") + (f".{ms % 1000:03d}" if precise else "")
    return clock if moment.date() == today else f"{moment:%Y-%m-%d} {clock}"


def relative(ms: int | None) -> str:
    """Format a time relative to now: `in 30 s`, `2 min ago`, `now`."""
    if ms is None:
        return ""
    away = (ms - now_ms()) / 1000
    if abs(away) < 0.5:
        return "now"
    far = span(max(abs(away), 1))
    return f"in {far}" if away > 0 else f"{far} ago"


def span(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size, until in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} d"


def moment(ms: int | None) -> str:
    """Format a time and its distance from now: `14:03:20 · in 30 s`."""
    return "" if ms is None else f"{local(ms)} · {relative(ms)}"
