"""Whose turn it is to write, among threads of one interpreter.

A lock of the standard library goes to whoever sleeps on it as soon as it is free, on another core, before that thread has
the interpreter: the one that has it, and would go on, must then wait for the other to wake up. With several threads
that write all the time, each verb then waits for a thread to wake. Here a sleeper is only told: whoever has the interpreter takes
the lock first. One that was told some times in vain waits for it as for any other lock, so nobody waits for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress

#: So often may others come first.
_PATIENCE = 4


class Turns:
    """A lock, for `with`."""

    __slots__ = ("_free", "_line", "_lock", "_take")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._take, self._free = self._lock.acquire, self._lock.release
        self._line: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        if not self._take(False):
            self._wait()

    def __exit__(self, *_: object) -> None:
        self._free()
        if self._line:
            self._tell()

    def _tell(self) -> None:
        try:
            first = self._line.popleft()
        except IndexError:
            return  # another was quicker
        first.release()

    def _wait(self) -> None:
        told = threading.Lock()
        told.acquire()
        self._line.append(told)
        for _ in range(_PATIENCE):
            if self._take(False):  # it became free before anybody could know that somebody waits
                self._leave(told)
                return
            try:
                told.acquire()
            except BaseException:  # interrupted: what it was told, the next must hear
                self._leave(told)
                self._tell()
                raise
            if self._take(False):
                return
            self._line.appendleft(told)
        self._leave(told)
        self._take()

    def _leave(self, told: threading.Lock) -> None:
        with suppress(ValueError):  # it has just been told
            self._line.remove(told)
