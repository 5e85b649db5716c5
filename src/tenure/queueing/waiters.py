"""Waiting without polling, and without a herd: who waits for a queue stands in line.

Only the first in line watches the clock (the next due time); the others sleep until they are first, a job is there
for them, or their own time is up. Whoever leaves the line wakes the next, who looks again: so no wake-up is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

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
        self._lock = threading.RLock()  # reentrant: an exception may leave it to its thread, and must not block it
        #: Who waits, by topic. Without the lock it tells whether there is anyone: whoever joins now looks at the store after.
        self.lines: dict[Hashable, dict[Waiter[Any], None]] = {}

    @property
    def anyone(self) -> bool:
        """Whether there is anyone to wake."""
        return bool(self.lines)

    def renew(self) -> None:
        """In a forked child: nobody waits here, and the lock may be held by a thread that is not there."""
        self._lock = threading.RLock()  # reentrant: an exception may leave it to its thread, and must not block it
        self.lines = {}

    def join(self, topics: Sequence[Hashable]) -> Waiter[threading.Event]:
        return self.enter(Waiter(topics, threading.Event()))

    def enter(self, waiter: Waiter[S]) -> Waiter[S]:
        topics = waiter.topics
        with self._lock:
            for topic in topics:
                self.lines.setdefault(topic, {})[waiter] = None
        return waiter

    def leads(self, waiter: Waiter[Any]) -> list[Hashable]:
        """The lines this waiter is first in: it watches the clock for those."""
        with self._lock:
            return [topic for topic in waiter.topics if next(iter(self.lines.get(topic, ())), None) is waiter]

    def leave(self, waiter: Waiter[Any]) -> None:
        with self._lock:
            for topic in waiter.topics:
                line = self.lines[topic]
                del line[waiter]
                if line:
                    next(iter(line)).signal.set()
                else:
                    del self.lines[topic]

    def wake(self, topic: Hashable, count: int) -> None:
        """Wake the first `count` in line."""
        if topic not in self.lines:
            return
        with self._lock:
            for waiter in self.lines.get(topic, ()):
                if count <= 0:
                    return
                waiter.signal.set()
                count -= 1

    def wake_all(self, topics: Iterable[Hashable] | None = None) -> None:
        with self._lock:
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
