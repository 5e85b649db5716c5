"""A progress bar for work that takes longer than a second: on stderr, on a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

PATIENCE_SECONDS = 1.0


class ProgressCallback(Protocol):
    """The `progress=` argument of verbs that work in chunks."""

    def __call__(self, done: int, total: int | None = None) -> None: ...


class Count(ProgressColumn):
    """A column `12,000 of 50,000`, or `12,000` while the total is unknown."""

    def render(self, task: Task) -> Text:
        if not task.completed and task.total is None:
            return Text("")
        total = "" if task.total is None else f" of {task.total:,.0f}"
        return Text(f"{task.completed:,.0f}{total}")


class DelayedBar:
    """A ProgressCallback with a bar that appears after PATIENCE_SECONDS and disappears at the end."""

    def __init__(self, what: str) -> None:
        self._lock = threading.Lock()
        self._ended = False
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            Count(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(what, total=None)
        self._timer = threading.Timer(PATIENCE_SECONDS, self._appear)
        self._timer.daemon = True

    def __call__(self, done: int, total: int | None = None) -> None:
        # Called from a verb's innermost loop, so this only stores the numbers: the bar's own thread draws.
        self._bar.update(self._task, completed=done, total=total)

    def start(self) -> None:
        self._timer.start()

    def end(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._ended = True
            self._bar.stop()

    def _appear(self) -> None:
        with self._lock:
            if not self._ended:
                self._bar.start()


def _ignore(done: int, total: int | None = None) -> None:
    """Do nothing: the callback if stderr is not a terminal."""


@contextmanager
def progress_bar(what: str) -> Iterator[ProgressCallback]:
    """Show `what` with a bar while the block runs, on a terminal only."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    bar = DelayedBar(what)
    bar.start()
    try:
        yield bar
    finally:
        bar.end()
