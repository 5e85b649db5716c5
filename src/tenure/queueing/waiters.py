"""Lines of callers that wait for a queue, a job or the journal. No polling, and no thundering herd.

Only the first in line watches the clock (the next due time). The others sleep until they are first, a verb wakes them,
or their own timeout ends. A caller that leaves the line wakes the next, which reads the store again: no wake-up is
lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from tenure.locks import under_lock
from tenure.model.job import Job


class Signal(Protocol):
    """How a waiter is woken. `set` is called while the line's lock is held: it must not call back into the line."""

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
        self._lock = threading.RLock()  # reentrant: a finalizer or a signal handler may call this at any point
        #: The waiting callers, by topic. `wake` reads it without the lock: a caller that joins at the same time reads
        #: the store afterwards.
        self.lines: dict[Hashable, dict[Waiter[Any], None]] = {}

    def renew(self) -> None:
        """In a forked child: no caller waits, and a thread of the parent may hold the lock."""
        self._lock = threading.RLock()  # reentrant: a finalizer or a signal handler may call this at any point
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
        """The lines in which this waiter is first: it watches the clock for those."""
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
    """Call `look` after each `pause` (which raises at the timeout) until the job has ended.

    None: the job was never found. For a job that was found and is gone, returns `gone(last view)`.
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
