"""Waiting for many callers with one thread: what `Backend.watch` is, on an engine and elsewhere.

    verbs ── wake ──▶ line (waiting.py) ── set ──▶ watch ── told ──▶ the server looks again
    the clock ──────▶ the attendant's thread ──────▶ watch

A watch stands in line like any waiter, so that threads and watches are served in turn. The attendant does for the watches what
each thread does for itself: it sleeps, by the store's clock, until the next of them has something due or its time is up.
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

if TYPE_CHECKING:
    from collections.abc import Hashable

#: Between two looks for what is not announced: events that a timed sync has made durable.
_SYNCED_S = 0.02


class Attended(Protocol):
    """What an attendant has to know of a store."""

    @property
    def clock(self) -> Clock: ...

    @property
    def waiters(self) -> Waiters: ...

    def now_ms(self) -> int:
        """By what `next_due` goes; it need not be the calendar."""

    def listen(self, topics: Sequence[object]) -> None:
        """See to it that these lines are woken from now on."""

    def next_due(self, names: Sequence[object]) -> int | None:
        """When a job of these queues becomes ready, or a lease runs out."""

    def poll_s(self, journal: bool) -> float | None:
        """How often to look for what is not announced; `journal`: someone waits for events. None: all is."""

    def version(self) -> int:
        """Another one than at the last poll: look again."""


class OfEngine:
    """A store on an engine. Its verbs wake the lines; other processes' commits and timed syncs have to be looked for."""

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
    """A place in line. `set` is the line's signal, and `told` the server's."""

    __slots__ = ("_attendant", "_closed", "deadline_ms", "journal", "names", "plan", "told", "topics", "waiter")

    def __init__(
        self, attendant: Attendant, topics: Sequence[object], deadline_ms: int, told: Callable[[], None]
    ) -> None:
        self._attendant = attendant
        self._closed = False
        self.deadline_ms = deadline_ms
        self.told = told
        #: The number of the plan that counts; entries of older ones are passed over.
        self.plan = 0
        self.topics = topics
        self.names = [topic for topic in topics if isinstance(topic, QueueName)]
        self.journal = None in topics
        self.waiter: Waiter[Watch] = Waiter([_line(topic) for topic in topics], self)

    def set(self) -> None:
        self.told()

    def left_ms(self) -> int:
        return max(0, self.deadline_ms - self._attendant.store.now_ms())

    def again(self) -> None:
        self._attendant.plan(self)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.plan = -1
            self._attendant.leave(self)


def _line(topic: object) -> Hashable:
    if isinstance(topic, JobName):
        return topic.job
    return JOURNAL_LINE if topic is None else topic


class Attendant:
    """Watches the clock, and other processes' commits, for every watch of a store. Its thread starts with the first."""

    def __init__(self, store: Attended) -> None:
        self.store = store
        self._lock = threading.RLock()  # reentrant: an exception may leave it to its thread, and must not block it
        self._wake = threading.Event()
        self._plans: list[tuple[int, int, Watch]] = []
        self._numbers = itertools.count(1)
        self._watches: dict[Watch, None] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._next_ms: int | None = None
        renewed_after_fork(self, Layer.QUEUEING)

    def watch(self, topics: Sequence[object], wait_ms: int, told: Callable[[], None]) -> Watch:
        made = Watch(self, topics, self.store.now_ms() + wait_ms, told)
        with self._lock:
            if self._stopped:
                raise StoreClosed("this store was closed")
            self._watches[made] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tenure-attendant", daemon=True)
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
        """When to look for this one though nobody wakes it: its deadline, or what is due if it is first in line."""
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
        """The store closes: everyone looks once more, and is told so."""
        with self._lock:
            self._stopped = True
            waiting = list(self._watches)
        self._wake.set()
        for watch in waiting:
            watch.told()

    def renew_after_fork(self) -> None:
        """In the child there is no thread, and nobody waits."""
        self._lock = threading.RLock()  # reentrant: an exception may leave it to its thread, and must not block it
        self._watches = {}
        self._stopped = True

    def _run(self) -> None:
        store, version = self.store, -1
        while not self._stopped:
            self._wake.clear()
            for watch in self._due():
                watch.told()
            with self._lock:
                at = self._next_ms = self._plans[0][0] if self._plans else None
                poll = store.poll_s(any(watch.journal for watch in self._watches)) if self._watches else None
            if at is None and poll is None:
                self._wake.wait()
                continue
            left = 3600.0 if at is None else (at - store.now_ms()) / 1000
            if left > 0:
                store.clock.wait(self._wake, left, poll)
            if poll is not None:
                version = self._changed(version)

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
        """Another process may have written, or a sync may have made events durable: who is first in line looks."""
        try:
            version = self.store.version()
        except TenureError:
            return seen
        if version != seen:
            with self._lock:
                waiting = list(self._watches)
            for watch in waiting:
                if watch.journal or not watch.names or self.store.waiters.leads(watch.waiter):
                    watch.told()
        return version
