"""A small HTTP/1.1 server for the operations, inside any process, with nothing to install.

It is how a store's owner lets other processes in (the owner's socket), and speaks the same protocol as `tenure serve`.
One thread answers the small verbs of all connections, where they wait for nothing but a sync (`event_loop`). Otherwise a
connection has a thread, which runs the verb itself; while it waits it watches its socket too, so that it notices at once
when the caller leaves.

The accepting thread also looks after the connections: one that has never asked for anything, or stands still in a
request or an answer, is closed after IDLE_SECONDS. There are no more of them than `connection_limit` allows: at the
limit, the one that has been quiet longest goes. A caller that has asked before may keep its connection as long as it
likes otherwise.
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
from tenure.backends.owner.event_loop import EventLoop
from tenure.clock import SystemClock
from tenure.process import Layer, renewed_after_fork
from tenure.protocol.connection_limit import connection_limit
from tenure.protocol.dispatcher import Dispatcher
from tenure.protocol.head_cache import HeadCache
from tenure.protocol.identity import LOCAL, Identity

Identify = Callable[[Mapping[str, str]], Identity]


#: Seconds in which a connection must send its first request, and may stand still in a request or an answer.
IDLE_SECONDS = 30.0
#: Between two lines of log about refused connections.
_QUIET_MS = 10_000
_clock = SystemClock()
#: Process, user and group at the other end of a Unix socket.
_PEER = Struct("3i")


def may_connect(sock: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket runs as this process's user, or as root.

    The socket's file mode says the same, but not on every file system, nor for a handle that was passed on.
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
    """Answers on a listening socket, which it takes over, until stopped."""

    def __init__(
        self,
        listening: socket.socket,
        dispatcher: Dispatcher,
        identify: Identify = _trusting,
        idle_seconds: float = IDLE_SECONDS,
        connections: int = 0,
    ) -> None:
        """`connections`: how many at once; 0, and at most: a quarter of what the process has handles for."""
        self.dispatcher = dispatcher
        self._idle_ms = round(idle_seconds * 1000)
        self._limit = connection_limit(connections, share=0.25)
        self._looked_ms = _clock.steady_ms()
        self._refused = self._refused_told = 0
        self._told_ms: int | None = None
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
            self._look_after_connections()
            try:
                accepted, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError as exc:
                if self.dispatcher.stopping or self._listening.fileno() < 0:
                    return
                self._count_refusal(exc.strerror or str(exc))
                threading.Event().wait(0.05)  # out of handles, until a connection ends
                continue
            if self.dispatcher.stopping:
                accepted.close()
                return
            if len(self._connections) >= self._limit and not self._close_quiet():
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
                threading.Thread(target=connection.serve, name="tenure-connection", daemon=True).start()
            elif not self.loop.add(connection):
                connection.end()

    def _look_after_connections(self) -> None:
        """Every quarter of the idle time: end connections that get nowhere."""
        now = _clock.steady_ms()
        if now - self._looked_ms < self._idle_ms / 4:
            return
        self._looked_ms = now
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if connection.overdue(now, self._idle_ms):
                connection.cut_off()

    def _close_quiet(self) -> bool:
        """Close the connection that has been quiet longest; False: all are busy."""
        with self._lock:
            quiet = [one for one in self._connections if not one.busy]
            if not quiet:
                return False
            chosen = min(quiet, key=lambda one: (one.answered > 0, one.quiet_since_ms))
            self._connections.pop(chosen, None)
        chosen.cut_off()
        return True

    def _count_refusal(self, reason: str) -> None:
        self._refused += 1
        now = _clock.steady_ms()
        if self._told_ms is None or now - self._told_ms >= _QUIET_MS:
            count, self._refused_told, self._told_ms = self._refused - self._refused_told, self._refused, now
            telemetry.warn("connections_refused", count=count, limit=self._limit, reason=reason)

    def forget(self, connection: Connection) -> None:
        with self._lock:
            self._connections.pop(connection, None)

    def stop(self, timeout: float = 5.0) -> bool:
        """Accept no more, end all waits, let requests under way finish. False: it was stopped before, or forked."""
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
        """A copy of the socket kept open in the child would accept connections that nobody answers."""
        self._lock = threading.Lock()
        self._listening.close()
        for connection in list(self._connections):
            connection.sock.close()
        if self.loop is not None:
            self.loop.disown()
