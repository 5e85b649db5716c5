"""Numbers, spans and moments as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


def count(value: float | None) -> str:
    if value is None:
        return "–"
    if abs(value) >= 10_000_000:
        return f"{value / 1_000_000:.0f}M"
    if abs(value) >= 1_000_000:
        return f"{value / 1_000_000:.1f}M"
    if abs(value) >= 100_000:
        return f"{value / 1000:.0f}k"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def span(ms: float | None) -> str:
    """A duration, to two figures that matter."""
    if ms is None:
        return "–"
    if ms < SECOND:
        return f"{ms:.0f} ms"
    if ms < 10 * SECOND:
        return f"{ms / SECOND:.1f} s"
    if ms < MINUTE:
        return f"{ms / SECOND:.0f} s"
    for unit, larger, name, below in ((MINUTE, HOUR, "m", "s"), (HOUR, DAY, "h", "m"), (DAY, math.inf, "d", "h")):
        if ms < larger:
            whole, rest = divmod(ms, unit)
            part = round(rest / {"s": SECOND, "m": MINUTE, "h": HOUR}[below])
            return f"{whole:.0f} {name} {part} {below}" if part and whole < 10 else f"{round(ms / unit)} {name}"
    raise AssertionError("every span has a unit")


def share(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"


def moment(ms: int) -> str:
    return _at(ms).strftime("%Y-%m-%d %H:%M:%S")


def ticks(times: Sequence[int], step_ms: int, most: int = 7) -> list[tuple[int, str]]:
    """(moment, label) of at most about `most` steps. The date is said with the first one, and again where it changes.

    An axis longer than two days has a label a day, or every few days, and no hours.
    """
    if not times:
        return []
    if times[-1] + step_ms - times[0] > 2 * DAY:
        midnights = sorted({-(-at // DAY) * DAY for at in times if -(-at // DAY) * DAY <= times[-1]})
        every = max(1, math.ceil(len(midnights) / most))
        return [(at, _at(at).strftime("%-d %b")) for at in midnights[::every]]
    short = step_ms * len(times) < most * MINUTE
    found: list[tuple[int, str]] = []
    day = ""
    for at in times[:: max(1, math.ceil(len(times) / most))]:
        date = _at(at).strftime("%-d %b")
        clock = _at(at).strftime("%H:%M:%S" if short else "%H:%M")
        found.append((at, clock if date == day else f"{date} {clock}"))
        day = date
    return found


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def rate(value: float | None) -> str:
    """Per second, with as many figures as matter."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if value >= 100:
        return count(round(value))
    return f"{value:.{max(0, 1 - math.floor(math.log10(value)))}f}" if value >= 0.0001 else f"{value:.0e}"


def axis_rate(value: float | None) -> str:
    return "0" if not value else f"{value:g}" if value < 10_000 else count(value)


def nice_steps(top: float, about: int = 4) -> list[float]:
    """Round values from 0 to `top` or just above it, to label an axis with."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / about
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw - 1e-12)
    return [step * n for n in range(math.ceil(top / step - 1e-9) + 1)]


_SPANS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND, MINUTE, 2 * MINUTE,
    5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 30 * DAY,
)  # fmt: skip


def span_steps(low: float, high: float) -> list[float]:
    """Round durations that enclose [low, high], for a logarithmic axis."""
    below = [s for s in _SPANS if s <= low] or [_SPANS[0]]
    above = [s for s in _SPANS if s >= high] or [_SPANS[-1]]
    found = [float(s) for s in _SPANS if below[-1] <= s <= above[0]]
    every = max(1, math.ceil(len(found) / 6))
    kept = found[::every]
    return kept if kept[-1] == found[-1] else [*kept, found[-1]]
