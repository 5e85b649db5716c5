"""Flat combining: callers queue their requests, and one of them, the leader, runs a group of them.

    caller ── submit ──▶ queue ──▶ the first in it leads: takes a group, runs it as one commit,
                                   wakes the callers that have their answer, appoints the next leader

While a leader waits for the disk the queue fills: the slower the disk, the larger the groups. A single caller takes one
lock and leads at once.
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
    """One caller's function, and its outcome."""

    __slots__ = ("error", "fn", "inside", "result", "settled", "thread", "turn")

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn = fn
        self.thread = threading.get_ident()
        #: Whether its caller is still inside `submit`.
        self.inside = True
        self.result: Any = None
        self.error: BaseException | None = None
        #: Whether the outcome is final; until then the function may run again.
        self.settled = False
        #: Locked until the caller has its outcome or becomes the leader. None for a caller that leads at once.
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
        """`run(group, own)` settles up to `bound` requests, `own` the leader's. Unsettled ones run again."""
        self._run = run
        self._bound = bound
        self._lock = threading.RLock()  # reentrant: a finalizer may call this at any point
        self._idle = threading.Condition(self._lock)
        self._queue: deque[Request] = deque()
        self._leader: Request | None = None
        self._group: list[Request] = []
        self._stopped = False

    def submit(self, fn: Callable[[Any], Any]) -> Any:
        """Run `fn` in a group, wait for its outcome, and return or raise it. Raises StoreClosed after `stop`."""
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
        """Accept no more requests, and wait until all earlier ones have their outcome. False: it was stopped before."""
        first = not self._stopped
        self._stopped = True
        while self._leader is not None:
            self._idle.wait()
        return first

    @under_lock
    def _line_up(self, request: Request) -> None:
        """Queue the request. Without a leader its caller becomes one; else it gets a `turn` lock to wait for."""
        if self._stopped:
            raise StoreClosed("this store was closed")
        left = self._leader
        if left is not None and left.thread == request.thread:
            if left.inside:
                raise called_inside()
            self._abandon(left)  # an exception interrupted this thread before it could: it leads no longer
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
        """Remove a request whose caller was interrupted, so that no other caller waits for it to lead."""
        if request in self._queue:
            self._queue.remove(request)
        self._pass_on(request)

    @under_lock
    def _pass_on(self, leader: Request) -> None:
        """End this leader's turn: wake the settled callers, queue the others again, appoint the next leader.

        Idempotent: a leader calls it again if the first call was interrupted.
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
