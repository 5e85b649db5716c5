"""A thread of the worker that survives any exception: claimer, settler, heartbeat, ticker, queue watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tenure.worker import log

#: Seconds before the next step after an exception; doubled with each further one, up to a second.
_FIRST_PAUSE = 0.05


class BackgroundThread(threading.Thread):
    """Calls `step` repeatedly until it returns True.

    An exception of `step` is logged (`thread_failed`), and `step` is called again after a pause: a worker without one
    of its threads would hold leases, or claim, without ever settling.
    """

    def __init__(self, name: str, step: Callable[[], bool]) -> None:
        super().__init__(name=f"tenure-{name}", daemon=True)
        self._step = step
        #: The exception of the last step; None if it succeeded. For `worker.health()`.
        self.failure: str | None = None

    def run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                while not self._step():
                    pause, self.failure = _FIRST_PAUSE, None
                return
            except BaseException as exc:  # noqa: BLE001 - see the class's docstring
                self.failure = repr(exc)
                log.error("thread_failed", thread=self.name, error=self.failure, exc_info=exc)
                time.sleep(pause)
                pause = min(2 * pause, 1.0)
