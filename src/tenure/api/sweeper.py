"""The background sweeper of an open store: a thread that calls `sweep`, again and again, until the store is gone.

It holds the store only while it sweeps. A store that its user forgot to close can thus be collected, and the thread
ends by itself; it is a daemon, and a fork of the process has none.
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

#: Between two passes when there is more to do: long enough for the workers to get at the store.
_BREATH = 0.001
#: The same complaint again after this long.
_REPEAT_MS = 60_000
_REMEMBERED = 100


class Sweeper:
    def __init__(self, clock: Clock, interval: float = 1.0) -> None:
        self.interval = interval
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def start(self, sweep: Sweep) -> None:
        """Call `sweep` from now on: at once again while it says `more`, else every interval."""
        if self._thread is not None:
            raise RuntimeError("this sweeper was started before")
        # The thread gets what it needs and neither this object nor the store, so that both can be collected.
        self._thread = threading.Thread(
            target=_run,
            args=(_weak(sweep), self._clock, self._stop, self.interval),
            name="tenure-sweeper",
            daemon=True,
        )
        self._thread.start()
        closed_at_exit(self, Layer.SWEEPER)

    def stop(self, timeout: float | None = None) -> None:
        """Return once the pass under way has ended. Stopping twice is fine; in a fork there is nothing to stop."""
        if os.getpid() != self._owner:
            return
        self._stop.set()
        # The sweeper's own thread may be the one that drops the last reference to a store.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def close_at_exit(self) -> None:
        """A daemon thread caught inside a driver while the interpreter is taken down may crash it: end it before."""
        self.stop(timeout=2.0)


def _weak(sweep: Sweep) -> Callable[[], Sweep | None]:
    if inspect.ismethod(sweep):
        return weakref.WeakMethod(sweep)
    return lambda: sweep


def _run(find: Callable[[], Sweep | None], clock: Clock, stop: threading.Event, interval: float) -> None:
    """Sweep until stopped, or until the store is closed or collected. No error ends it: nobody else would sweep."""
    complaints: dict[str, int] = {}
    more: bool | None = False
    while more is not None and not stop.is_set():
        try:
            more = _sweep_once(find, complaints, clock)
            if more:
                stop.wait(_BREATH)
            elif more is False:
                clock.wait(stop, interval)
        except Exception:  # noqa: BLE001 - not even the complaint could be logged (no file handles, no memory)
            more = False
            stop.wait(interval)


def _sweep_once(find: Callable[[], Sweep | None], complaints: dict[str, int], clock: Clock) -> bool | None:
    """Whether there is more to do at once; None: the store is gone. Nothing here holds the store after it returns."""
    sweep = find()
    if sweep is None:
        return None
    try:
        return sweep().more
    except StoreClosed:
        return None
    except Exception as exc:  # noqa: BLE001 - whatever it was, the next pass may do better
        _complain(exc, complaints, clock.steady_ms())
        return False


def _complain(error: Exception, complaints: dict[str, int], now_ms: int) -> None:
    """Log it, once a minute for each message. One that could not be logged is tried again with the next pass."""
    message = f"{type(error).__name__}: {error}"
    last = complaints.get(message)
    if last is not None and now_ms - last < _REPEAT_MS:
        return
    telemetry.warn("sweep_failed", error, message=message)
    if len(complaints) >= _REMEMBERED:
        complaints.clear()
    complaints[message] = now_ms
