"""A gate around LMDB's map: short transactions and open snapshots keep it from moving.

The map moves when it grows, and an open transaction would then read unmapped memory. So the thread that grows it waits
until the snapshots are closed, then keeps new transactions out until the running ones have ended. While it waits for
snapshots, transactions may still run: the holder of a snapshot may need one to finish.
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

_LOOK_AGAIN = 0.05  # seconds; a snapshot that is garbage-collected without `close` notifies nobody


class Gate:
    def __init__(self) -> None:
        # Reentrant: the garbage collector may run a finalizer that calls this at any point.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        #: The threads inside. A set, not a count: if an exception kept a thread from leaving, its next `enter` and
        #: `leave` correct that.
        self._inside: set[int] = set()
        self._moving = False
        self._closed = False
        #: Weak references: a snapshot that its holder dropped must not block the map.
        self._snapshots: weakref.WeakSet[object] = weakref.WeakSet()

    @under_lock
    def enter(self) -> None:
        """Wait while the map moves, then enter. Raises StoreClosed."""
        while self._moving:
            self._changed.wait()
        if self._closed:
            raise StoreClosed("this store was closed")
        self._inside.add(get_ident())

    @under_lock
    def leave(self) -> None:
        """Leave; a thread that is not inside may call it too."""
        self._inside.discard(get_ident())
        if self._moving or self._closed:
            self._changed.notify_all()

    @under_lock
    def hold(self, snapshot: object) -> None:
        """Register a snapshot. Requires: the caller is inside."""
        self._snapshots.add(snapshot)

    @under_lock
    def drop(self, snapshot: object) -> None:
        self._snapshots.discard(snapshot)
        self._changed.notify_all()

    @contextmanager
    def alone(self, patience: float) -> Iterator[None]:
        """Run the body with no snapshot open and no other thread inside. Raises Unavailable after `patience` s."""
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
        """Run the body with no other thread inside; snapshots stay open. Requires: the caller is inside."""
        with self._lock:
            # A thread that waits in `alone` for this one to leave keeps newcomers out already.
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
        """Let no thread in any more, wait until all have left, and forget the snapshots."""
        self._closed = True
        while self._inside - {get_ident()}:
            self._changed.wait()
        self._snapshots.clear()
