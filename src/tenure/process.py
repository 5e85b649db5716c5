"""What happens to the objects of this process when it forks and when it ends: the only place with such hooks.

    layer          in a forked child, from the top of this list     at exit, from the bottom of this list
    TELEMETRY      new locks for the meters                         -
    STORAGE        folder locks dropped, engines refuse to work     engines closed
    QUEUEING       new ids, new waiters, new watches                -
    BACKEND        sockets to other processes dropped               processes that read snapshots ended
    LISTENER       the owner's socket dropped                       requests under way answered, socket removed
    SWEEPER        -                                                sweeper threads stopped
    APPLICATION    -                                                stores that an `App` opened closed

A child renews a layer after those it stands on; the end closes a layer before those it stands on. A thread that is
still inside a driver when the interpreter is taken down would abort the process: hence sweepers and listeners first.

Objects are held weakly. What a parent opened is the parent's to close: a child forgets it. An object that raises does
not keep the others from their turn; Python reports what was raised on standard error.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterable
from enum import IntEnum
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
        """Runs in the child, which has one thread: replace locks and drop handles that are the parent's."""


class Closable(Protocol):
    def close_at_exit(self) -> None:
        """Runs when the interpreter ends, while threads and imports still work. Closing twice must be fine."""


#: By layer; within one, in the order of registration (a dict keeps it). No lock: a fork must not find one held.
_renewed: dict[Layer, dict[weakref.ref[Renewable], None]] = {layer: {} for layer in Layer}
_closed: dict[Layer, dict[weakref.ref[Closable], None]] = {layer: {} for layer in Layer}


def renewed_after_fork(obj: Renewable, layer: Layer) -> None:
    """Call `obj.renew_after_fork()` in every later forked child, as long as someone else holds `obj`."""
    held = _renewed[layer]
    held[weakref.ref(obj, lambda gone: held.pop(gone, None))] = None


def closed_at_exit(obj: Closable, layer: Layer) -> None:
    """Call `obj.close_at_exit()` when this process ends (not a forked child), as long as someone else holds `obj`."""
    held = _closed[layer]
    held[weakref.ref(obj, lambda gone: held.pop(gone, None))] = None


@atexit.register
def close_all() -> None:
    """Close what is still open, from the top layer down; within a layer, what was opened last comes first."""
    closing = [found for layer in reversed(Layer) for held in reversed(list(_closed[layer])) if (found := held())]
    _forget_all()
    _each(found.close_at_exit for found in closing)


def _renew_all() -> None:
    _forget_all()
    _each(found.renew_after_fork for layer in Layer for held in list(_renewed[layer]) if (found := held()))


os.register_at_fork(after_in_child=_renew_all)


def _forget_all() -> None:
    for held in _closed.values():
        held.clear()


def _each(calls: Iterable[Callable[[], None]]) -> None:
    raised: list[Exception] = []
    for call in calls:
        try:
            call()
        except Exception as exc:  # noqa: BLE001 - the others still get their turn; all are raised together below
            raised.append(exc)
    if raised:
        # Python prints the group's message, and not what is in it.
        raise ExceptionGroup("; ".join(f"{type(exc).__name__}: {exc}" for exc in raised), raised)
