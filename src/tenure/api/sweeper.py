"""The background sweeper of an open store: a daemon thread that calls `sweep` repeatedly.

The thread references the store only while it sweeps, so a store that its user did not close can still be
garbage-collected; then the thread ends. A forked process has no sweeper.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import Callable

from tenure import telemetry
from tenure.clock import Clock
from tenure.errors import StoreClosed
from tenure.model.job import Swept
from tenure.process import Layer, closed_at_exit

Sweep = Callable[[], Swept]

#: Seconds between two passes while there is more to do, so that workers get access to the store.
_PAUSE_S = 0.001
#: Milliseconds before the same error is logged again.
_LOG_AGAIN_MS = 60_000
_REMEMBERED = 100


class Sweeper:
    def __init__(self, clock: Clock, interval: float = 1.0) -> None:
        self.interval = interval
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def start(self, sweep: Sweep) -> None:
        """Call `sweep` from now on: again at once while it reports `more`, else at every interval."""
        if self._thread is not None:
            raise RuntimeError("this sweeper was started before")
        # The thread gets neither this object nor the store, so that both can be garbage-collected.
        self._thread = threading.Thread(
            target=_run,
            args=(_weak(sweep), self._clock, self._stop, self.interval),
            name="tenure-sweeper",
            daemon=True,
        )
        self._thread.start()
        closed_at_exit(self, Layer.SWEEPER)

    def stop(self, timeout: float | None = None) -> None:
        """Stop, and return once the current pass has ended. Stopping twice is fine; a fork has nothing to stop."""
        if os.getpid() != self._owner:
            return
        self._stop.set()
        # The sweeper's own thread may drop the last reference to a store.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def close_at_exit(self) -> None:
        """Stop before the interpreter shuts down: a daemon thread inside a driver could then crash the process."""
        self.stop(timeout=2.0)


def _weak(sweep: Sweep) -> Callable[[], Sweep | None]:
    if inspect.ismethod(sweep):
        return weakref.WeakMethod(sweep)
    return lambda: sweep


def _run(find: Callable[[], Sweep | None], clock: Clock, stop: threading.Event, interval: float) -> None:
    """Sweep until stopped, or until the store is closed or collected.

    Survives every error: nothing else would sweep.
    """
    logged_at: dict[str, int] = {}
    more: bool | None = False
    while more is not None and not stop.is_set():
        try:
            more = _sweep_once(find, logged_at, clock)
            if more:
                stop.wait(_PAUSE_S)
            elif more is False:
                clock.wait(stop, interval)
        except Exception:  # noqa: BLE001 - logging failed too (no file handles, no memory)
            more = False
            stop.wait(interval)


def _sweep_once(find: Callable[[], Sweep | None], logged_at: dict[str, int], clock: Clock) -> bool | None:
    """Make one pass. Return whether there is more to do at once, or None if the store is gone.

    Holds no reference to the store after it returns.
    """
    sweep = find()
    if sweep is None:
        return None
    try:
        telemetry.register_collectors()
        return sweep().more
    except StoreClosed:
        return None
    except Exception as exc:  # noqa: BLE001 - whatever the error, the next pass may succeed
        _log_error(exc, logged_at, clock.steady_ms())
        return False


def _log_error(error: Exception, logged_at: dict[str, int], now_ms: int) -> None:
    """Log the error, at most once a minute for each message. If logging fails, the next pass tries again."""
    message = f"{type(error).__name__}: {error}"
    last = logged_at.get(message)
    if last is not None and now_ms - last < _LOG_AGAIN_MS:
        return
    telemetry.warn("sweep_failed", error, message=message)
    if len(logged_at) >= _REMEMBERED:
        logged_at.clear()
    logged_at[message] = now_ms
