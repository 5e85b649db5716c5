"""Shrinks a failing history: steps are removed as long as it fails in the same way."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence

from tests.simulation.world import History

#: Seconds of a core after which a history is in a loop: most take a fiftieth of one.
ENDLESS = 10.0


class Endless(BaseException):
    """None of our handlers may catch this."""


def failure_of(history: History) -> str | None:
    """Run a history. Returns its failure, or None. Call it in the main thread."""
    try:
        with _limited():
            history.run()
    except Endless:
        return f"Endless: it is in a loop: it has taken {ENDLESS:.0f} seconds of a core"
    except Exception as error:  # any error that a bug raises
        return f"{type(error).__name__}: {error}"
    return None


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise Endless in the body once it has taken so many seconds of a core."""

    def end(number: int, frame: object) -> None:
        raise Endless

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, ENDLESS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


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
