"""`Serving.watch` for a backend without change notifications: one thread notifies every watch every 50 ms."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tenure.contract.backend import Topic

#: Seconds between two notifications: the longest delay until a job is found.
_INTERVAL_S = 0.05


class PolledWatch:
    __slots__ = ("_poller", "deadline", "notify")

    def __init__(self, poller: Poller, seconds: float, notify: Callable[[], None]) -> None:
        self._poller = poller
        self.deadline = time.monotonic() + seconds
        self.notify = notify

    def left_ms(self) -> int:
        return max(0, round((self.deadline - time.monotonic()) * 1000))

    def again(self) -> None:
        """Do nothing: every round notifies."""

    def close(self) -> None:
        self._poller.leave(self)


class Poller:
    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._watches: dict[PolledWatch, None] = {}
        self._running = False

    def watch(self, topics: Sequence[Topic], wait_ms: int, notify: Callable[[], None]) -> PolledWatch:
        made = PolledWatch(self, wait_ms / 1000, notify)
        with self._lock:
            self._watches[made] = None
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="tenure-poller", daemon=True).start()
        return made

    def leave(self, watch: PolledWatch) -> None:
        with self._lock:
            self._watches.pop(watch, None)

    def _run(self) -> None:
        """Notify all watches every round; end with the last watch."""
        while True:
            time.sleep(_INTERVAL_S)
            with self._lock:
                waiting = list(self._watches)
                if not waiting:
                    self._running = False
                    return
            for watch in waiting:
                watch.notify()
