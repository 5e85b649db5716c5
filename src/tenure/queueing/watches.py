"""`Backend.watch`: one thread waits on behalf of many callers, for the embedded and the Redis backend.

    verbs ── wake ──▶ line (waiters.py) ── set ──▶ Watch ── notify ──▶ the server tries again
    the clock ──────▶ WatchThread ────────────────▶ Watch

A watch is in line like a waiting thread, so that threads and watches are served in turn. A waiting thread watches the
clock itself; for watches, one `WatchThread` for each store does: it sleeps, by the store's clock, until the first watch
has a job due or reaches its deadline.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tenure.clock import Clock
from tenure.errors import StoreClosed, TenureError
from tenure.model.names import JobName, QueueName
from tenure.process import Layer, renewed_after_fork
from tenure.queueing.claim import next_due
from tenure.queueing.core import JOURNAL_LINE, Core
from tenure.queueing.waiters import Waiter, Waiters
from tenure.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Hashable

#: The poll interval for changes that wake no line: events that a timed sync has made durable.
_SYNCED_S = 0.02


class WatchSource(Protocol):
    """The part of a store that a `WatchThread` uses."""

    @property
    def clock(self) -> Clock: ...

    @property
    def waiters(self) -> Waiters: ...

    def now_ms(self) -> int:
        """The time on the scale of `next_due`, which need not be the calendar."""

    def listen(self, topics: Sequence[object]) -> None:
        """Subscribe to these topics: from now on, other processes' verbs wake their lines."""

    def next_due(self, names: Sequence[object]) -> int | None:
        """When the next job of these queues becomes ready, or a lease expires; None: never."""

    def poll_s(self, journal: bool) -> float | None:
        """The interval of polling `version`, in seconds; None: every change wakes a line.

        `journal`: a watch waits for events.
        """

    def version(self) -> int:
        """A number that changes with every commit: watches are notified when it does."""


class EngineWatchSource:
    """A store on an engine. Its own verbs wake the lines; other processes' commits and timed syncs are polled."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.clock = core.clock
        self.waiters = core.waiters
        self.now_ms = core.time.now_ms

    def listen(self, topics: Sequence[object]) -> None:
        pass

    def next_due(self, names: Sequence[object]) -> int | None:
        return self._core.read(lambda reader: next_due(self._core, reader, names))

    def poll_s(self, journal: bool) -> float | None:
        engine = self._core.engine
        poll = engine.traits.poll
        if journal and engine.durable() is not None:
            return _SYNCED_S if poll is None else min(poll, _SYNCED_S)
        return poll

    def version(self) -> int:
        return self._core.engine.version() + (self._core.engine.durable() or 0)


class Watch:
    """A place in line. The line calls `set`, which calls the server's `notify`."""

    __slots__ = ("_closed", "_notify", "_owner", "deadline_ms", "journal", "names", "plan", "topics", "waiter")

    def __init__(
        self, owner: WatchThread, topics: Sequence[object], deadline_ms: int, notify: Callable[[], None]
    ) -> None:
        self._owner = owner
        self._closed = False
        self.deadline_ms = deadline_ms
        self._notify = notify
        #: The number of its newest plan; heap entries of older plans are skipped. -1: closed.
        self.plan = 0
        self.topics = topics
        self.names = [topic for topic in topics if isinstance(topic, QueueName)]
        self.journal = None in topics
        self.waiter: Waiter[Watch] = Waiter([_line(topic) for topic in topics], self)

    def set(self) -> None:
        """Notify the server. An exception is logged: it must end neither the watch thread nor another caller's verb."""
        try:
            self._notify()
        except Exception as exc:  # noqa: BLE001 - the server's code, which may raise anything
            warn("watch_failed", exc)

    def left_ms(self) -> int:
        return max(0, self.deadline_ms - self._owner.store.now_ms())

    def again(self) -> None:
        self._owner.plan(self)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.plan = -1
            self._owner.leave(self)


def _line(topic: object) -> Hashable:
    if isinstance(topic, JobName):
        return topic.job
    return JOURNAL_LINE if topic is None else topic


