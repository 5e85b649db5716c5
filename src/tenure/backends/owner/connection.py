"""A connection of the owner's listener: it reads requests, has them answered, and notices when its caller leaves.

turn     on the event loop: reads a small request that has arrived whole; hands the connection to a thread otherwise.
         The loop carries it out beside those of other connections, and `carried_out` replies; a reply whose commit has to
         be synced is held until they have shared a sync (`answer_held`)
serve    in a thread of its own: answers one request after another, and may block
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

#: Bytes a second: slower bodies and readers are cut off.
MIN_RATE = 4096
_clock = SystemClock()
#: A request with one of these headers is left to the connection's own thread.
_THREAD_HEADERS = frozenset({"transfer-encoding", "expect", "connection", "upgrade"})
#: So is a request of more bytes than this, which may take a while.
_INLINE_BYTES = 64 * 1024
#: After so many small verbs a connection that had a thread of its own goes back to the event loop.
_STEADY = 8


class CallerGone(Abandoned):
    """The caller has closed the connection."""


class HeldReply(NamedTuple):
    """A reply that may be sent once its commit is durable."""

    reply: Reply
    sync: PendingSync
    #: Of the request: an error is told in the caller's format.
    headers: Mapping[str, str]


class Connection:
    """One caller's connection. The event loop serves it, or a thread of its own."""

    def __init__(self, listener: Listener, sock: socket.socket) -> None:
        self._listener = listener
        self._dispatcher = listener.dispatcher
        self.sock = sock
        self._buffer = bytearray()
        self._busy = False
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._unsent = b""
        #: A request that the event loop carries out, and its bytes, if its head may be cached.
        self._begun: InlineExchange | None = None
        self._cacheable: bytes | None = None
        self._held: HeldReply | None = None
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
        """Begin what has arrived, as far as that takes neither a wait nor long."""
        return self._guarded(self._turn)

    def answer_held(self) -> AfterTurn:
        """Send the reply that waits for a sync, and go on with what has arrived meanwhile."""
        return self._guarded(self._answer_held)

    def _guarded(self, step: Callable[[], AfterTurn]) -> AfterTurn:
        try:
            return step()
        except OSError:
            return AfterTurn.CLOSE
        except Exception as exc:  # noqa: BLE001 - a bug must not end without a word
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
        """Begin the request whose head ends there. TO_THREAD: it is still in the buffer, unless it has been answered."""
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
        """TO_THREAD: it takes a thread of its own; or it was refused, and `_unsent` is left of the reply."""
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
        """What is to be carried out, after a turn that says so."""
        assert self._begun is not None
        assert self._begun.request is not None
        return self._begun.request

    def carried_out(self, outcome: Outcome) -> AfterTurn:
        """Reply to the request, and go on with what has arrived."""
        return self._guarded(partial(self._carried_out, outcome))

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
        """TO_THREAD: some of it is left for a thread to send."""
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

    def __init__(self, connection: Connection, method: str, target: str, headers: Mapping[str, str], size: int) -> None:
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


def caller_left(sock: socket.socket) -> bool:
    """Whether the caller has closed its end by now."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
