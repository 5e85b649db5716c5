"""Who is inside the map: transactions, for a moment, and snapshots, for as long as they are held.

The map moves when it grows, and a transaction that is inside would read unmapped memory. So a mover waits until the
snapshots are closed, then keeps everyone out until those inside have left. While it waits for snapshots others still
come and go: the holder of a snapshot may need a transaction to get done with it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from tenure.errors import StoreClosed, Unavailable
from tenure.locks import under_lock

_LOOK_AGAIN = 0.05  # seconds; a snapshot that was dropped, not closed, tells nobody


class Gate:
    def __init__(self) -> None:
        # Re-entrant, since the garbage collector may run a finalizer that comes here at any point.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        #: The threads inside. A set, not a count: a thread is inside once, and one that an exception kept from leaving
        #: is set right when it comes again.
        self._inside: set[int] = set()
        self._moving = False
        self._closed = False
        #: Weakly held: a snapshot that nobody holds any more holds nothing up.
        self._snapshots: weakref.WeakSet[object] = weakref.WeakSet()

    @under_lock
    def enter(self) -> None:
        while self._moving:
            self._changed.wait()
        if self._closed:
            raise StoreClosed("this store was closed")
        self._inside.add(get_ident())

    @under_lock
    def leave(self) -> None:
        """Leaving twice is fine."""
        self._inside.discard(get_ident())
        if self._moving or self._closed:
            self._changed.notify_all()

    @under_lock
    def hold(self, snapshot: object) -> None:
        """Called by one who is inside."""
        self._snapshots.add(snapshot)

    @under_lock
    def drop(self, snapshot: object) -> None:
        self._snapshots.discard(snapshot)
        self._changed.notify_all()

    @contextmanager
    def alone(self, patience: float) -> Iterator[None]:
        """Nobody else is inside. `Unavailable` if that takes longer than `patience` seconds."""
        deadline = time.monotonic() + patience
        with self._lock:
            while self._moving or self._snapshots:
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"the store's map must grow, and cannot while a snapshot is open: {len(self._snapshots)} "
                        f"stayed open for {patience:g} s. Close it, and try again"
                    )
                self._changed.wait(_LOOK_AGAIN)
            self._moving = True
            try:
                while self._inside - {get_ident()}:
                    if time.monotonic() >= deadline:
                        raise Unavailable(f"the store's map must grow, and a read has gone on for {patience:g} s")
                    self._changed.wait(_LOOK_AGAIN)
                if self._closed:
                    raise StoreClosed("this store was closed")
                yield
            finally:
                self._moving = False
                self._changed.notify_all()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """For one who is inside: all others have left, and nobody comes in. Snapshots stay open; nobody reads them."""
        with self._lock:
            # A mover that waits for this one to leave keeps newcomers out already.
            closing_here, self._moving = not self._moving, True
            try:
                while self._inside - {get_ident()}:
                    self._changed.wait(_LOOK_AGAIN)
                yield
            finally:
                if closing_here:
                    self._moving = False
                    self._changed.notify_all()

    @under_lock
    def close(self) -> None:
        """Let nobody in any more, and wait for those inside. Snapshots end here."""
        self._closed = True
        while self._inside - {get_ident()}:
            self._changed.wait()
        self._snapshots.clear()
