"""A small HTTP/1.1 server for the operations, inside any process, without further dependencies.

A store's owner serves other processes with it (the owner's socket); it speaks the same protocol as `tenure serve`. One
thread answers the small verbs of all connections, if these wait for nothing but a sync (`event_loop`). Otherwise a
connection has its own thread, which runs the verb; while it waits it also watches its socket, so that it notices at
once when the caller disconnects.

The accepting thread also supervises the connections: it closes one that has never sent a request, or that is stuck in a
request or an answer, after IDLE_SECONDS. `connection_limit` bounds their number: at the limit, the one that has been
idle longest is closed. Otherwise a caller that has sent a request may keep its connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from struct import Struct

from tenure import telemetry
from tenure.backends.owner.connection import Connection
from tenure.backends.owner.event_loop import EventLoop, serve_in_thread
from tenure.clock import SystemClock
from tenure.process import Layer, renewed_after_fork
from tenure.protocol.connection_limit import connection_limit
from tenure.protocol.dispatcher import Dispatcher
from tenure.protocol.head_cache import HeadCache
from tenure.protocol.identity import LOCAL, Identity

Identify = Callable[[Mapping[str, str]], Identity]


#: Seconds for a connection to send its first request, and the longest pause within a request or an answer.
IDLE_SECONDS = 30.0
#: Milliseconds between two log lines about refused connections.
_LOG_AGAIN_MS = 10_000
_clock = SystemClock()
#: Process, user and group at the other end of a Unix socket.
_PEER = Struct("3i")


def may_connect(sock: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket runs as this process's user, or as root.

    The socket's file mode should ensure it, but not every file system enforces that, and a file descriptor may be
    passed on.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    try:
        _, user, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except OSError:
        return False
    return user in (os.geteuid(), 0)


def _trusting(headers: Mapping[str, str]) -> Identity:
    return LOCAL


class Listener:
    """Answers requests on a listening socket, which it takes over, until stopped."""

    def __init__(
        self,
        listening: socket.socket,
        dispatcher: Dispatcher,
        identify: Identify = _trusting,
        idle_seconds: float = IDLE_SECONDS,
        connections: int = 0,
    ) -> None:
        """`connections`: how many at once; 0, and the upper bound: a quarter of the process's file descriptors."""
        self.dispatcher = dispatcher
        self._idle_ms = round(idle_seconds * 1000)
        self._limit = connection_limit(connections, share=0.25)
        self._checked_ms = _clock.steady_ms()
        self._refused = self._refusals_logged = 0
        self._logged_ms: int | None = None
        self.identify = identify
        self._listening = listening
        self._lock = threading.Lock()
        self._connections: dict[Connection, None] = {}
        self.loop = None if dispatcher.backend.waits_on == "io" else EventLoop(dispatcher.run_each)
        self.heads = HeadCache()
        #: Every caller has the same identity.
        self.trusting = identify is _trusting
        self.owner = os.getpid()
        renewed_after_fork(self, Layer.LISTENER)
        self._thread = threading.Thread(target=self._accept, name="tenure-listener", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # stopped before it began
            self._listening.settimeout(self._idle_ms / 4000)
        while True:
            self._close_stuck_connections()
            try:
                accepted, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError as exc:
                if self.dispatcher.stopping or self._listening.fileno() < 0:
                    return
                self._count_refusal(exc.strerror or str(exc))
                threading.Event().wait(0.05)  # no file descriptors are left until a connection ends
                continue
            if self.dispatcher.stopping:
                accepted.close()
                return
            if len(self._connections) >= self._limit and not self._close_idlest():
                self._count_refusal("all connections are in use")
                accepted.close()
                continue
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            elif not may_connect(accepted):
                accepted.close()
                continue
            connection = Connection(self, accepted)
            with self._lock:
                self._connections[connection] = None
            if self.loop is None:
                serve_in_thread(connection)
            elif not self.loop.add(connection):
                connection.end()

    def _close_stuck_connections(self) -> None:
        """Close connections that make no progress, every quarter of the idle time."""
        now = _clock.steady_ms()
        if now - self._checked_ms < self._idle_ms / 4:
            return
        self._checked_ms = now
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if connection.overdue(now, self._idle_ms):
                connection.force_close()

    def _close_idlest(self) -> bool:
        """Close the connection that has been idle longest. False: all are busy."""
        with self._lock:
            idle = [one for one in self._connections if not one.busy]
            if not idle:
                return False
            chosen = min(idle, key=lambda one: (one.answered > 0, one.idle_since_ms))
            self._connections.pop(chosen, None)
        chosen.force_close()
        return True

    def _count_refusal(self, reason: str) -> None:
        self._refused += 1
        now = _clock.steady_ms()
        if self._logged_ms is None or now - self._logged_ms >= _LOG_AGAIN_MS:
            count, self._refusals_logged, self._logged_ms = self._refused - self._refusals_logged, self._refused, now
            telemetry.warn("connections_refused", count=count, limit=self._limit, reason=reason)

    def forget(self, connection: Connection) -> None:
        with self._lock:
            self._connections.pop(connection, None)

    def stop(self, timeout: float = 5.0) -> bool:
        """Accept no more, end all waits, let current requests finish. False: already stopped, or forked."""
        if os.getpid() != self.owner or self.dispatcher.stopping:
            return False
        self.dispatcher.stop()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listening.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.finish()
        deadline = threading.Event()
        waited = 0.0
        while waited < timeout:
            with self._lock:
                if not self._connections:
                    break
            deadline.wait(0.005)
            waited += 0.005
        if self.loop is not None:
            self.loop.stop()
        return True

    def renew_after_fork(self) -> None:
        """Close the child's copy of the socket, which would accept connections that nobody answers."""
        self._lock = threading.Lock()
        self._listening.close()
        for connection in list(self._connections):
            connection.sock.close()
        if self.loop is not None:
            self.loop.disown()
