"""The status line below a worker's log on a terminal, refreshed four times a second."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from tenure.worker.runner import Worker

_STYLES = {"retried": "yellow", "dead": "red", "lost": "red"}
#: The seconds over which the rate is measured.
_WINDOW = 5.0


class WorkerLine:
    """`worker web-1 · 3 of 4 running · 1,204 done · 2 retried · 240/s`"""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._ended = False
        self._seen: deque[tuple[float, int]] = deque()
        self._live = Live(
            get_renderable=self._line, console=Console(stderr=True, highlight=False), refresh_per_second=4,
            redirect_stdout=sys.stdout.isatty(),  # handlers' output goes above the line
        )  # fmt: skip

    def __enter__(self) -> WorkerLine:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._live.stop()

    def _rate(self, done: int) -> float:
        now = time.monotonic()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        since, before = self._seen[0]
        return (done - before) / (now - since) if now > since else 0.0

    def _line(self) -> Text:
        worker = self._worker
        outcomes = worker.totals.outcomes
        line = Text(no_wrap=True, overflow="ellipsis")
        state = "stopped" if self._ended else "stopping" if worker.stopping else "working"
        line.append(state, style={"stopping": "yellow", "working": "green"}.get(state, "dim"))
        line.append(f" {worker.name}", style="bold")
        line.append(f" · {worker.running} of {worker.concurrency} running · {outcomes['done']:,} done")
        for name in ("retried", "dead", "lost"):
            if outcomes[name]:
                line.append(" · ")
                line.append(f"{outcomes[name]:,} {name}", style=_STYLES[name])
        line.append(f" · {self._rate(outcomes['done']):,.1f}/s")
        line.append(f" · {', '.join(worker.queue_names)}", style="dim")
        if state == "stopping":
            line.append(" · once more ends it at once", style="dim")
        elif state == "working" and worker.totals.last_task:
            line.append(f" · last {worker.totals.last_task}", style="dim")
        return line
