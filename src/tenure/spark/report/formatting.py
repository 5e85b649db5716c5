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
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def tick(ms: int, step_ms: int) -> str:
    at = datetime.fromtimestamp(ms / 1000, UTC)
    if step_ms >= DAY:
        return at.strftime("%d %b")
    if step_ms >= MINUTE:
        return at.strftime("%d %b") if at.hour == at.minute == 0 else at.strftime("%H:%M")
    return at.strftime("%H:%M:%S")


def nice_steps(top: float, about: int = 4) -> list[float]:
    """Round values from 0 to `top` or just above it, to label an axis with."""
    if top <= 0:
        return [0, 1]
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
