"""Lines of callers that wait for a queue, a job or the journal: no polling, and no crowd that wakes at once.

Only the first in line watches the clock (the next due time). The others sleep until they are first, a job is there
for them, or their own time is up. A caller that leaves the line wakes the next, which looks again: no wake-up is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from tenure.locks import under_lock
from tenure.model.job import Job


class Signal(Protocol):
    """How a waiter is woken. Set while the line's lock is held: it must not come back to the line."""

    def set(self) -> None: ...


S = TypeVar("S", bound=Signal)


class Waiter(Generic[S]):
    """One caller, standing in one line or several."""

    __slots__ = ("signal", "topics")

    def __init__(self, topics: Sequence[Hashable], signal: S) -> None:
        self.topics = topics
        self.signal = signal


class Waiters:
    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a finalizer or a signal handler may come here at any point
        #: The waiting callers, by topic. Read without the lock to see whether there are any: a caller that joins now
        #: looks at the store afterwards.
        self.lines: dict[Hashable, dict[Waiter[Any], None]] = {}

    def renew(self) -> None:
        """In a forked child: nobody waits here, and the lock may be held by a thread that is not there."""
        self._lock = threading.RLock()  # reentrant: a finalizer or a signal handler may come here at any point
        self.lines = {}

    def join(self, topics: Sequence[Hashable]) -> Waiter[threading.Event]:
        return self.enter(Waiter(topics, threading.Event()))

    @under_lock
    def enter(self, waiter: Waiter[S]) -> Waiter[S]:
        for topic in waiter.topics:
            self.lines.setdefault(topic, {})[waiter] = None
        return waiter

    @under_lock
    def leads(self, waiter: Waiter[Any]) -> list[Hashable]:
        """The lines this waiter is first in: it watches the clock for those."""
        return [topic for topic in waiter.topics if next(iter(self.lines.get(topic, ())), None) is waiter]

    @under_lock
    def leave(self, waiter: Waiter[Any]) -> None:
        for topic in waiter.topics:
            line = self.lines[topic]
            del line[waiter]
            if line:
                next(iter(line)).signal.set()
            else:
                del self.lines[topic]

    def wake(self, topic: Hashable, count: int) -> None:
        """Wake the first `count` in line."""
        if topic in self.lines:
            self._wake(topic, count)

    @under_lock
    def _wake(self, topic: Hashable, count: int) -> None:
        for waiter in islice(self.lines.get(topic, ()), max(count, 0)):
            waiter.signal.set()

    @under_lock
    def wake_all(self, topics: Iterable[Hashable] | None = None) -> None:
        for topic in list(self.lines) if topics is None else topics:
            for waiter in self.lines.get(topic, ()):
                waiter.signal.set()


def until_ended(look: Callable[[], Job | None], pause: Callable[[], None], gone: Callable[[Job], Job]) -> Job | None:
    """Look, and look again after each pause (which raises when time is up), until the job has ended.

    None: it was never there. `gone` tells what became of one that was, and is not kept.
    """
    last: Job | None = None
    while True:
        found = look()
        if found is None:
            return None if last is None else gone(last)
        if found.state in ("done", "dead"):
            return found
        last = found
        pause()
