"""A connection of the owner's listener: reads requests, has them answered, and notices when the caller disconnects.

turn     on the event loop: reads a small request that has arrived completely; hands the connection to a thread otherwise.
         The loop carries it out together with those of other connections, and `carried_out` replies; a reply whose
         commit needs a sync is held until the sync that they share is complete (`answer_held`)
serve    in the connection's own thread: answers one request after another, and may block
wait     in that thread: waits for the store and for the caller's end of the socket at once
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl

from tenure import telemetry
from tenure.backends.owner.event_loop import AfterTurn
from tenure.clock import SystemClock
from tenure.contract.backend import PendingSync
from tenure.errors import InvalidArgument, TenureError, TooLarge
from tenure.protocol.answer import Abandoned, Exchange, InlineExchange, NotInline, answer, run_now
from tenure.protocol.dispatcher import DecodedRequest, Dispatcher, Outcome, Reply
from tenure.protocol.head_cache import Match
from tenure.protocol.http_heads import parse, render
from tenure.protocol.identity import Identity

if TYPE_CHECKING:
    from tenure.backends.owner.listener import Listener

#: Bytes a second: connections with slower bodies or readers are closed.
MIN_RATE = 4096
_clock = SystemClock()
#: Requests with one of these headers are left to the connection's own thread.
_THREAD_HEADERS = frozenset({"transfer-encoding", "expect", "connection", "upgrade"})
#: So are larger requests, which may take long.
_INLINE_BYTES = 64 * 1024
#: After so many small verbs, a connection with its own thread returns to the event loop.
_SMALL_VERBS_IN_A_ROW = 8


class CallerGone(Abandoned):
    """The caller has closed the connection."""


class HeldReply(NamedTuple):
    """A reply that may be sent once its commit is durable."""

    reply: Reply
    sync: PendingSync
    #: The request's headers: an error is encoded in the caller's format.
    headers: Mapping[str, str]


class Connection:
    """One caller's connection, served by the event loop or by its own thread."""

    def __init__(self, listener: Listener, sock: socket.socket) -> None:
        self._listener = listener
        self._dispatcher = listener.dispatcher
        self.sock = sock
        self._buffer = bytearray()
        self._busy = False
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._unsent = b""
        #: A request being carried out by the event loop, and its bytes if its head may be cached.
        self._begun: InlineExchange | None = None
        self._cacheable: bytes | None = None
        self._held: HeldReply | None = None
        #: How many small verbs in a row did not wait.
        self._small_verbs = 0
        #: Requests answered; as last seen by the accepting thread, with the size of the buffer, and since when.
        self.answered = 0
        self._last_seen = (0, 0)
        self.idle_since_ms = _clock.steady_ms()
        #: When its body must have arrived, or its answer been read, at the minimum rate; 0: neither is under way.
        self._deadline_ms = 0

    @property
    def busy(self) -> bool:
        return self._busy

    def overdue(self, now_ms: int, idle_ms: int) -> bool:
        """Whether the connection makes no progress. Called by the accepting thread only."""
        if self._deadline_ms:
            return now_ms > self._deadline_ms
        seen = (self.answered, len(self._buffer))
        if self._busy or seen != self._last_seen:
            self._last_seen, self.idle_since_ms = seen, now_ms
            return False
        half = seen[1] > 0  # part of a head has arrived
        return (half or not self.answered) and now_ms - self.idle_since_ms >= idle_ms

    def force_close(self) -> None:
        """Close it from another thread, whatever it is doing: a blocked call on the socket returns."""
        with self._lock, contextlib.suppress(OSError):
            if self.sock.fileno() >= 0:
                self.sock.shutdown(socket.SHUT_RDWR)

    def _start_deadline(self, size: int) -> None:
        """Start the deadline for so many bytes at the minimum rate."""
        self._deadline_ms = _clock.steady_ms() + self._listener._idle_ms + size * 1000 // MIN_RATE

    def end(self) -> None:
        self._listener.forget(self)
        with self._lock:
            pipe, self._pipe = self._pipe, None
            self.sock.close()
        for handle in pipe or ():
            os.close(handle)

    def finish(self) -> None:
        """Close it: now if it is between two requests, otherwise after the current one."""
        with self._lock:
            if not self._busy and self.sock.fileno() >= 0:
                with contextlib.suppress(OSError):
                    self.sock.shutdown(socket.SHUT_RDWR)

    # ── in the event loop ────────────────────────────────────────────────────────────────────────────────────────────

    def turn(self) -> AfterTurn:
        """Begin the requests that have arrived, as far as that needs neither a wait nor much time."""
        return self._logging_bugs(self._turn)

    def answer_held(self) -> AfterTurn:
        """Send the reply that waited for a sync, and continue with what has arrived meanwhile."""
        return self._logging_bugs(self._answer_held)

    def _logging_bugs(self, step: Callable[[], AfterTurn]) -> AfterTurn:
        try:
            return step()
        except OSError:
            return AfterTurn.CLOSE
        except Exception as exc:  # noqa: BLE001 - log a bug before the connection ends
            telemetry.warn("connection_failed", exc)
            return AfterTurn.CLOSE

    def _turn(self) -> AfterTurn:
        with contextlib.suppress(BlockingIOError):
            got = self.sock.recv(262_144, socket.MSG_DONTWAIT)
            if not got:
                return AfterTurn.CLOSE
            if not self._buffer and (match := self._listener.heads.find(got)) is not None:
                return self._begin_match(match, got)
            self._buffer += got
        return self._begin_buffered()

    def _begin_buffered(self) -> AfterTurn:
        buffer, after = self._buffer, AfterTurn.KEEP
        while after is AfterTurn.KEEP and (end := buffer.find(b"\r\n\r\n")) >= 0:
            after = self._begin_inline(end)
        if after is AfterTurn.KEEP and len(buffer) > self._dispatcher.limits.head_bytes:
            return AfterTurn.CLOSE
        return after

    def _begin_match(self, match: Match, got: bytes) -> AfterTurn:
        """Begin a request whose head is in the cache: the listener trusts all callers (`Listener.trusting`)."""
        head, headers = match.cached
        exchange = InlineExchange(
            self._dispatcher, head.operation.method, "", headers, got[match.body :], identity=head.identity
        )
        exchange.use_head(head, match.request_id)
        after = self._begin(exchange)
        if after is AfterTurn.TO_THREAD and not self._unsent:
            self._buffer += got
        return after

    def _begin_inline(self, end: int) -> AfterTurn:
        """Begin the request whose head ends at `end`.

        TO_THREAD: it is still in the buffer, unless it has been answered.
        """
        method, target, headers = parse(self._buffer[:end].decode("latin-1"))
        length = headers.get("content-length", "0")
        if not method or "?" in target or not length.isdigit() or not _THREAD_HEADERS.isdisjoint(headers):
            return AfterTurn.TO_THREAD
        whole = end + 4 + int(length)
        if len(self._buffer) < whole or whole > _INLINE_BYTES:
            return AfterTurn.TO_THREAD
        data, listener = bytes(self._buffer[:whole]), self._listener
        exchange = InlineExchange(
            self._dispatcher, method, target, headers, data[end + 4 :], identify=listener.identify
        )
        after = self._begin(exchange)
        if after is not AfterTurn.TO_THREAD or self._unsent:
            del self._buffer[:whole]
        if after is AfterTurn.CARRY_OUT and listener.trusting:
            self._cacheable = data
        return after

    def _begin(self, exchange: InlineExchange) -> AfterTurn:
        """Begin the exchange.

        TO_THREAD: it needs a thread; or it was refused, and `_unsent` holds the rest of the reply.
        """
        with self._lock:
            self._busy = True
        try:
            reply = exchange.begin()
        except BaseException as exc:
            with self._lock:
                self._busy = False
            if isinstance(exc, NotInline):
                return AfterTurn.TO_THREAD
            raise
        if reply is not None:
            return self._send_at_once(reply)
        self._begun = exchange
        return AfterTurn.CARRY_OUT

    @property
    def request(self) -> DecodedRequest:
        """The request to carry out, after CARRY_OUT."""
        assert self._begun is not None
        assert self._begun.request is not None
        return self._begun.request

    def carried_out(self, outcome: Outcome) -> AfterTurn:
        """Reply to the request, and continue with what has arrived."""
        return self._logging_bugs(partial(self._carried_out, outcome))

    def _carried_out(self, outcome: Outcome) -> AfterTurn:
        exchange, self._begun = self._begun, None
        data, self._cacheable = self._cacheable, None
        assert exchange is not None
        reply = exchange.finish(outcome.answer)
        if data is not None and (head := exchange.cacheable_head(reply)) is not None:
            self._listener.heads.store(data, head, exchange.headers)
        if outcome.sync is not None:
            self._held = HeldReply(reply, outcome.sync, exchange.headers)
            return AfterTurn.HOLD
        return self._send_and_go_on(reply)

    def _answer_held(self) -> AfterTurn:
        held, self._held = self._held, None
        assert held is not None
        try:
            held.sync.wait()
            reply = held.reply
        except TenureError as exc:
            reply = self._dispatcher.refusal(self._dispatcher.for_callers(exc), held.headers)
        return self._send_and_go_on(reply)

    def _send_and_go_on(self, reply: Reply) -> AfterTurn:
        after = self._send_at_once(reply)
        return self._begin_buffered() if after is AfterTurn.KEEP and self._buffer else after

    def _send_at_once(self, reply: Reply) -> AfterTurn:
        """Send without blocking. TO_THREAD: a thread must send the rest."""
        data = render(reply, not self._dispatcher.stopping)
        sent = 0
        try:
            with contextlib.suppress(BlockingIOError):
                sent = self.sock.send(data, socket.MSG_DONTWAIT)
        finally:
            with self._lock:
                self._busy = False
        self.answered += 1
        if sent < len(data):
            self._unsent = data[sent:]
            return AfterTurn.TO_THREAD
        return AfterTurn.CLOSE if self._dispatcher.stopping else AfterTurn.KEEP

    # ── in a thread of its own ───────────────────────────────────────────────────────────────────────────────────────

    def serve(self) -> None:
        loop = self._listener.loop
        try:
            if self._unsent:
                self._send(self._unsent)
                self._unsent = b""
            self._small_verbs = 0
            while self._serve_one():
                # A caller that waits once usually waits again, so keep the thread: do not start one for every wait.
                if loop is not None and self._small_verbs >= _SMALL_VERBS_IN_A_ROW and loop.add(self):
                    return
        except (OSError, Abandoned):
            pass  # the caller disconnected, or the listener stops
        except Exception as exc:  # noqa: BLE001 - as in `turn`
            telemetry.warn("connection_failed", exc)
        self.end()

    def _serve_one(self) -> bool:
        """Serve one request. False: the connection is over."""
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
        except TenureError as exc:  # the start of the next request on this connection is unknown
            self.sock.sendall(render(Dispatcher.refusal(exc, headers), keep=False))
            return False
        exchange = _ThreadExchange(self, method, target, headers, size)
        reply = run_now(answer(self._dispatcher, exchange))
        request = exchange.request
        plain = request is not None and request.waiting is None and request.operation.small
        self._small_verbs = self._small_verbs + 1 if plain else 0
        keep = headers.get("connection", "").lower() != "close" and not self._dispatcher.stopping
        keep = keep and not exchange.unsent_body
        self._send(render(reply, keep))
        self.answered += 1
        if keep and exchange.unread:  # the body of a refused request comes before the next request
            self.read_body(exchange.unread, keep=False)
        with self._lock:
            self._busy = False
            return keep and not self._dispatcher.stopping

    def _send(self, data: bytes) -> None:
        self._start_deadline(len(data))
        self.sock.sendall(data)
        self._deadline_ms = 0

    def _read_head(self) -> str | None:
        """Return the next head; None if the caller has closed the connection between two requests."""
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
        """Return the body's length. Raises InvalidArgument, TooLarge."""
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
        """Return the next `size` bytes. `keep=False`: read and drop them, to reach the next request."""
        buffer = self._buffer
        if len(buffer) < size:
            self._start_deadline(size)
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
        self._deadline_ms = 0
        body = bytes(buffer[:size])
        del buffer[:size]
        return body

    def wait(self, request: DecodedRequest) -> object:
        """Wait for the answer to a request. Raises CallerGone as soon as the caller disconnects."""
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
        reading, writing = self._pipe

        def notify() -> None:
            # Under the lock: a late call must not write to a closed file descriptor, which may be in use again.
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
                        wait.release(found)
                        raise CallerGone
                    return found
                for handle, _ in poll.poll():
                    if handle == reading:
                        os.read(reading, 4096)
                    else:
                        # callers send nothing before they have their answer, so this is the end of the connection
                        raise CallerGone
        finally:
            wait.close()


class _ThreadExchange(Exchange):
    """A request served by its connection's own thread, which blocks."""

    def __init__(self, connection: Connection, method: str, target: str, headers: Mapping[str, str], size: int) -> None:
        path, _, query = target.partition("?")
        super().__init__(method, path, dict(parse_qsl(query, keep_blank_values=True)) if query else {}, headers)
        self._connection = connection
        #: Bytes of the body not read yet.
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
        """Whether the caller still waits for `100 Continue`: then nobody knows if its body will follow."""
        return bool(self.unread) and self._expects_100

    @property
    def _expects_100(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue"

    async def carry_out(self, request: DecodedRequest) -> object:
        if request.waiting is not None:
            return self._connection.wait(request)
        return self._connection._dispatcher.run(request)


def caller_left(sock: socket.socket) -> bool:
    """Whether the caller has closed its end."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