class WatchThread:
    """Watches the clock, and other processes' commits, for every watch of a store. Its thread starts with the first."""

    def __init__(self, store: WatchSource) -> None:
        self.store = store
        self._lock = threading.RLock()  # reentrant: an exception may leave it locked, and its thread must not block
        self._wake = threading.Event()
        self._plans: list[tuple[int, int, Watch]] = []
        self._numbers = itertools.count(1)
        self._watches: dict[Watch, None] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._next_ms: int | None = None
        renewed_after_fork(self, Layer.QUEUEING)

    def watch(self, topics: Sequence[object], wait_ms: int, notify: Callable[[], None]) -> Watch:
        made = Watch(self, topics, self.store.now_ms() + wait_ms, notify)
        with self._lock:
            if self._stopped:
                raise StoreClosed("this store was closed")
            self._watches[made] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tenure-watches", daemon=True)
                self._thread.start()
        self.store.waiters.enter(made.waiter)
        try:
            self.plan(made)
        except BaseException:
            made.close()
            raise
        return made

    def leave(self, watch: Watch) -> None:
        with self._lock:
            self._watches.pop(watch, None)
        self.store.waiters.leave(watch.waiter)

    def plan(self, watch: Watch) -> None:
        """Plan when to notify a watch that no verb wakes: at its deadline or, if first in line, when a job is due."""
        at = watch.deadline_ms
        self.store.listen(watch.topics)
        if watch.names:
            leading = self.store.waiters.leads(watch.waiter)
            if leading:
                due = self.store.next_due(leading)
                if due is not None and due < at:
                    at = due
        with self._lock:
            if watch.plan < 0 or self._stopped:
                return
            watch.plan = next(self._numbers)
            heapq.heappush(self._plans, (at, watch.plan, watch))
            sooner = self._next_ms is None or at < self._next_ms
        if sooner:
            self._wake.set()

    def stop(self) -> None:
        """Called when the store closes: notify every watch, whose next verb raises StoreClosed."""
        with self._lock:
            self._stopped = True
            waiting = list(self._watches)
        self._wake.set()
        for watch in waiting:
            watch.set()

    def renew_after_fork(self) -> None:
        """In a forked child: there is no thread, and no caller waits."""
        self._lock = threading.RLock()  # reentrant: an exception may leave it locked, and its thread must not block
        self._watches = {}
        self._stopped = True

    def _run(self) -> None:
        version = -1
        while not self._stopped:
            try:
                version = self._pass(version)
            except Exception as exc:  # noqa: BLE001 - this thread must survive: no other one watches
                warn("watch_failed", exc)
                self._wake.wait(_SYNCED_S)

    def _pass(self, version: int) -> int:
        """Notify the watches that are due, then wait for the next one or for a change. Returns the version seen."""
        store = self.store
        self._wake.clear()
        for watch in self._due():
            watch.set()
        with self._lock:
            at = self._next_ms = self._plans[0][0] if self._plans else None
            poll = store.poll_s(any(watch.journal for watch in self._watches)) if self._watches else None
        if at is None and poll is None:
            self._wake.wait()
            return version
        left = 3600.0 if at is None else (at - store.now_ms()) / 1000
        if left > 0:
            store.clock.wait(self._wake, left, poll)
        return version if poll is None else self._changed(version)

    def _due(self) -> list[Watch]:
        now = self.store.now_ms()
        found = []
        with self._lock:
            while self._plans and self._plans[0][0] <= now:
                _, number, watch = heapq.heappop(self._plans)
                if watch.plan == number:
                    found.append(watch)
        return found

    def _changed(self, seen: int) -> int:
        """If the version changed (another process's commit, or a sync of events), notify the first in each line."""
        try:
            version = self.store.version()
        except TenureError:
            return seen
        if version != seen:
            with self._lock:
                waiting = list(self._watches)
            for watch in waiting:
                if watch.journal or not watch.names or self.store.waiters.leads(watch.waiter):
                    watch.set()
        return version
