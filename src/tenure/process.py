"""The only module with hooks for fork, exit and signals: what happens to this process's objects then.

    layer          in a forked child, from the top of this list     at exit, from the bottom of this list
    TELEMETRY      new locks for the meters                         -
    STORAGE        folder locks dropped, engines refuse to work     engines closed
    QUEUEING       new ids, new waiters, new watches                -
    BACKEND        sockets to other processes dropped               processes that read snapshots ended
    LISTENER       the owner's socket dropped                       requests under way answered, socket removed
    SWEEPER        -                                                sweeper threads stopped
    APPLICATION    -                                                stores that an `App` opened closed

A child renews a layer after the layers below it; exit closes a layer before the layers below it. A thread still inside
a driver while the interpreter shuts down would abort the process, so sweepers and listeners stop first.

The registry holds weak references. A child does not close what its parent opened. If one object raises, the others
still run; Python prints the exceptions on standard error.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from queue import SimpleQueue
from types import FrameType
from typing import Protocol


class Layer(IntEnum):
    TELEMETRY = 0
    STORAGE = 1
    QUEUEING = 2
    BACKEND = 3
    LISTENER = 4
    SWEEPER = 5
    APPLICATION = 6


class Renewable(Protocol):
    def renew_after_fork(self) -> None:
        """Replace locks and drop the parent's handles. Called in the forked child, which has one thread."""


class Closable(Protocol):
    def close_at_exit(self) -> None:
        """Close.

        Called when the interpreter exits, while threads and imports still work. Must tolerate a second call.
        """


#: Callbacks by layer, in the order of registration. There is no lock, because a fork could copy it while it is held.
_renewed: dict[Layer, dict[weakref.ref[Renewable], None]] = {layer: {} for layer in Layer}
_closed: dict[Layer, dict[weakref.ref[Closable], None]] = {layer: {} for layer in Layer}


def renewed_after_fork(obj: Renewable, layer: Layer) -> None:
    """Call `obj.renew_after_fork()` in every later forked child, as long as `obj` is alive."""
    held = _renewed[layer]
    held[weakref.ref(obj, lambda gone: held.pop(gone, None))] = None


def closed_at_exit(obj: Closable, layer: Layer) -> None:
    """Call `obj.close_at_exit()` when this process (not a forked child) exits, as long as `obj` is alive."""
    held = _closed[layer]
    held[weakref.ref(obj, lambda gone: held.pop(gone, None))] = None


@atexit.register
def close_all() -> None:
    """Close every registered object, from the top layer down, and the newest first within a layer."""
    closing = [found for layer in reversed(Layer) for held in reversed(list(_closed[layer])) if (found := held())]
    _forget_all()
    _call_all(found.close_at_exit for found in closing)


def _renew_all() -> None:
    _forget_all()
    _call_all(found.renew_after_fork for layer in Layer for held in list(_renewed[layer]) if (found := held()))


os.register_at_fork(after_in_child=_renew_all)


def end_forked_child(parent: int, error: BaseException | None = None) -> None:
    """End this process if it is a forked child of `parent`: it must not continue what only the parent may do.

    It ends as a program does: with the code of a SystemExit, with 1 after the traceback of another error, or with 0.
    """
    if os.getpid() == parent:
        return
    code = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            code = (error.code or 0) & 0xFF
        elif error is not None:
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)  # also if the streams are closed, or the error cannot be printed


def _forget_all() -> None:
    for held in _closed.values():
        held.clear()


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    raised: list[Exception] = []
    for call in calls:
        try:
            call()
        except Exception as exc:  # noqa: BLE001 - the others still run; all exceptions are raised together below
            raised.append(exc)
    if raised:
        # Python prints the message of an ExceptionGroup, not its members.
        raise ExceptionGroup("; ".join(f"{type(exc).__name__}: {exc}" for exc in raised), raised)


@contextmanager
def signals_handled(handle: Callable[[signal.Signals], None], *, interrupt_at_second: bool = False) -> Iterator[None]:
    """Call `handle`, in a separate thread, for each SIGTERM and SIGINT until the block ends.

    A signal handler runs between two bytecodes of the main thread. That thread may hold the lock of the event that the
    handler would set, and would wait for itself. So the handler only puts the number into a queue whose `put` is reentrant.

    `interrupt_at_second`: the second signal raises KeyboardInterrupt in the main thread. Outside the main thread, where
    Python allows no signal handlers, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: SimpleQueue[int | None] = SimpleQueue()
    first = True

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if interrupt_at_second and not first:
            raise KeyboardInterrupt
        first = False
        received.put(number)

    def watch() -> None:
        while (number := received.get()) is not None:
            handle(signal.Signals(number))

    watcher = threading.Thread(target=watch, name="tenure-signals", daemon=True)
    watcher.start()
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(TypeError, ValueError):  # a handler that was not set from Python is None
                signal.signal(number, handler)
        received.put(None)
        watcher.join()
