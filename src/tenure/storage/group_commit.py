"""Group commit: one sync makes every commit durable that was applied before it began.

At `disk`, a caller waits for a sync that covers its commit. The first caller leads a sync; callers that come meanwhile
wait at its lock, and one of them leads the next. A commit that no caller waits for (a claim's) is covered by the next
sync, or by a background thread within the interval. At `os` no caller waits: that thread syncs every interval.

No state is handed from thread to thread, so an exception at any point (Ctrl-C) leaves nothing inconsistent: locks are
held by `with`, and a thread that wakes compares its commit with `_durable` again.

A thread that must not wait (an event loop) runs its verbs with `deferring`, and registers a callback with
`call_when_durable`: the next sync covers all that it did meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import TypeVar

from tenure.errors import TenureError, Unavailable
from tenure.storage.writer_lock import OwnedLock

T = TypeVar("T")

#: After a sync that covered at least so many commits, the next leader waits for those callers to commit again: at most
#: `_PATIENCE` seconds, checking every `_PAUSE` seconds.
_CROWD = 4
_PATIENCE = 0.002
_PAUSE = 0.00005


class _Deferred(threading.local):
    #: In `deferring`: the newest commit of this thread. None: the thread waits for each commit.
    newest: int | None = None


class _Sync(OwnedLock):
    """The lock of one sync, held while it runs: callers that come meanwhile wait for it."""

    __slots__ = ()


class GroupCommit:
    def __init__(self, sync: Callable[[], None], *, grouped: bool, interval: float) -> None:
        self.grouped = grouped
        self.syncs = 0
        self._sync = sync
        #: The newest written commit. The engine sets it, under the writer's lock, before a caller waits for it.
        self.applied_to = 0
        self._durable = 0
        #: How many commits the last sync covered, and how long it took.
        self._crowd = 0
        self._took = 0.0
        self._failed: TenureError | None = None
        self._current = _Sync()
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._deferred = _Deferred()
        self._callbacks: SimpleQueue[tuple[int, Callable[[], None]] | None] = SimpleQueue()
        self._caller: threading.Thread | None = None
        self._stopping = threading.Event()
        self._interval = interval
        #: Wakes the background thread for a commit that no caller waits for; and whether that thread is awake, and will
        #: sync everything applied until then. Only the background thread writes `_awake`.
        self._unsynced = threading.Event()
        self._awake = False
        self._thread: threading.Thread | None = None
        if not grouped:
            self._start(self._sync_always)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="tenure-sync", daemon=True)
        thread.start()
        self._thread = thread  # last: if an exception comes before, the next caller starts another thread

    def sync_soon(self) -> None:
        """Have the background thread sync a commit that its caller does not wait for, within the interval."""
        if self._awake:
            return
        self._unsynced.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._start(self._sync_unsynced)

    def sync_now(self) -> None:
        """Make all applied commits durable now, at `os` too."""
        if self.grouped:
            self.wait(self.applied_to)
        else:
            self._sync()

    def deferring(self, run: Callable[[], T]) -> tuple[T, int]:
        """Run `run` without waiting for any sync. Returns its result, and the newest commit it made (0: none).

        The caller must not report the result before that commit is durable.
        """
        self._deferred.newest = 0
        try:
            result = run()
            return result, self._deferred.newest
        finally:
            self._deferred.newest = None

    def call_when_durable(self, version: int, callback: Callable[[], None]) -> None:
        """Call back, from a thread of this object, once that commit is durable or its sync failed (`wait` raises)."""
        self._callbacks.put((version, callback))
        if self._caller is None:
            with self._lock:
                if self._caller is None:
                    self._caller = threading.Thread(target=self._call, name="tenure-durable", daemon=True)
                    self._caller.start()

    def _call(self) -> None:
        while (waiting := self._callbacks.get()) is not None:
            version, callback = waiting
            with suppress(Exception):  # the callback calls `wait` itself; an error must not end this thread
                self.wait(version)
            with suppress(Exception):
                callback()

    def wait(self, version: int, *, gather: bool = True) -> None:
        """Return once that commit is durable. Raises Unavailable if a sync failed before it was.

        `gather`: a sync that this thread leads may wait briefly for other callers. An event loop passes False: while it
        waits here, it carries out no other request.
        """
        if self._deferred.newest is not None:
            self._deferred.newest = max(self._deferred.newest, version)
            return
        while self._durable < version:
            if self._failed is not None:
                raise Unavailable(f"the commit is not known to be durable: {self._failed}")
            current = self._current
            if current.held_here() and not current.interrupted():  # a signal handler may sync for itself
                current.take_back()
            with current.lock:
                # A thread that waited here while another led finds that this sync has ended, and checks again.
                if current is self._current and self._durable < version and self._failed is None:
                    self._lead(current, gather)

    def _lead(self, current: _Sync, gather: bool) -> None:
        """Sync, and make a new lock for the next sync. Requires: the lock of `current` is held."""
        if gather and self._crowd >= _CROWD:
            self._gather()
        before, target = self._durable, self.applied_to  # commits up to `target` were written before this sync begins
        began = perf_counter()
        try:
            self._sync()
        except TenureError as exc:
            self._failed = exc
            raise
        took = perf_counter() - began
        self._crowd, self._took = target - before, took
        self.syncs += 1
        self._durable = max(self._durable, target)
        self._current = _Sync()

    def _gather(self) -> None:
        """Wait until the callers of the last sync have committed again, but no longer than that sync took."""
        enough = self._durable + self._crowd
        until = perf_counter() + min(self._took, _PATIENCE)
        while self.applied_to < enough and perf_counter() < until:
            sleep(_PAUSE)

    def _sync_unsynced(self) -> None:
        """The background thread at `disk`: sync the commits of `sync_soon` after the interval."""
        while True:
            self._unsynced.wait()
            self._awake = True
            self._unsynced.clear()  # before `_stopping` is read, which `stop` sets first
            if self._stopping.wait(self._interval):
                return
            self._awake = False  # before `applied_to` is read: a later `sync_soon` wakes this thread again
            with suppress(TenureError):  # no caller waits for this commit; those that wait for others get the error
                self.wait(self.applied_to)

    def _sync_always(self) -> None:
        """The background thread at `os`: sync every interval."""
        synced = 0
        while not self._stopping.wait(self._interval):
            target = self.applied_to
            if target == synced:
                continue
            try:
                self._sync()
            except Exception:  # noqa: BLE001 - no other thread syncs: try again at the next interval
                target = synced
            else:
                self.syncs += 1
            synced = target

    def renew(self) -> None:
        """Called after the engine reopened its database: everything applied is durable, and syncs may succeed again."""
        self._failed = None
        self._durable = max(self._durable, self.applied_to)

    def renew_after_fork(self) -> None:
        """In a forked child: it has nothing to sync, and a thread of the parent may hold the lock."""
        self._durable = self.applied_to
        self._current = _Sync()

    def stop(self) -> None:
        """End the threads. Requires: no more commits are made."""
        self._stopping.set()
        self._unsynced.set()
        self._callbacks.put(None)
        if self._thread is not None:
            self._thread.join()
