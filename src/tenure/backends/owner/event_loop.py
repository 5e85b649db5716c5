"""One thread that answers small verbs on all of a listener's connections.

A thread a connection is simple, and right where verbs wait: for jobs, or for the disk. Where they do not, four busy
threads mostly take the interpreter and the caches from each other: one thread that does a verb after the other answers
a third more. So this thread reads what has arrived and answers requests that are small, whole and do not wait. It
leaves the rest to a thread of the connection's own (`Connection.serve`), which gives the connection back afterwards.
"""

from __future__ import annotations

import contextlib
import enum
import os
import selectors
import socket
import threading
from collections import deque
from typing import Protocol


class AfterTurn(enum.Enum):
    """What becomes of a connection after its turn."""

    KEEP = 1
    TO_THREAD = 2
    CLOSE = 3


class Connection(Protocol):
    sock: socket.socket

    def turn(self) -> AfterTurn:
        """Answer what has arrived, as far as that takes neither a wait nor long. Never blocks."""

    def serve(self) -> None:
        """In a thread of its own: answer what `turn` left, then give the connection back to the loop."""

    def end(self) -> None:
        """Close it."""


class EventLoop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._handles: tuple[int, ...] = os.pipe()
        self._reading, self._writing = self._handles
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._selector.register(self._reading, selectors.EVENT_READ)
        self._added: deque[Connection] = deque()
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tenure-loop", daemon=True)
        self._thread.start()

    def add(self, connection: Connection) -> bool:
        """From any thread. False: the loop has ended."""
        with self._lock:
            if self._stopping:
                return False
            self._added.append(connection)
            with contextlib.suppress(BlockingIOError):
                os.write(self._writing, b"x")
        return True

    def stop(self) -> None:
        """Call it once every connection is gone."""
        with self._lock:
            self._stopping = True
            if self._handles:
                os.write(self._writing, b"x")
        self._thread.join(5)

    def disown(self) -> None:
        """In a forked child, which does not have the loop's thread."""
        self._lock = threading.Lock()
        self._stopping = True
        self._close()

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select():
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._reading, 4096)
                else:
                    self._turn(key.data, registered=True)
            while self._added:
                # What arrived together with its last request may be in its buffer already: no event tells of it again.
                self._turn(self._added.popleft(), registered=False)
        with self._lock:
            left = [*self._added, *(key.data for key in self._selector.get_map().values() if key.data is not None)]
            self._close()
        for connection in left:
            connection.end()

    def _turn(self, connection: Connection, registered: bool) -> None:
        after = connection.turn()
        if registered and after is not AfterTurn.KEEP:
            self._selector.unregister(connection.sock)
        elif not registered and after is AfterTurn.KEEP:
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)
        if after is AfterTurn.CLOSE:
            connection.end()
        elif after is AfterTurn.TO_THREAD:
            threading.Thread(target=connection.serve, name="tenure-connection", daemon=True).start()

    def _close(self) -> None:
        """Once: a second time its handles may be another's, as in a child that was forked after it was stopped."""
        handles, self._handles = self._handles, ()
        if handles:
            self._selector.close()
        for handle in handles:
            os.close(handle)
