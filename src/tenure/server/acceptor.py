"""Accept connections, no more than the process has file descriptors for.

    accept ──▶ room? ──▶ hand over
                └─ no ──▶ close the connection that has been idle longest, or else refuse the new one

A process that runs out of file descriptors cannot open the next file of its store. So a listener stays below the limit
(`RLIMIT_NOFILE`) by a reserve. Idle connections are closed first, so that many silent ones cannot shut out callers.
Refusals are counted, and logged once in ten seconds, not one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable

from tenure.telemetry import warn

#: Connections accepted in one go, before the event loop does something else.
_BATCH = 64
#: Seconds before the next attempt if the process or the machine has no file descriptor left.
_RETRY_S = 0.2
#: Seconds before the next look if those just accepted are not handed over yet.
_LOOK_AGAIN_S = 0.01
#: Seconds that a handshake may take while others wait for its place.
_HANDSHAKE_PATIENCE_S = 1.0
#: Seconds between two lines of log about refusals.
_LOG_AGAIN_S = 10.0
_NO_HANDLES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts the connections of one listening socket, in a running event loop."""

    def __init__(
        self,
        listening: socket.socket,
        connect: Callable[[socket.socket], Awaitable[object]],
        *,
        limit: int,
        in_use: Callable[[], int],
        close_idle: Callable[[], bool] = lambda: False,
    ) -> None:
        """`connect` turns an accepted socket into a protocol, TLS included, and may raise OSError.

        `in_use` returns the number of open connections. `close_idle` closes an idle one and returns whether there was
        one.
        """
        self._listening = listening
        self._connect = connect
        self._limit = limit
        self._in_use = in_use
        self._close_idle = close_idle
        self._loop = asyncio.get_running_loop()
        #: Handshakes in progress, oldest first, and when each began.
        self._connecting: dict[asyncio.Task[None], float] = {}
        self._closed = False
        self.refused = 0
        self._logged_at: float | None = None
        self._logged_refusals = 0
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept nothing more. The owner of the socket closes it."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._listening)
            for task in tuple(self._connecting):
                task.cancel()

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)

    def _pause(self, seconds: float) -> None:
        """Leave callers in the kernel's backlog for so many seconds."""
        self._loop.remove_reader(self._listening)
        self._loop.call_later(seconds, self._resume)

    def _accept(self) -> None:
        for _ in range(_BATCH):
            room = self._make_room()
            if room is None:
                self._pause(_LOOK_AGAIN_S)
                return
            try:
                sock, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno in _NO_HANDLES:
                    self._count_refusal(exc.strerror or str(exc))
                    self._pause(_RETRY_S)
                    return
                raise
            if not room:
                self._count_refusal("all connections are in use")
                sock.close()
                continue
            sock.setblocking(False)
            task = self._loop.create_task(self._hand_over(sock))
            self._connecting[task] = self._loop.time()
            task.add_done_callback(lambda done: self._connecting.pop(done, None))

    def _make_room(self) -> bool | None:
        """Whether one more may be accepted; closes an idle one if needed. None: not known yet, look again."""
        if self._in_use() + len(self._connecting) < self._limit or self._close_idle():
            return True
        if not self._connecting:
            return False
        oldest, since = next(iter(self._connecting.items()))
        if self._loop.time() - since < _HANDSHAKE_PATIENCE_S:
            return None
        self._connecting.pop(oldest)
        oldest.cancel()
        return True

    async def _hand_over(self, sock: socket.socket) -> None:
        try:
            await self._connect(sock)
        except (OSError, ssl.SSLError, TimeoutError):  # a failed handshake, or a caller that has disconnected
            sock.close()
        except BaseException:
            with contextlib.suppress(OSError):
                sock.close()
            raise

    def _count_refusal(self, reason: str) -> None:
        self.refused += 1
        now = self._loop.time()
        if self._logged_at is None or now - self._logged_at >= _LOG_AGAIN_S:
            count, self._logged_refusals, self._logged_at = self.refused - self._logged_refusals, self.refused, now
            warn("connections_refused", count=count, limit=self._limit, reason=reason)
