"""One thread that answers small verbs on all of a listener's connections.

A thread a connection is simple, and right where a verb waits for jobs. Where verbs do not wait, four busy threads mostly
take the interpreter and the caches from each other. So this thread reads what has arrived and carries out requests that
are small, whole and do not wait. It leaves the rest to a thread of the connection's own (`Connection.serve`), which
gives the connection back afterwards.

Where a commit has to reach the disk, the loop does not sync for each request:

    ready connections ─▶ carry out the request of each, hold its reply ─▶ more ready? carry those out, too
                      ─▶ one sync ─▶ send the replies

So requests that wait on different sockets share a sync, as the threads of one process do (`storage.group_commit`), and
each is still a transaction, with an outcome, of its own.
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
    #: Its reply waits for a sync: `answer_held` sends it. It has no turn before.
    HOLD = 4


class Connection(Protocol):
    sock: socket.socket

    def turn(self) -> AfterTurn:
        """Answer what has arrived, as far as that takes neither a wait nor long. Never blocks."""

    def answer_held(self) -> AfterTurn:
        """Wait until the commit of the request that it holds is durable, and send the reply."""

    def serve(self) -> None:
        """In a thread of its own: answer what `turn` left, then give the connection back to the loop."""

    def end(self) -> None:
        """Close it."""


#: While replies wait for a sync, so often the loop looks for further requests that may share it.
_LOOKS = 4


class EventLoop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._handles: tuple[int, ...] = os.pipe()
        self._reading, self._writing = self._handles
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._selector.register(self._reading, selectors.EVENT_READ)
        self._added: deque[Connection] = deque()
        #: Connections whose replies wait for a sync.
        self._held: dict[Connection, None] = {}
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
        looks = 0
        while not self._stopping:
            more = self._turn_ready(None if not self._held else 0)
            looks += 1
            if self._held and (not more or looks >= _LOOKS):
                self._answer_held()
            if not self._held:
                looks = 0
        self._answer_held()
        with self._lock:
            left = [*self._added, *(key.data for key in self._selector.get_map().values() if key.data is not None)]
            self._close()
        for connection in left:
            connection.end()

    def _turn_ready(self, timeout: int | None) -> bool:
        """Give each connection that is ready its turn. False: none was."""
        more = False
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._reading, 4096)
            elif key.data not in self._held:
                more = True
                self._after_turn(key.data, key.data.turn())
        while self._added:
            # What arrived together with its last request may be in its buffer already: no event tells of it again.
            connection = self._added.popleft()
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)
            self._after_turn(connection, connection.turn())
            more = True
        return more

    def _answer_held(self) -> None:
        """Send the replies that wait: the sync that the first waits for serves all of them."""
        held, self._held = self._held, {}
        for connection in held:
            self._after_turn(connection, connection.answer_held())

    def _after_turn(self, connection: Connection, after: AfterTurn) -> None:
        if after is AfterTurn.HOLD:
            self._held[connection] = None
        elif after is not AfterTurn.KEEP:
            self._selector.unregister(connection.sock)
            if after is AfterTurn.CLOSE:
                connection.end()
            else:
                threading.Thread(target=connection.serve, name="tenure-connection", daemon=True).start()

    def _close(self) -> None:
        """Once: a second time its handles may be another's, as in a child that was forked after it was stopped."""
        handles, self._handles = self._handles, ()
        if handles:
            self._selector.close()
        for handle in handles:
            os.close(handle)
