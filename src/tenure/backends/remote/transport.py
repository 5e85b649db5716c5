"""A small HTTP/1.1 client: pooled connections shared by threads, deadlines, and safe repeats.

A request without an answer is sent again, with the same id, until its deadline: the server remembers the outcome under
that id and answers the same. (http.client takes nearly twice the processor time for a request, httpx seven times:
docs/adr.)
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tenure.backends.remote.address import Address
from tenure.errors import StoreClosed, TenureError, Unavailable

#: Seconds between two checks whether the caller has cancelled.
_CANCEL_CHECK_S = 0.05
_POOL_SIZE = 64


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes
    retry_after: str | None


class Unreachable(Unavailable):
    """No answer came: the server is gone, or cannot be reached."""


class Broken(OSError):
    """The connection ended before or inside an answer."""


class Connection:
    """One connection, used by one thread at a time. `timeout` applies to each step of a request, besides its wait."""

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self.sock = sock
        if isinstance(sock, ssl.SSLSocket):
            sock.settimeout(timeout)
        else:
            # Let the kernel time out: Python's own timeout polls before every call, 7 µs each.
            sock.settimeout(None)
            seconds, part = divmod(timeout, 1)
            for which in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, which, struct.pack("@ll", int(seconds), int(part * 1e6)))
        #: Whether it has served before: then its end may only mean that it was idle for too long.
        self.used = False
        self.keep = True
        self._buffer = bytearray()

    def send(self, request: Sequence[bytes]) -> None:
        for part in request:
            self.sock.sendall(part)

    def ready(self, timeout: float) -> bool:
        """Whether an answer begins to arrive within that time."""
        if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            return True
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def receive(self) -> Answer:
        buffer, recv = self._buffer, self.sock.recv
        while True:
            while (end := buffer.find(b"\r\n\r\n")) < 0:
                got = recv(262_144)
                if not got:
                    raise Broken("the connection was closed")
                buffer += got
            head = buffer[:end].decode("latin-1")
            del buffer[: end + 4]
            if not head.startswith("HTTP/1.1 100"):
                break
        status = int(head[9:12])
        headers = _headers(head)
        length = headers.get("content-length")
        if length is not None:
            body = self._exactly(int(length))
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._chunks()
        else:
            raise Broken("an answer without a length")
        self.used = True
        if headers.get("connection", "").lower() == "close":
            self.keep = False
        return Answer(status, headers.get("content-type", ""), body, headers.get("retry-after"))

    def _exactly(self, size: int) -> bytes:
        buffer = self._buffer
        while len(buffer) < size:
            got = self.sock.recv(max(65536, min(size - len(buffer), 1 << 20)))
            if not got:
                raise Broken("the connection was closed inside an answer")
            buffer += got
        body = bytes(buffer[:size])
        del buffer[:size]
        return body

    def _chunks(self) -> bytes:
        whole = bytearray()
        while True:
            while (end := self._buffer.find(b"\r\n")) < 0:
                got = self.sock.recv(65536)
                if not got:
                    raise Broken("the connection was closed inside an answer")
                self._buffer += got
            size = int(bytes(self._buffer[:end]).partition(b";")[0], 16)
            del self._buffer[: end + 2]
            part = self._exactly(size + 2)
            if not size:
                return bytes(whole)
            whole += part[:-2]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def _headers(head: str) -> dict[str, str]:
    found = {}
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        found[name.lower()] = value.strip()
    return found


class Transport:
    """A pool of connections to one server. Thread-safe."""

    def __init__(
        self, address: Address, *, timeout: float = 30.0, ca_file: str | None = None, retry: bool = True
    ) -> None:
        """Without `retry`, a request that gets no answer raises at once."""
        self.address = address
        self.timeout = timeout
        self._retry = retry
        self.retried: Callable[[str], None] = lambda reason: None
        self._context = ssl.create_default_context(cafile=ca_file) if address.tls else None
        self._idle: deque[Connection] = deque()
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._waiting: set[Connection] = set()
        self._closed: TenureError | None = None

    def exchange(
        self,
        request: Sequence[bytes],
        *,
        wait: float = 0.0,
        patience: float | None = None,
        cancel: threading.Event | None = None,
        call_off: Callable[[], None] | None = None,
    ) -> Answer:
        """Send a request, repeating it while no answer comes, until `patience` (default: the timeout) has passed.

        `wait` is how long the server may additionally wait. If `cancel` is set meanwhile, `call_off` is called, and the
        answer received. Raises Unavailable, StoreClosed.
        """
        patience = (self.timeout if self._retry else 0.0) if patience is None else patience
        until = time.monotonic() + patience
        tries = 0
        while True:
            connection: Connection | None = None
            try:
                # Patience limits the repeats: the first try may take the connection's whole timeout.
                left = until - time.monotonic() if tries else self.timeout
                connection = self._connection(max(0.05, min(left, 10.0)))
                answer = self._try_once(connection, request, wait, cancel, call_off)
                if answer.status != 503 or answer.retry_after is None:
                    return answer
                reason: str = "the server is going down"
            except OSError as exc:
                if self._closed is not None:
                    raise self.closed() from None
                reason = _reason(exc)
                if connection is not None and connection.used:
                    # The server closed it while it was idle, and probably the other idle ones, too.
                    self._drop_idle()
                    if time.monotonic() < until:
                        continue
            finally:
                if connection is not None:
                    self._return_to_pool(connection)
            tries += 1
            pause = min(0.01 * 2**tries, 0.5)
            if time.monotonic() + pause > until:
                raise Unreachable(f"{self.address.url} does not answer: {reason}")
            self.retried("request")
            time.sleep(pause)

    def _try_once(
        self,
        connection: Connection,
        request: Sequence[bytes],
        wait: float,
        cancel: threading.Event | None,
        call_off: Callable[[], None] | None,
    ) -> Answer:
        try:
            connection.send(request)
            if wait:
                self._wait(connection, wait, cancel, call_off)
            return connection.receive()
        except ValueError as exc:  # no status, or no length
            connection.close()
            raise Broken("the answer is not HTTP/1.1") from exc
        except BaseException:
            connection.close()
            raise

    def _wait(
        self, connection: Connection, wait: float, cancel: threading.Event | None, call_off: Callable[[], None] | None
    ) -> None:
        """Return when the answer begins to arrive. If `cancel` is set, cancel the request at the server."""
        if cancel is None or call_off is None:
            return self._wait_uncancellable(connection, wait)
        until = time.monotonic() + wait + self.timeout
        while not connection.ready(_CANCEL_CHECK_S):
            if cancel.is_set():
                call_off()
                return None
            if time.monotonic() > until:
                raise TimeoutError("no answer in time")
        return None

    def _wait_uncancellable(self, connection: Connection, wait: float) -> None:
        if not connection.ready(wait + self.timeout):
            raise TimeoutError("no answer in time")

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _connection(self, timeout: float) -> Connection:
        self._refuse_closed()
        try:
            found = self._idle.pop()
        except IndexError:
            found = Connection(self.address.connect(timeout, self._context), self.timeout)
        with self._lock:
            self._waiting.add(found)
            closed_meanwhile = self._closed
        if closed_meanwhile is not None:
            self._return_to_pool(found)
            raise self.closed()
        return found

    def _return_to_pool(self, connection: Connection) -> None:
        with self._lock:
            self._waiting.discard(connection)
        if (
            connection.keep
            and connection.used
            and connection.sock.fileno() >= 0
            and self._closed is None
            and len(self._idle) < _POOL_SIZE
        ):
            self._idle.append(connection)
        else:
            connection.close()

    def _drop_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().close()

    def _refuse_closed(self) -> None:
        if self._closed is not None:
            raise self.closed()

    def closed(self) -> TenureError:
        return StoreClosed(str(self._closed))

    def close(self, reason: str = "this store was closed") -> None:
        """Close all connections, which ends every request under way."""
        self._closed = self._closed or StoreClosed(reason)
        with self._lock:
            under_way = list(self._waiting)
        for connection in under_way:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        self._drop_idle()

    def disown(self) -> None:
        """Forget the parent's connections in a forked child; closing the copies does not end them."""
        self._lock = threading.RLock()  # reentrant: a signal handler may run a verb at any point
        self._closed = StoreClosed(
            "this process is a fork of the one that opened the store: open it again in the child"
        )
        for connection in [*self._idle, *self._waiting]:
            connection.sock.close()
        self._idle.clear()
        self._waiting.clear()


#: OpenSSL's codes for a certificate whose authority is not known: issuer missing, self-signed, in a chain, not verified.
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)


def _reason(error: OSError) -> str:
    if isinstance(error, BlockingIOError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _UNKNOWN_AUTHORITY:
        return f"{error}. If you trust its certificate, name the file of its authority in storage.http.ca_file"
    return str(error) or type(error).__name__
