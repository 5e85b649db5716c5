"""Numbers, spans and moments as people read them."""

from __future__ import annotations

import math
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
    for unit, larger, name, below, lower in (
        (MINUTE, HOUR, "m", "s", SECOND), (HOUR, DAY, "h", "m", MINUTE), (DAY, math.inf, "d", "h", HOUR),
    ):  # fmt: skip
        if round(ms / lower) * lower < larger:
            whole, part = divmod(round(ms / lower), unit // lower)
            return f"{whole} {name} {part} {below}" if part and whole < 10 else f"{round(ms / unit)} {name}"
    raise AssertionError("every span has a unit")


def share(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"


def moment(ms: int) -> str:
    return _at(ms).strftime("%Y-%m-%d %H:%M:%S")


_TICKS = (
    SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 15 * SECOND, 30 * SECOND, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE,
    15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY,
    91 * DAY, 364 * DAY,
)  # fmt: skip


def ticks(begin_ms: int, end_ms: int, most: int = 7) -> list[tuple[int, str]]:
    """(moment, label) of at most `most` round moments.

    A label has the date where the day begins, and the first one has.
    """
    size = next((size for size in _TICKS if (end_ms - begin_ms) / size <= most), _TICKS[-1])
    found: list[tuple[int, str]] = []
    day = ""
    for at in range(-(-begin_ms // size) * size, end_ms + 1, size):
        date, clock = _at(at).strftime("%-d %b"), _at(at).strftime("%H:%M:%S" if size < MINUTE else "%H:%M")
        label = date if size >= DAY or clock in ("00:00", "00:00:00") else clock if date == day else f"{date} {clock}"
        found.append((at, label))
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
    if kept[-1] != found[-1]:
        # The last one always; the one before it only where there is room for both.
        kept = [*(kept if (len(found) - 1) % every * 2 > every else kept[:-1] or kept), found[-1]]
    return kept
