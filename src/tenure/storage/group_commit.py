"""Durability for many at once: one sync serves every commit that was applied before it began.

At `disk`, a committer waits for a sync that covers it: the first to arrive leads one, those who come meanwhile wait
for the next, which one of them leads; after a crowd was served, it first waits a moment for them to come back. At `os`, nobody waits, and a background thread syncs every interval.

A thread that has more to do than to wait (an event loop) runs its verbs `deferring`, and is told when they are durable
(`then`): all that it did meanwhile is in the next sync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import TypeVar

from tenure.errors import TenureError, Unavailable

T = TypeVar("T")

#: When a sync has served as many, the next gives them time to come back: seconds at most, and between two looks.
_CROWD = 4
_PATIENCE = 0.002
_MOMENT = 0.00005
#: Work on large commits, since the last sync, that is worth doing while the next one runs: to what a sync takes.
_WORTH_OVERLAPPING = 0.5


class _Deferred(threading.local):
    #: The newest commit of this thread that is not waited for; None: it waits for each.
    newest: int | None = None


class _Waiter:
    """Sleeps until its commit is durable, has failed, or it is to lead; woken, it wakes the next.

    Each has a lock of its own, and they wake one another in a row: all at once they would only queue up for the interpreter.
    """

    __slots__ = ("lock", "next", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.next: _Waiter | None = None
        self.lock = threading.Lock()
        self.lock.acquire()

    def pass_on(self) -> None:
        following, self.next = self.next, None
        if following is not None:
            following.lock.release()


class Syncer:
    def __init__(self, sync: Callable[[], None], *, grouped: bool, interval: float) -> None:
        self.grouped = grouped
        self.syncs = 0
        self._sync = sync
        #: The newest commit that was written; set under the writer's lock.
        self.applied_to = 0
        self._durable = 0
        self._leading = False
        self._crowd = 0
        self._took = 0.0
        #: Seconds of work on commits that are not small, since the last sync; added to under the writer's lock.
        self.worked = 0.0
        self._failed: TenureError | None = None
        self._lock = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._deferred = _Deferred()
        self._after: SimpleQueue[tuple[int, Callable[[], None]] | None] = SimpleQueue()
        self._teller: threading.Thread | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if not grouped:
            self._thread = threading.Thread(target=self._run, args=(interval,), name="tenure-sync", daemon=True)
            self._thread.start()

    def applied(self, version: int) -> int:
        """Called under the writer's lock for each commit, in order; returns what to wait for (0: nothing)."""
        self.applied_to = version
        return version if self.grouped else 0

    def deferring(self, run: Callable[[], T]) -> tuple[T, int]:
        """Run without waiting for any sync. Also returns the commit that has to be durable before anybody is told; 0: none."""
        self._deferred.newest = 0
        try:
            result = run()
            return result, self._deferred.newest
        finally:
            self._deferred.newest = None

    def then(self, version: int, told: Callable[[], None]) -> None:
        """Have it called, by a thread of ours, once that commit is durable or cannot be: `wait` returns or raises then."""
        self._after.put((version, told))
        if self._teller is None:
            with self._lock:
                if self._teller is None:
                    self._teller = threading.Thread(target=self._tell, name="tenure-durable", daemon=True)
                    self._teller.start()

    def _tell(self) -> None:
        while (waiting := self._after.get()) is not None:
            version, told = waiting
            with suppress(Exception):  # `told` finds out how it ended; and whatever it raises, others wait to be told
                self.wait(version)
            with suppress(Exception):
                told()

    def wait(self, version: int) -> None:
        """Return once that commit is durable."""
        if self._deferred.newest is not None:
            self._deferred.newest = max(self._deferred.newest, version)
            return
        with self._lock:
            if self._durable >= version:
                return
            if self._failed is not None:
                self._refuse()
            waiting = None
            if self._leading:
                waiting = _Waiter(version)
                self._waiting.append(waiting)
            self._leading = True
        if waiting is not None:
            self._sleep(waiting)
            if self._durable >= version:
                return
            if self._failed is not None:
                self._refuse()
        self._lead()

    def _sleep(self, waiting: _Waiter) -> None:
        """Until it is durable, has failed, or this one is to lead."""
        try:
            waiting.lock.acquire()
        except BaseException:  # interrupted: nobody may wait for this one
            with self._lock:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                    raise
            waiting.pass_on()  # the row goes through here, whether or not it has come this far
            if self._durable < waiting.version and self._failed is None:
                self._hand_over(0)
            raise
        waiting.pass_on()

    def _lead(self) -> None:
        if self._crowd >= _CROWD:
            self._gather()
        target = self.applied_to  # everything up to here was written before this sync begins
        reached = 0
        began = perf_counter()
        try:
            self._sync()
            reached = target
            self._took = perf_counter() - began
        except TenureError as exc:
            self._failed = exc
            raise
        finally:
            self._hand_over(reached)

    def _gather(self) -> None:
        """Of many who were just served, most will be back at once: worth no more than the last sync took."""
        enough = self._durable + self._crowd
        until = perf_counter() + min(self._took, _PATIENCE)
        while self.applied_to < enough and perf_counter() < until:
            sleep(_MOMENT)

    def _hand_over(self, reached: int) -> None:
        """A sync has ended: wake those it served, and one that it did not, to lead the next."""
        with self._lock:
            self.syncs += 1
            self._durable = durable = max(self._durable, reached)
            everyone = self._failed is not None
            served = [waiter for waiter in self._waiting if everyone or waiter.version <= durable]
            self._waiting = [] if everyone else [waiter for waiter in self._waiting if waiter.version > durable]
            at_work, self.worked = self.worked, 0.0
            beside = at_work > self._took * _WORTH_OVERLAPPING
            self._crowd = 0 if beside else len(served)
            self._leading = bool(self._waiting)
            if self._waiting:
                # Last: what the others commit as they wake is in its sync. Unless that is so much work that it is done
                # while the disk is busy: then the next sync does not wait for it.
                served.insert(0 if beside else len(served), self._waiting.pop(0))
            for waiter, following in pairwise(served):
                waiter.next = following
        if served:
            served[0].lock.release()

    def renew(self) -> None:
        """All that was applied is durable, and syncs may be tried again: the engine has opened its database anew."""
        with self._lock:
            self._failed = None
            self._durable = max(self._durable, self.applied_to)

    def _refuse(self) -> None:
        raise Unavailable(f"the commit is not known to be durable: {self._failed}")

    def _run(self, interval: float) -> None:
        synced = 0
        while not self._stopping.wait(interval):
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

    def stop(self) -> None:
        self._stopping.set()
        self._after.put(None)
        if self._thread is not None:
            self._thread.join()
