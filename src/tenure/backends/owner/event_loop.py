"""One thread that answers small verbs on all connections of a listener.

A thread for each connection is right for verbs that wait for jobs. For verbs that do not wait, several busy threads
mostly compete for the interpreter lock and the caches. So this thread reads what has arrived and carries out requests
that are small, complete and do not wait. Other requests go to the connection's own thread (`Connection.serve`), which
returns the connection afterwards.

Requests ready on all sockets are carried out together (`Dispatcher.run_each`), and where commits must reach the disk,
their replies wait for one sync:

    ready connections ─▶ read a request of each ─▶ carry them out: single plain jobs for one queue in one transaction
                      ─▶ more ready? those, too ─▶ one sync ─▶ send the replies

Each caller gets its own outcome, as if it had been alone.
"""

from __future__ import annotations

import contextlib
import enum
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tenure import telemetry
from tenure.protocol.dispatcher import DecodedRequest, Outcome


class AfterTurn(enum.Enum):
    """The next step for a connection after its turn."""

    KEEP = 1
    TO_THREAD = 2
    CLOSE = 3
    #: Its reply waits for a sync: `answer_held` sends it. It gets no turn before that.
    HOLD = 4
    #: It has a request to carry out: `carried_out` replies.
    CARRY_OUT = 5


class Connection(Protocol):
    sock: socket.socket

    @property
    def request(self) -> DecodedRequest:
        """The request to carry out, after CARRY_OUT."""

    def turn(self) -> AfterTurn:
        """Read what has arrived, as far as that needs neither a wait nor much time. Never blocks."""

    def carried_out(self, outcome: Outcome) -> AfterTurn:
        """Reply to the request. Never blocks."""

    def answer_held(self) -> AfterTurn:
        """Wait until the held request's commit is durable, and send the reply."""

    def serve(self) -> None:
        """Answer what `turn` left, in a thread of its own; then return the connection to the loop."""

    def end(self) -> None:
        """Close it."""


def serve_in_thread(connection: Connection) -> None:
    """Have a thread of its own serve the connection; end it if the system starts no more threads."""
    try:
        threading.Thread(target=connection.serve, name="tenure-connection", daemon=True).start()
    except RuntimeError as exc:
        telemetry.warn("connection_failed", exc)
        connection.end()


#: Seconds to wait after an error that no connection accounts for.
_AFTER_ERROR_S = 0.05
#: How often the loop looks for further requests to share a pending sync.
_LOOKS = 4


class EventLoop:
    def __init__(self, run_each: Callable[[Sequence[DecodedRequest]], list[Outcome]]) -> None:
        self._run_each = run_each
        self._selector = selectors.DefaultSelector()
        self._handles: tuple[int, ...] = os.pipe()
        self._reading, self._writing = self._handles
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._selector.register(self._reading, selectors.EVENT_READ)
        self._added: deque[Connection] = deque()
        #: Connections whose requests are to be carried out.
        self._begun: dict[Connection, None] = {}
        #: Connections whose replies wait for a sync.
        self._held: dict[Connection, None] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="tenure-loop", daemon=True)
        self._thread.start()

    def add(self, connection: Connection) -> bool:
        """Add a connection, from any thread. False: the loop has ended."""
        with self._lock:
            if self._stopping:
                return False
            self._added.append(connection)
            with contextlib.suppress(BlockingIOError):
                os.write(self._writing, b"x")
        return True

    def stop(self) -> None:
        """End the loop. Requires: every connection is gone."""
        with self._lock:
            self._stopping = True
            if self._handles:
                os.write(self._writing, b"x")
        self._thread.join(5)

    def disown(self) -> None:
        """Forget the loop's thread, which does not exist in a forked child."""
        self._lock = threading.Lock()
        self._stopping = True
        self._close()

    def _run(self) -> None:
        looks = 0
        while not self._stopping:
            try:
                more = self._turn_ready(0 if self._held or self._begun else None)
                self._carry_out()
                looks += 1
                if self._held and (not more or looks >= _LOOKS):
                    self._answer_held()
                if not self._held:
                    looks = 0
            except Exception as exc:  # noqa: BLE001 - this thread must survive: no other one answers
                telemetry.warn("requests_failed", exc)
                time.sleep(_AFTER_ERROR_S)
        self._carry_out()
        self._answer_held()
        with self._lock:
            left = [*self._added, *(key.data for key in self._selector.get_map().values() if key.data is not None)]
            self._close()
        for connection in left:
            connection.end()

    def _turn_ready(self, timeout: int | None) -> bool:
        """Give each ready connection its turn. False: none was ready."""
        more = False
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._reading, 4096)
            elif key.data not in self._held and key.data not in self._begun:
                more = True
                self._after_turn(key.data, key.data.turn())
        while self._added:
            # Requests that arrived with the last one may be in its buffer already, and cause no further event.
            connection = self._added.popleft()
            try:
                self._selector.register(connection.sock, selectors.EVENT_READ, connection)
            except (OSError, ValueError):  # the system has no room for it
                connection.end()
                continue
            self._after_turn(connection, connection.turn())
            more = True
        return more

    def _carry_out(self) -> None:
        begun, self._begun = list(self._begun), {}
        if not begun:
            return
        try:
            outcomes = self._run_each([connection.request for connection in begun])
        except Exception as exc:  # noqa: BLE001 - a bug ends these connections, not the loop
            telemetry.warn("requests_failed", exc)
            for connection in begun:
                self._after_turn(connection, AfterTurn.CLOSE)
            return
        for connection, outcome in zip(begun, outcomes, strict=True):
            self._after_turn(connection, connection.carried_out(outcome))

    def _answer_held(self) -> None:
        """Send the held replies: the sync that the first waits for covers all of them."""
        held, self._held = self._held, {}
        for connection in held:
            self._after_turn(connection, connection.answer_held())

    def _after_turn(self, connection: Connection, after: AfterTurn) -> None:
        if after is AfterTurn.HOLD:
            self._held[connection] = None
        elif after is AfterTurn.CARRY_OUT:
            self._begun[connection] = None
        elif after is not AfterTurn.KEEP:
            self._selector.unregister(connection.sock)
            if after is AfterTurn.CLOSE:
                connection.end()
            else:
                serve_in_thread(connection)

    def _close(self) -> None:
        """Close the file descriptors, once: later the numbers may belong to others, as in a child forked after the
        stop.
        """
        handles, self._handles = self._handles, ()
        if handles:
            self._selector.close()
        for handle in handles:
            os.close(handle)
