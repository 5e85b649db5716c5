"""Flat combining: callers queue what they want done, and one of them does it for all who wait.

    caller ── submit ──▶ queue ──▶ the first in it leads: takes a group, runs it as one commit,
                                   appoints the next to lead, wakes those who have their answer

While a leader waits for the disk the queue fills, so the slower the disk, the larger the groups. A caller that comes
alone takes one lock and leads at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from tenure.errors import StoreClosed
from tenure.locks import under_lock
from tenure.storage.writer_lock import called_inside


class Request:
    """What one caller wants run, and its answer."""

    __slots__ = ("error", "fn", "inside", "result", "settled", "thread", "turn")

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn = fn
        self.thread = threading.get_ident()
        #: Whether its caller is still inside `submit`.
        self.inside = True
        self.result: Any = None
        self.error: BaseException | None = None
        #: Whether the answer is final; until then a run may be repeated.
        self.settled = False
        #: Held until the caller has its answer, or is to lead. A caller that leads from the start has none.
        self.turn: threading.Lock | None = None

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.settled = True

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class Combiner:
    def __init__(self, run: Callable[[list[Request], Request], None], bound: int) -> None:
        """`run(group, own)` settles the group, of which `own` is the leader's; what it leaves is run again."""
        self._run = run
        self._bound = bound
        self._lock = threading.RLock()  # reentrant: a finalizer may come here at any point
        self._idle = threading.Condition(self._lock)
        self._queue: deque[Request] = deque()
        self._leader: Request | None = None
        self._group: list[Request] = []
        self._stopped = False

    def submit(self, fn: Callable[[Any], Any]) -> Any:
        request = Request(fn)
        try:
            self._line_up(request)
            if request.turn is not None:
                request.turn.acquire()
            if not request.settled:
                self._lead(request)
        except BaseException:
            self._abandon(request)
            raise
        finally:
            request.inside = False
        return request.outcome()

    @under_lock
    def stop(self) -> bool:
        """Take no more, and wait until all who came before have their answer. False if that was done before."""
        first = not self._stopped
        self._stopped = True
        while self._leader is not None:
            self._idle.wait()
        return first

    @under_lock
    def _line_up(self, request: Request) -> None:
        """Queue the request. If nobody leads, its caller does; else it gets a turn to wait for."""
        if self._stopped:
            raise StoreClosed("this store was closed")
        left = self._leader
        if left is not None and left.thread == request.thread:
            if left.inside:
                raise called_inside()
            self._abandon(left)  # an exception kept this thread from doing so: it leads nothing any more
        self._queue.append(request)
        if self._leader is None:
            self._leader = request
        else:
            request.turn = threading.Lock()
            request.turn.acquire()

    def _lead(self, request: Request) -> None:
        try:
            self._take_group()
            self._run(self._group, request)
        finally:
            self._pass_on(request)

    @under_lock
    def _take_group(self) -> None:
        self._group = list(islice(self._queue, self._bound))
        for _ in self._group:
            self._queue.popleft()

    @under_lock
    def _abandon(self, request: Request) -> None:
        """Its caller was interrupted, wherever it was: nobody must wait for it to lead."""
        if request in self._queue:
            self._queue.remove(request)
        self._pass_on(request)

    @under_lock
    def _pass_on(self, leader: Request) -> None:
        """The group has what answers it will get, the rest queue again, and the first in the queue leads.

        Called by a leader once, or again if the first time was interrupted.
        """
        if self._leader is not leader:
            return
        others = [request for request in self._group if request is not leader]
        for request in others:
            if request.settled:
                _wake(request)
        self._queue.extendleft(r for r in reversed(others) if not r.settled and r not in self._queue)
        self._group = []
        self._leader = self._queue[0] if self._queue else None
        if self._leader is None:
            self._idle.notify_all()
        else:
            _wake(self._leader)


def _wake(request: Request) -> None:
    if request.turn is not None and request.turn.locked():
        request.turn.release()
