"""A history that fails, made as short as can be: steps are left out as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.simulation.world import History


def failure_of(history: History) -> str | None:
    """Run it. How it fails, or None."""
    try:
        history.run()
    except Exception as error:  # whatever a bug raises
        return f"{type(error).__name__}: {error}"
    return None


def shrunk(seed: int, numbers: Sequence[int], seconds: float = 30) -> list[int]:
    """Few of these steps that fail as all of them do; as few as are found in so much time."""
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
    """The class of an error, and the first words of what it says."""
    return None if failure is None else failure[:40]
