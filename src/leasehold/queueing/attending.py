"""Waiting for many callers with one thread: what `Backend.watch` is on an engine.

    verbs ── wake ──▶ line (waiting.py) ── set ──▶ watch ── told ──▶ the server looks again
    the clock ──────▶ the attendant's thread ──────▶ watch

A watch stands in line like any waiter, so that threads and watches are served in turn. The attendant does for the watches what
each thread does for itself: it sleeps, by the store's clock, until the next of them has something due or its time is up.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError, StoreClosed
from leasehold.model.names import QueueName
from leasehold.queueing.claim import next_due
from leasehold.queueing.core import JOURNAL_LINE, Core
from leasehold.queueing.waiting import Waiter

if TYPE_CHECKING:
    from collections.abc import Hashable

#: Between two looks for what is not announced: events that a timed sync has made durable.
_SYNCED_S = 0.02


class Watch:
    """A place in line. `set` is the line's signal, and `told` the server's."""

    __slots__ = ("_attendant", "_closed", "deadline_ms", "journal", "names", "plan", "told", "waiter")

    def __init__(
        self, attendant: Attendant, topics: Sequence[object], deadline_ms: int, told: Callable[[], None]
    ) -> None:
        self._attendant = attendant
        self._closed = False
        self.deadline_ms = deadline_ms
        self.told = told
        #: The number of the plan that counts; entries of older ones are passed over.
        self.plan = 0
        lines: list[Hashable] = [JOURNAL_LINE if topic is None else topic for topic in topics]
        self.names = [topic for topic in topics if isinstance(topic, QueueName)]
        self.journal = None in topics
        self.waiter: Waiter[Watch] = Waiter(lines, self)

    def set(self) -> None:
        self.told()

    def left_ms(self) -> int:
        return max(0, self.deadline_ms - self._attendant.core.time.now_ms())

    def again(self) -> None:
        self._attendant.plan(self)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.plan = -1
            self._attendant.leave(self)


class Attendant:
    """Watches the clock, and other processes' commits, for every watch of a store. Its thread starts with the first."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._plans: list[tuple[int, int, Watch]] = []
        self._numbers = itertools.count(1)
        self._watches: dict[Watch, None] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._next_ms: int | None = None
        _attendants.add(self)

    def watch(self, topics: Sequence[object], wait_ms: int, told: Callable[[], None]) -> Watch:
        made = Watch(self, topics, self.core.time.now_ms() + wait_ms, told)
        with self._lock:
            if self._stopped:
                raise StoreClosed("this store was closed")
            self._watches[made] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="leasehold-attendant", daemon=True)
                self._thread.start()
        self.core.waiters.enter(made.waiter)
        self.plan(made)
        return made

    def leave(self, watch: Watch) -> None:
        with self._lock:
            self._watches.pop(watch, None)
        self.core.waiters.leave(watch.waiter)

    def plan(self, watch: Watch) -> None:
        """When to look for this one though nobody wakes it: its deadline, or what is due if it is first in line."""
        at = watch.deadline_ms
        if watch.names:
            leading = self.core.waiters.leads(watch.waiter)
            if leading:
                due = self.core.read(lambda reader: next_due(self.core, reader, leading))
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

    def renew(self) -> None:
        """In a forked child there is no thread, and nobody waits."""
        self._lock = threading.Lock()
        self._watches = {}
        self._stopped = True

    def _run(self) -> None:
        core, version = self.core, -1
        while not self._stopped:
            self._wake.clear()
            for watch in self._due():
                watch.told()
            with self._lock:
                at = self._next_ms = self._plans[0][0] if self._plans else None
                poll = core.engine.traits.poll if self._watches else None
                if any(watch.journal for watch in self._watches) and core.engine.durable() is not None:
                    poll = _SYNCED_S if poll is None else min(poll, _SYNCED_S)
            if at is None and poll is None:
                self._wake.wait()
                continue
            left = 3600.0 if at is None else (at - core.time.now_ms()) / 1000
            if left > 0:
                core.clock.wait(self._wake, left, poll)
            if poll is not None:
                version = self._changed(version)

    def _due(self) -> list[Watch]:
        now = self.core.time.now_ms()
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
            version = self.core.engine.version() + (self.core.engine.durable() or 0)
        except LeaseholdError:
            return seen
        if version != seen:
            with self._lock:
                waiting = list(self._watches)
            for watch in waiting:
                if watch.journal or not watch.names or self.core.waiters.leads(watch.waiter):
                    watch.told()
        return version


_attendants: weakref.WeakSet[Attendant] = weakref.WeakSet()


def _renew_in_child() -> None:
    for attendant in list(_attendants):
        attendant.renew()


os.register_at_fork(after_in_child=_renew_in_child)
