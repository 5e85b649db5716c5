"""Group commit: one sync makes every commit durable that was applied before it began.

At `disk`, a caller waits for a sync that covers its commit:

    wait ──▶ the gate (a lock) of the next sync ──▶ the first caller leads it: it holds the gate until its sync has ended,
                                               │    and begins once the sync before has ended
                                               └──▶ the other callers wait for the gate, and pass it one after another

When a sync begins, the leader replaces the gate. A caller that comes while it runs waits at the new gate, and so wakes
once, when its own commit is durable. A commit that no caller waits for (a claim's) is covered by the next sync, or by a
background thread within the interval. At `os` no caller waits: that thread syncs every interval.

No state is handed from thread to thread, so an exception at any point (Ctrl-C) leaves nothing inconsistent: locks are
held by `with`, and a thread that wakes compares its commit with `_durable` again.

A thread that must not wait (an event loop) runs its verbs with `deferring`, and registers a callback with
`call_when_durable`: the next sync covers all that it did meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import TypeVar

from tenure.errors import TenureError, Unavailable
from tenure.storage.home_core import HomeCore, own_cores
from tenure.storage.writer_lock import OwnedLock

T = TypeVar("T")

#: After a sync that covered at least so many commits, the next leader waits for those callers to commit again: at most
#: `_PATIENCE` seconds, checking every `_PAUSE` seconds, or every `_COMMIT` seconds for each commit that is missing. Each
#: check takes the interpreter from a caller; `_COMMIT` is less than a commit takes.
_CROWD = 4
_PATIENCE = 0.002
_PAUSE = 0.00005
_COMMIT = 0.00001


class _Deferred(threading.local):
    #: In `deferring`: the newest commit of this thread. None: the thread waits for each commit.
    newest: int | None = None


class _Gate(OwnedLock):
    """The lock of one sync, held by its leader until the sync has ended. The callers that the sync covers wait for it."""

    __slots__ = ()


class GroupCommit:
    def __init__(
        self,
        sync: Callable[[], None],
        *,
        grouped: bool,
        interval: float,
        check: Callable[[], None] = lambda: None,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` raises if a sync would be in vain. It runs before each, while more callers may come to be covered.

        `begin` starts what a sync waits for, without waiting. It runs before a sync that waits for no other callers.
        """
        self.grouped = grouped
        self.syncs = 0
        self._sync, self._check, self._begin = sync, check, begin
        #: The newest written commit. The engine sets it, under the writer's lock, before a caller waits for it.
        self.applied_to = 0
        self._durable = 0
        #: How many commits the last sync covered, how long it took, and the newest commit that was written by its end.
        self._crowd = 0
        self._took = 0.0
        self._applied_by_then = 0
        #: When the last sync ended, and the core on which its callers wait.
        self._ended = 0.0
        self._home = HomeCore()
        self._failed: TenureError | None = None
        #: The gate of the next sync, and the gate of the sync that runs or ran last.
        self._next, self._running = _Gate(), _Gate()
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
            self._check()
            self._sync()

    def deferring(self, run: Callable[[], T]) -> tuple[T, int]:
        """Run `run` without waiting for any sync. Returns its result, and the newest commit it made (0: none).

        The caller must not report the result before that commit is durable. An error is reported when it is raised, so for
        one this waits.
        """
        self._deferred.newest = 0
        try:
            result = run()
            return result, self._deferred.newest
        except TenureError:
            newest, self._deferred.newest = self._deferred.newest, None
            self.wait(newest)
            raise
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
        if self._durable >= version:
            return
        if self._deferred.newest is not None:
            self._deferred.newest = max(self._deferred.newest, version)
            return
        home = self._home
        if home.core is None or self._crowd < _CROWD or not (cores := own_cores()):
            self._wait(version, gather)
            return
        entered: Collection[int] = ()
        try:
            entered = home.enter(cores)
            self._wait(version, gather)
        finally:
            # Here and not in a function: the interpreter runs signal handlers (Ctrl-C) where a function begins, and after
            # each call of one. Cores that another process or thread gave to this thread meanwhile (`taskset`) stay.
            moved = False
            try:
                moved = bool(entered) and os.sched_getaffinity(0) != entered
            finally:
                if not moved:
                    try:  # noqa: SIM105
                        os.sched_setaffinity(0, cores)
                    except OSError:  # the process lost all of them meanwhile: the kernel has given the thread others
                        pass

    def _wait(self, version: int, gather: bool) -> None:
        """As `wait`, on the cores that this thread has now."""
        while self._durable < version:
            if self._failed is not None:
                raise Unavailable(f"the commit is not known to be durable: {self._failed}")
            running = self._running
            if running.held_here():
                if not running.interrupted():
                    running.take_back()
                else:  # a signal handler, inside a sync of this thread
                    self._sync_all(running, gather=False)
                    continue
            gate = self._next
            if gate.held_here() and not gate.interrupted():
                gate.take_back()
            with gate.lock:
                # A thread that waited here while another led finds that the gate was replaced, and checks again.
                if gate is self._next and self._durable < version and self._failed is None:
                    self._lead(gate, version, gather)

    def _lead(self, gate: _Gate, version: int, gather: bool) -> None:
        """Sync for all callers at this gate, once no other sync runs. Requires: the gate is held."""
        before = self._running
        # Wait until that sync has ended, and most of its callers have passed. On one line, as in `locks`.
        with before.lock: pass  # noqa: E701  # fmt: skip
        if gate is self._next and self._durable < version and self._failed is None:
            self._sync_all(gate, gather)

    def _sync_all(self, gate: _Gate, gather: bool) -> None:
        """Sync all written commits. Requires: the gate is held, and no other thread syncs."""
        try:
            gather = gather and self._crowd >= _CROWD
            if not gather:
                self._begin()
            self._check()
            if gather:
                self._gather()
            self._running = gate
            self._next = _Gate()  # before `target` is read: the callers at the gate before had written by then
            before, target = self._durable, self.applied_to
            began = perf_counter()
            self._sync()
        except TenureError as exc:
            self._failed = exc
            raise
        ended = perf_counter()
        self._crowd, self._took, self._applied_by_then = target - before, ended - began, self.applied_to
        if self._crowd >= _CROWD:
            self._home.synced(self._crowd, ended - self._ended)
        self._ended = ended
        self.syncs += 1
        self._durable = max(self._durable, target)

    def _gather(self) -> None:
        """Wait until the callers of the last sync have committed again, but no longer than that sync took."""
        enough = self._applied_by_then + self._crowd
        until = perf_counter() + min(self._took, _PATIENCE)
        while (missing := enough - self.applied_to) > 0 and (left := until - perf_counter()) > 0:
            sleep(min(left, max(_PAUSE, missing * _COMMIT)))

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
                self._check()
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
        self._next, self._running = _Gate(), _Gate()

    def stop(self) -> None:
        """End the threads. Requires: no more commits are made."""
        self._stopping.set()
        self._unsynced.set()
        self._callbacks.put(None)
        if self._thread is not None:
            self._thread.join()
