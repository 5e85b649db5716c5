"""Request lanes: make a request that is sent twice take effect once.

A client has as many lanes as concurrent requests. A lane carries one request at a time, each with the next number. The
server stores, in the same step as the request's writes, the lane's last number and its answer. A request whose answer
was lost is sent again with the same number, and gets that answer. So the stored data grows with the number of threads,
not of requests.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class LaneRequest(NamedTuple):
    """A request's lane, and its number in the lane."""

    lane: bytes
    number: int


class RequestLanes:
    def __init__(self) -> None:
        self._client = os.urandom(9)
        self._created = itertools.count()
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._free: list[LaneRequest] = []

    @contextmanager
    def request(self) -> Iterator[LaneRequest]:
        with self._lock:
            last = (
                self._free.pop()
                if self._free
                else LaneRequest(self._client + next(self._created).to_bytes(3, "big"), 0)
            )
        request = LaneRequest(last.lane, last.number + 1)
        try:
            yield request
        except BaseException:
            # The request may still arrive, after a later one: this lane is not used again.
            raise
        else:
            with self._lock:
                self._free.append(request)
