"""A thread of the worker that outlives any exception: claimer, settler, heartbeat, ticker, queue watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tenure.worker import log

#: The first pause after an exception; it doubles with each that follows, up to a second.
_FIRST_PAUSE = 0.05


class BackgroundThread(threading.Thread):
    """Calls `step` again and again until it returns True.

    What `step` raises is logged (`thread_failed`) and `step` is called again after a pause: a worker without one of its
    threads would keep leases, or claim, without ever settling.
    """

    def __init__(self, name: str, step: Callable[[], bool]) -> None:
        super().__init__(name=f"tenure-{name}", daemon=True)
        self._step = step
        #: What the last step raised; None while they succeed. For `worker.health()`.
        self.failure: str | None = None

    def run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                while not self._step():
                    pause, self.failure = _FIRST_PAUSE, None
                return
            except BaseException as exc:  # noqa: BLE001 - see above
                self.failure = repr(exc)
                log.error("thread_failed", thread=self.name, error=self.failure, exc_info=exc)
                time.sleep(pause)
                pause = min(2 * pause, 1.0)
