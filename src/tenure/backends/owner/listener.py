"""A small HTTP/1.1 server for the operations, inside any process, with nothing to install.

It is how a store's owner lets other processes in (the owner's socket), and speaks the same protocol as `tenure serve`.
Each connection has a thread, which runs the verb itself; while it waits it watches its socket too, so that it notices
at once when the caller leaves. Where small verbs wait for nothing, one thread answers those of all connections
(`event_loop`).

The accepting thread also looks after the connections: one that has never asked for anything, or stands still in a
request or an answer, is closed after IDLE_SECONDS. There are no more of them than `connection_limit` allows: at the
limit, the one that has been quiet longest goes. A caller that has asked before may keep its connection as long as it
likes otherwise.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Mapping
from struct import Struct
from urllib.parse import parse_qsl

from tenure import telemetry
from tenure.backends.owner.event_loop import AfterTurn, EventLoop
from tenure.clock import SystemClock
from tenure.errors import InvalidArgument, TenureError, TooLarge
from tenure.process import Layer, renewed_after_fork
from tenure.protocol.answer import Abandoned, Exchange, InlineExchange, answer, run_now
from tenure.protocol.connection_limit import connection_limit
from tenure.protocol.dispatcher import DecodedRequest, Dispatcher, Reply
from tenure.protocol.head_cache import HeadCache, Match
from tenure.protocol.http_heads import parse, render
from tenure.protocol.identity import LOCAL, Identity

Identify = Callable[[Mapping[str, str]], Identity]


#: Seconds in which a connection must send its first request, and may stand still in a request or an answer.
IDLE_SECONDS = 30.0
#: Bytes a second: slower bodies and readers are cut off.
MIN_RATE = 4096
#: Between two lines of log about refused connections.
_QUIET_MS = 10_000
_clock = SystemClock()
#: Process, user and group at the other end of a Unix socket.
_PEER = Struct("3i")
#: A request with one of these headers is left to the connection's own thread.
_UNUSUAL = frozenset({"transfer-encoding", "expect", "connection", "upgrade"})
#: So is a request of more bytes than this, which may take a while.
_INLINE_BYTES = 64 * 1024
#: After so many small verbs a connection that had a thread of its own goes back to the event loop.
_STEADY = 8


class CallerGone(Abandoned):
    """The caller has closed the connection."""


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
        self._connections: dict[_Connection, None] = {}
        self.loop = EventLoop() if dispatcher.backend.waits_on == "nothing" else None
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
            connection = _Connection(self, accepted)
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

    def forget(self, connection: _Connection) -> None:
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


class _Connection:
    """One caller's connection, served by the event loop or by a thread of its own."""

    def __init__(self, listener: Listener, sock: socket.socket) -> None:
        self._listener = listener
        self._dispatcher = listener.dispatcher
        self.sock = sock
        self._buffer = bytearray()
        self._busy = False
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._unsent = b""
        #: So many small verbs in a row have not waited.
        self._small = 0
        #: Requests that it has had answered; as the listener last saw it, with what was in its buffer, and since when.
        self.answered = 0
        self._seen = (0, 0)
        self.quiet_since_ms = _clock.steady_ms()
        #: By when its body must have come, or its answer been taken, at the least rate; 0: neither is under way.
        self._late_at_ms = 0

    @property
    def busy(self) -> bool:
        return self._busy

    def overdue(self, now_ms: int, idle_ms: int) -> bool:
        """Called by the accepting thread alone: whether the connection gets nowhere."""
        if self._late_at_ms:
            return now_ms > self._late_at_ms
        seen = (self.answered, len(self._buffer))
        if self._busy or seen != self._seen:
            self._seen, self.quiet_since_ms = seen, now_ms
            return False
        half = seen[1] > 0  # a part of a head
        return (half or not self.answered) and now_ms - self.quiet_since_ms >= idle_ms

    def cut_off(self) -> None:
        """End it from another thread, whatever it is doing: a blocked call on the socket returns."""
        with self._lock, contextlib.suppress(OSError):
            if self.sock.fileno() >= 0:
                self.sock.shutdown(socket.SHUT_RDWR)

    def _allow(self, size: int) -> None:
        """From now on so many bytes have to travel at the least rate."""
        self._late_at_ms = _clock.steady_ms() + self._listener._idle_ms + size * 1000 // MIN_RATE

    def end(self) -> None:
        self._listener.forget(self)
        with self._lock:
            pipe, self._pipe = self._pipe, None
            self.sock.close()
        for handle in pipe or ():
            os.close(handle)

    def finish(self) -> None:
        """End it: now between two requests, otherwise after the one under way."""
        with self._lock:
            if not self._busy and self.sock.fileno() >= 0:
                with contextlib.suppress(OSError):
                    self.sock.shutdown(socket.SHUT_RDWR)

    # ── in the event loop ────────────────────────────────────────────────────────────────────────────────────────────

    def turn(self) -> AfterTurn:
        """Answer what has arrived, as far as that takes neither a wait nor long."""
        buffer = self._buffer
        try:
            with contextlib.suppress(BlockingIOError):
                got = self.sock.recv(262_144, socket.MSG_DONTWAIT)
                if not got:
                    return AfterTurn.CLOSE
                if not buffer and (match := self._listener.heads.find(got)) is not None:
                    return self._answer_match(match, got)
                buffer += got
            while (end := buffer.find(b"\r\n\r\n")) >= 0:
                if not self._answer_inline(end):
                    return AfterTurn.TO_THREAD
                if self._dispatcher.stopping:
                    return AfterTurn.CLOSE
            return AfterTurn.KEEP if len(buffer) <= self._dispatcher.limits.head_bytes else AfterTurn.CLOSE
        except OSError:
            return AfterTurn.CLOSE
        except Exception as exc:  # noqa: BLE001 - a bug must not end without a word
            telemetry.warn("connection_failed", exc)
            return AfterTurn.CLOSE

    def _answer_match(self, match: Match, got: bytes) -> AfterTurn:
        """Answer a request whose head is in the cache: the listener trusts all callers (`Listener.trusting`)."""
        head, headers = match.cached
        exchange = InlineExchange(
            self._dispatcher, head.operation.method, "", headers, got[match.body :], identity=head.identity
        )
        exchange.use_head(head, match.request_id)
        with self._lock:
            self._busy = True
        try:
            reply = exchange.answer()
            if reply is None:
                self._buffer += got
                return AfterTurn.TO_THREAD
            if not self._sent_at_once(reply):
                return AfterTurn.TO_THREAD
        finally:
            with self._lock:
                self._busy = False
        return AfterTurn.CLOSE if self._dispatcher.stopping else AfterTurn.KEEP

    def _answer_inline(self, end: int) -> bool:
        """Answer the request whose head ends there; False: it needs a thread of its own, and is still in the buffer."""
        method, target, headers = parse(self._buffer[:end].decode("latin-1"))
        length = headers.get("content-length", "0")
        if not method or "?" in target or not length.isdigit() or not _UNUSUAL.isdisjoint(headers):
            return False
        whole = end + 4 + int(length)
        if len(self._buffer) < whole or whole > _INLINE_BYTES:
            return False
        data, listener = bytes(self._buffer[:whole]), self._listener
        exchange = InlineExchange(
            self._dispatcher, method, target, headers, data[end + 4 :], identify=listener.identify
        )
        with self._lock:
            self._busy = True
        try:
            reply = exchange.answer()
            if reply is None:
                return False
            head = exchange.cacheable_head(reply) if listener.trusting else None
            if head is not None:
                listener.heads.store(data, head, headers)
            del self._buffer[:whole]
            return self._sent_at_once(reply)
        finally:
            with self._lock:
                self._busy = False

    def _sent_at_once(self, reply: Reply) -> bool:
        """False: some of it is left for a thread to send."""
        data = render(reply, not self._dispatcher.stopping)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            sent = self.sock.send(data, socket.MSG_DONTWAIT)
        self.answered += 1
        self._unsent = data[sent:]
        return not self._unsent

    # ── in a thread of its own ───────────────────────────────────────────────────────────────────────────────────────

    def serve(self) -> None:
        loop = self._listener.loop
        try:
            if self._unsent:
                self._send(self._unsent)
                self._unsent = b""
            self._small = 0
            while self._serve_one():
                # A caller that waits once will wait again: a thread is not made anew for every wait.
                if loop is not None and self._small >= _STEADY and loop.add(self):
                    return
        except (OSError, Abandoned):
            pass  # the caller left, or the listener stops
        except Exception as exc:  # noqa: BLE001 - as in `turn`
            telemetry.warn("connection_failed", exc)
        self.end()

    def _serve_one(self) -> bool:
        """Serve one request; False: the connection is over."""
        head = self._read_head()
        if head is None:
            return False
        with self._lock:
            self._busy = True
        if self._dispatcher.stopping:
            return False
        method, target, headers = parse(head)
        try:
            if not method:
                raise InvalidArgument("that is not HTTP/1.1")
            size = self._body_size(headers)
        except TenureError as exc:  # where the next request begins on this connection is not known any more
            self.sock.sendall(render(Dispatcher.refusal(exc, headers), keep=False))
            return False
        exchange = _ThreadExchange(self, method, target, headers, size)
        reply = run_now(answer(self._dispatcher, exchange))
        request = exchange.request
        plain = request is not None and request.waiting is None and request.operation.small
        self._small = self._small + 1 if plain else 0
        keep = headers.get("connection", "").lower() != "close" and not self._dispatcher.stopping
        keep = keep and not exchange.unsent_body
        self._send(render(reply, keep))
        self.answered += 1
        if keep and exchange.unread:  # refused before it was read: the next request is behind it
            self.read_body(exchange.unread, keep=False)
        with self._lock:
            self._busy = False
            return keep and not self._dispatcher.stopping

    def _send(self, data: bytes) -> None:
        self._allow(len(data))
        self.sock.sendall(data)
        self._late_at_ms = 0

    def _read_head(self) -> str | None:
        """None: the caller has closed the connection between two requests."""
        buffer, limit = self._buffer, self._dispatcher.limits.head_bytes
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            if len(buffer) > limit:
                raise CallerGone
            got = self.sock.recv(65536)
            if not got:
                return None
            buffer += got
        head = buffer[:end].decode("latin-1")
        del buffer[: end + 4]
        return head

    def _body_size(self, headers: Mapping[str, str]) -> int:
        """Raises InvalidArgument, TooLarge."""
        if "transfer-encoding" in headers:
            raise InvalidArgument("a request's body comes with a Content-Length here")
        length = headers.get("content-length", "0")
        if not length.isdigit():
            raise InvalidArgument(f"Content-Length {length!r} is no length")
        size, limit = int(length), self._dispatcher.limits.body_bytes
        if size > limit:
            raise TooLarge("the request", size, limit)
        return size

    def read_body(self, size: int, *, keep: bool = True) -> bytes:
        """The next `size` bytes. `keep=False`: read and drop them, so that the next request is found."""
        buffer = self._buffer
        if len(buffer) < size:
            self._allow(size)
        while len(buffer) < size:
            if not keep:
                size -= len(buffer)
                buffer.clear()
            try:
                got = self.sock.recv(max(65536, min(size - len(buffer), 1 << 20)))
            except OSError as exc:
                raise CallerGone from exc
            if not got:
                raise CallerGone
            buffer += got
        self._late_at_ms = 0
        body = bytes(buffer[:size])
        del buffer[:size]
        return body

    def wait(self, request: DecodedRequest) -> object:
        """The answer to a request that waits. Raises CallerGone as soon as the caller has left."""
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
        reading, writing = self._pipe

        def notify() -> None:
            # Under the lock: a late call must not write to a handle that was closed, and may be another's by now.
            with self._lock:
                if self._pipe is not None:
                    with contextlib.suppress(BlockingIOError):
                        os.write(writing, b"x")

        poll = select.poll()
        poll.register(reading, select.POLLIN)
        poll.register(self.sock, select.POLLIN)
        wait = self._dispatcher.wait(request, notify)
        try:
            while True:
                found = wait.look()
                if found is not None:
                    if caller_left(self.sock):
                        wait.give_back(found)
                        raise CallerGone
                    return found
                for handle, _ in poll.poll():
                    if handle == reading:
                        os.read(reading, 4096)
                    else:
                        raise CallerGone  # a caller sends nothing before it has its answer: it has closed its end
        finally:
            wait.close()


class _ThreadExchange(Exchange):
    """A request served by its connection's own thread, which blocks."""

    def __init__(
        self, connection: _Connection, method: str, target: str, headers: Mapping[str, str], size: int
    ) -> None:
        path, _, query = target.partition("?")
        super().__init__(method, path, dict(parse_qsl(query, keep_blank_values=True)) if query else {}, headers)
        self._connection = connection
        #: Bytes of the body that are not read yet.
        self.unread = size

    async def identify(self) -> Identity:
        return self._connection._listener.identify(self.headers)

    async def body(self) -> bytes:
        if self._expects_100:
            try:
                self._connection.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            except OSError as exc:
                raise CallerGone from exc
        body = self._connection.read_body(self.unread)
        self.unread = 0
        return body

    @property
    def unsent_body(self) -> bool:
        """Whether the caller holds its body back, and nobody knows if it is still to come."""
        return bool(self.unread) and self._expects_100

    @property
    def _expects_100(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue"

    async def carry_out(self, request: DecodedRequest) -> object:
        if request.waiting is not None:
            return self._connection.wait(request)
        return self._connection._dispatcher.run(request)


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


def caller_left(sock: socket.socket) -> bool:
    """Whether the caller has closed its end by now."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
