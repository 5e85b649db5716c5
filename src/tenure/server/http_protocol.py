"""uvicorn's HTTP protocol, guarded against heads without end, and with a short way for small verbs.

uvicorn hands a request on once its head is complete, and keeps whatever comes before that, however much. So the head is
counted here; a request that is refused gets an answer of our own shape, and the connection is closed.

A connection that gets nowhere is closed. Every `idle_seconds / 2` each is looked at (`_look_at_progress`), from the
moment it is made: it has to complete a head within `idle_seconds`, send its body and take its answer at `MIN_RATE` or
faster.

A small request to `/v1` is held until its body is complete, and answered here if that takes neither a thread nor a wait
(`InlineExchange`): an ASGI application needs a task, four messages and two writes for it, which take longer than the
verb. Every other request goes uvicorn's way, and so does this one where a reply is under way before it, or the caller
does not read.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from http import HTTPStatus
from time import perf_counter
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tenure.errors import InvalidArgument, TenureError, TooLarge
from tenure.protocol.answer import InlineExchange
from tenure.protocol.dispatcher import Dispatcher, Reply
from tenure.protocol.tracing import server_span, tracing
from tenure.server.asgi import OperationsApp
from tenure.server.request_log import LogEntry, checked_request_id, describe, log, plain_headers, request_id
from tenure.server.verb_runner import SMALL_BYTES

CLOSE = "connection: close\r\n"
#: Seconds in which a connection must complete a request's head, and without progress in a body or an answer.
IDLE_SECONDS = 30.0
#: Bytes a second: slower bodies and readers are cut off.
MIN_RATE = 4096


class GuardedHttp(HttpToolsProtocol):
    """Use what `guarded` makes of it."""

    head_limit: ClassVar[int]
    idle_seconds: ClassVar[float]
    operations: ClassVar[OperationsApp | None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = False
        #: When the connection was made, or its last answer was complete: by then it had nothing to say.
        self.quiet_since = 0.0
        #: Whether it has had an answer.
        self.served = False
        self._look: asyncio.TimerHandle | None = None
        #: Since the last look: bytes of a body that came, and whether the caller took what was written.
        self._body_bytes = 0
        self._drained = False
        self._unsent = 0
        #: The body so far of a request that may be answered at once; None: it is uvicorn's.
        self._held: bytes | None = None
        #: No request is half here; and the last data, if it began one.
        self._between = True
        self._data = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.quiet_since = self.loop.time()
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._drained = True
        super().resume_writing()

    @property
    def idle(self) -> bool:
        """Whether closing it interrupts nothing: no head is complete that was not answered."""
        return (self._between or self._in_head) and getattr(self.cycle, "response_complete", True)

    def _look_later(self) -> None:
        self._look = self.loop.call_later(self.idle_seconds / 2, self._look_at_progress)

    def _look_at_progress(self) -> None:
        if self._stuck():
            self.transport.abort()
            return
        self._body_bytes, self._drained = 0, False
        self._unsent = self.transport.get_write_buffer_size()
        self._look_later()

    def _stuck(self) -> bool:
        """Whether the caller has sent or taken too little since the last look."""
        least = MIN_RATE * self.idle_seconds / 2
        if self._unsent and not self._drained:  # the caller takes its answer
            return self.transport.get_write_buffer_size() > max(0, self._unsent - least)
        if self.idle:
            return self.loop.time() - self.quiet_since >= self.idle_seconds
        # A body is under way; where we have stopped reading, it is not the caller who is slow.
        return not self._between and not self.flow.read_paused and self._body_bytes < least

    def data_received(self, data: bytes) -> None:
        if self._between and self.operations is not None:
            if self._answered_by_match(data):
                return
            self._data = data
        else:
            self._data = b""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.head_limit:
                self._refuse(self._too_large(self._head_bytes))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._between = False
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._body_bytes = round(MIN_RATE * self.idle_seconds)  # a body that has just begun is not late
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.head_limit:
            raise self._too_large(size)  # to the parser, which makes a 400 of it: see below
        if self._short_way():
            self._held = b""
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._held is None:
            super().on_body(body)
            return
        self._held += body
        if len(self._held) > SMALL_BYTES:
            self._let_go()

    def on_message_complete(self) -> None:
        self._between = True
        if self._held is not None:
            if self._answered(self._held):
                self._held = None
                return
            self._let_go()
        super().on_message_complete()

    def shutdown(self) -> None:
        if self._held is not None:
            self._let_go()  # it has begun: it is answered yet
        super().shutdown()

    def _short_way(self) -> bool:
        """Whether this request may be answered at once, as far as its head tells."""
        return (
            self.operations is not None
            and self.url.startswith(b"/v1/")
            and b"?" not in self.url
            and self._declared_length() <= SMALL_BYTES  # a larger one may be refused before its body arrives
            and not self.expect_100_continue
            and getattr(self.cycle, "response_complete", True)
            and not self.flow.write_paused
            and not self.parser.should_upgrade()
        )

    def _declared_length(self) -> int:
        for name, value in self.headers:
            if name == b"content-length" and value.isdigit():
                return int(value)
        return 0

    def _let_go(self) -> None:
        """What was held goes uvicorn's way after all."""
        held, self._held = self._held, None
        super().on_headers_complete()
        if held:
            super().on_body(held)

    def _answered_by_match(self, data: bytes) -> bool:
        """Answer a request whose head is in the cache, without a parser. False: nothing was done."""
        operations = self.operations
        assert operations is not None
        match = operations.heads.find(data)
        if (
            match is None
            or self.flow.write_paused
            or not getattr(self.cycle, "response_complete", True)
            or self.transport.is_closing()
            or tracing()
        ):
            return False
        began = perf_counter()
        body = data[match.body :]
        exchange = operations.inline_match(match, body)
        reply = None if exchange is None else exchange.answer()
        if exchange is None or reply is None:
            return False
        entry = LogEntry(checked_request_id(match.request_id))
        self._send(exchange, reply, entry, len(body), began, keep=True)
        return True

    def _answered(self, body: bytes) -> bool:
        """Answer a request whose body is complete. False: nothing was done."""
        began = perf_counter()
        parser, method = self.parser, self.parser.get_method().decode("ascii")
        entry = LogEntry(request_id(self.headers))
        headers = plain_headers(self.headers)
        operations = self.operations
        assert operations is not None
        exchange = operations.inline(method, self.url.decode("latin-1"), headers, body)
        if exchange is None:
            return False
        if not tracing():
            reply = exchange.answer()
        else:
            with server_span("request", headers, {"http.request.method": method}, ends=False) as span:
                reply = exchange.answer()
            if reply is not None and span is not None:
                entry.record(exchange)
                entry.status = reply.status
                describe(span, entry)
                span.end()
        if reply is None:
            return False
        keep = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        head = exchange.cacheable_head(reply) if keep and self._data else None
        if head is not None:
            operations.heads.store(self._data, head, headers)
        self._send(exchange, reply, entry, len(body), began, keep=keep)
        return True

    def _send(
        self, exchange: InlineExchange, reply: Reply, entry: LogEntry, size: int, began: float, *, keep: bool
    ) -> None:
        status, content_type, content, extra = reply
        more = "".join([f"{name.lower()}: {value}\r\n" for name, value in extra]) if extra else ""
        head = (
            f"content-type: {content_type}\r\ncontent-length: {len(content)}\r\n{more}"
            f"tenure-request: {entry.request_id}\r\n{'' if keep else CLOSE}\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode("latin-1") + content)
        entry.record(exchange)
        entry.status, entry.bytes_in, entry.bytes_out = status, size, len(content)
        log(exchange.method, entry, perf_counter() - began)
        if keep:
            self.on_response_complete()
        else:
            self.quiet_since = self.loop.time()
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        cause = sys.exception()
        while cause is not None and not isinstance(cause, TenureError):
            cause = cause.__context__
        self._refuse(cause or InvalidArgument("that is not a request of HTTP/1.1"))

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge("the request's head", size, self.head_limit)

    def on_response_complete(self) -> None:
        self.served, self.quiet_since = True, self.loop.time()
        super().on_response_complete()

    def _refuse(self, error: TenureError) -> None:
        self._in_head = False
        reply = Dispatcher.refusal(error, {})
        self.transport.write(
            f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\nContent-Type: {reply.content_type}\r\n"
            f"Content-Length: {len(reply.body)}\r\nConnection: close\r\n\r\n".encode()
            + reply.body
        )
        self.transport.close()


def guarded(
    head_limit: int, idle_seconds: float = IDLE_SECONDS, operations: OperationsApp | None = None
) -> type[GuardedHttp]:
    """The protocol with these limits, for uvicorn's `http=`. `operations` answers small requests here; None: none."""
    limits = {"head_limit": head_limit, "idle_seconds": idle_seconds, "operations": operations}
    return type("GuardedHttp", (GuardedHttp,), limits)


def close_idle(connections: Iterable[object]) -> bool:
    """Close the connection that has been quiet longest, first of those that have never asked for anything."""
    idle = [one for one in connections if isinstance(one, GuardedHttp) and one.idle and not one.transport.is_closing()]
    if not idle:
        return False
    min(idle, key=lambda one: (one.served, one.quiet_since)).transport.abort()
    return True
