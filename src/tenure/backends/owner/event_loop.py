"""One thread that answers small verbs on all of a listener's connections.

A thread a connection is simple, and right where verbs wait: for jobs, or for the disk. Where they do not, four busy
threads mostly take the interpreter and the caches from each other: one that does a verb after the other answers a third
more. So this one reads what has come, answers what is small, whole and does not wait, and leaves the rest to a thread of
the connection's own (`Connection.serve`), which gives the connection back afterwards.
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


class Next(enum.Enum):
    """What becomes of a connection after its turn."""

    HERE = 1
    ELSEWHERE = 2
    GONE = 3


class Connection(Protocol):
    sock: socket.socket

    def turn(self) -> Next:
        """Answer what has come, as far as that takes neither a wait nor long. Never blocks."""

    def serve(self) -> None:
        """In a thread of its own: answer what `turn` left, then come back."""

    def end(self) -> None: ...


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._handles: tuple[int, ...] = os.pipe()
        self._reading, self._writing = self._handles
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._selector.register(self._reading, selectors.EVENT_READ)
        self._coming: deque[Connection] = deque()
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tenure-loop", daemon=True)
        self._thread.start()

    def add(self, connection: Connection) -> bool:
        """From any thread. False: it is over."""
        with self._lock:
            if self._stopping:
                return False
            self._coming.append(connection)
            with contextlib.suppress(BlockingIOError):
                os.write(self._writing, b"x")
        return True

    def stop(self) -> None:
        """Once every connection is gone."""
        with self._lock:
            self._stopping = True
            if self._handles:
                os.write(self._writing, b"x")
        self._thread.join(5)

    def disown(self) -> None:
        """In a forked child, where its thread is not."""
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
                    self._turn(key.data, known=True)
            while self._coming:
                # What came with its last request may be here already, and is not told again.
                self._turn(self._coming.popleft(), known=False)
        with self._lock:
            left = [*self._coming, *(key.data for key in self._selector.get_map().values() if key.data is not None)]
            self._close()
        for connection in left:
            connection.end()

    def _turn(self, connection: Connection, known: bool) -> None:
        after = connection.turn()
        if known and after is not Next.HERE:
            self._selector.unregister(connection.sock)
        elif not known and after is Next.HERE:
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)
        if after is Next.GONE:
            connection.end()
        elif after is Next.ELSEWHERE:
            threading.Thread(target=connection.serve, name="tenure-connection", daemon=True).start()

    def _close(self) -> None:
        """Once: by the second time its handles may be somebody else's, as in a child forked after it was stopped."""
        handles, self._handles = self._handles, ()
        if handles:
            self._selector.close()
        for handle in handles:
            os.close(handle)
