"""Durability for many commits at once: one sync serves every commit that was applied before it began.

At `disk`, a committer waits for a sync that covers its commit. The first to come leads one; those who come meanwhile
sleep at its gate, and one of them leads the next. A commit that nobody waits for (a claim's) is covered by the next of
these, or by a background thread within the interval. At `os`, nobody waits: that thread syncs every interval.

Nothing here is handed from thread to thread, so an exception at any point (Ctrl-C) leaves nothing behind: locks are
held by `with`, and a thread that wakes looks again at how far the disk has come.

A thread that has more to do than to wait (an event loop) runs its verbs `deferring`, and is told when they are durable
(`call_when_durable`): all that it did meanwhile is in the next sync.
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

#: When a sync has served as many commits, the next gives their callers time to come back: seconds at most, and between
#: two looks.
_CROWD = 4
_PATIENCE = 0.002
_PAUSE = 0.00005


class _Deferred(threading.local):
    #: The newest commit of this thread that is not waited for; None: it waits for each.
    newest: int | None = None


class _Sync(OwnedLock):
    """One sync, and its gate, locked while it runs: those who come meanwhile sleep there, and pass one after another."""

    __slots__ = ()


class GroupCommit:
    def __init__(self, sync: Callable[[], None], *, grouped: bool, interval: float) -> None:
        self.grouped = grouped
        self.syncs = 0
        self._sync = sync
        #: The newest commit that was written; the engine sets it, under the writer's lock, before anyone waits for it.
        self.applied_to = 0
        self._durable = 0
        #: Commits that the last sync covered, and how long it took.
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
        #: What the background thread sleeps at until there is a commit that nobody waits for; and whether it is awake,
        #: and will sync all that is applied by then. Only that thread says so: nobody else can leave it wrong.
        self._unsynced = threading.Event()
        self._awake = False
        self._thread: threading.Thread | None = None
        if not grouped:
            self._start(self._sync_always)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="tenure-sync", daemon=True)
        thread.start()
        self._thread = thread  # last: interrupted before, the next caller starts another

    def sync_soon(self) -> None:
        """A commit was applied that its caller does not wait for: it is durable within the interval."""
        if self._awake:
            return
        self._unsynced.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._start(self._sync_unsynced)

    def sync_now(self) -> None:
        """Make all that was applied durable, at `os` too."""
        if self.grouped:
            self.wait(self.applied_to)
        else:
            self._sync()

    def deferring(self, run: Callable[[], T]) -> tuple[T, int]:
        """Run without waiting for any sync.

        Also returns the commit that must be durable before anyone is told; 0: none.
        """
        self._deferred.newest = 0
        try:
            result = run()
            return result, self._deferred.newest
        finally:
            self._deferred.newest = None

    def call_when_durable(self, version: int, callback: Callable[[], None]) -> None:
        """Call back, from a thread of ours, once that commit is durable or cannot be: `wait` returns or raises then."""
        self._callbacks.put((version, callback))
        if self._caller is None:
            with self._lock:
                if self._caller is None:
                    self._caller = threading.Thread(target=self._call, name="tenure-durable", daemon=True)
                    self._caller.start()

    def _call(self) -> None:
        while (waiting := self._callbacks.get()) is not None:
            version, callback = waiting
            with suppress(
                Exception
            ):  # the callback finds out how it ended; whatever it raises, others wait to be called
                self.wait(version)
            with suppress(Exception):
                callback()

    def wait(self, version: int, *, gather: bool = True) -> None:
        """Return once that commit is durable. Raises Unavailable if a sync failed before it was.

        `gather`: a sync that this thread leads may wait a moment for other callers. An event loop gathers by itself: no
        other request is carried out while it waits here.
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
                # Of those who slept here while another led, each finds that this sync is over, and looks again.
                if current is self._current and self._durable < version and self._failed is None:
                    self._lead(current, gather)

    def _lead(self, current: _Sync, gather: bool) -> None:
        """Sync, and let the next one begin. Requires: the gate of `current` is held."""
        if gather and self._crowd >= _CROWD:
            self._gather()
        before, target = self._durable, self.applied_to  # all commits up to here were written before this sync begins
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
        """Of many callers who were just served, most will be back at once: worth no more than the last sync took."""
        enough = self._durable + self._crowd
        until = perf_counter() + min(self._took, _PATIENCE)
        while self.applied_to < enough and perf_counter() < until:
            sleep(_PAUSE)

    def _sync_unsynced(self) -> None:
        """At `disk`: sync what `sync_soon` was called for, once its interval is over."""
        while True:
            self._unsynced.wait()
            self._awake = True
            self._unsynced.clear()  # before `_stopping` is looked at, which `stop` sets first
            if self._stopping.wait(self._interval):
                return
            self._awake = False  # before it is asked how far to sync: whoever comes later wakes this thread again
            with suppress(TenureError):  # whoever waits for a commit is told; nobody waits for this one
                self.wait(self.applied_to)

    def _sync_always(self) -> None:
        """At `os`: sync every interval."""
        synced = 0
        while not self._stopping.wait(self._interval):
            target = self.applied_to
            if target == synced:
                continue
            try:
                self._sync()
            except Exception:  # noqa: BLE001 - nobody else would sync: it is tried again, unless the engine has stopped
                target = synced
            else:
                self.syncs += 1
            synced = target

    def renew(self) -> None:
        """All that was applied is durable, and syncs may be tried again: the engine has opened its database anew."""
        self._failed = None
        self._durable = max(self._durable, self.applied_to)

    def renew_after_fork(self) -> None:
        """In a forked child: it has nothing to sync, and the gate may be held by a thread that is not there."""
        self._durable = self.applied_to
        self._current = _Sync()

    def stop(self) -> None:
        """End the threads. Requires: no more commits come."""
        self._stopping.set()
        self._unsynced.set()
        self._callbacks.put(None)
        if self._thread is not None:
            self._thread.join()
