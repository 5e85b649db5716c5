"""Shrinks a failing history: steps are removed as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.simulation.world import History


def failure_of(history: History) -> str | None:
    """Run a history. Returns its failure, or None."""
    try:
        history.run()
    except Exception as error:  # any error that a bug raises
        return f"{type(error).__name__}: {error}"
    return None


def shrunk(seed: int, numbers: Sequence[int], seconds: float = 30) -> list[int]:
    """A small subset of these steps that fails in the same way, found within `seconds`."""
    kind = _kind(failure_of(History(seed, numbers)))
    kept, until = list(numbers), time.monotonic() + seconds
    size = len(kept) // 2
    while size and time.monotonic() < until:
        place, before = 0, len(kept)
        while place < len(kept) and time.monotonic() < until:
            fewer = kept[:place] + kept[place + size :]
            if _kind(failure_of(History(seed, fewer))) == kind:
                kept = fewer
            else:
                place += size
        if len(kept) == before or size > 1:
            size //= 2
    return kept


def _kind(failure: str | None) -> str | None:
    """The class of an error, and the first words of its message."""
    return None if failure is None else failure[:40]
