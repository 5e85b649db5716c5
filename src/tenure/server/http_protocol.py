"""uvicorn's HTTP protocol with limits on heads and idle connections, and a short path for small verbs.

uvicorn passes a request on once its head is complete, and buffers everything before that, however much. So the head is
counted here; a refused request gets an answer of our own format, and the connection is closed. The parser takes chunk
extensions and trailers of any size, too: what arrives in a body without a byte of it is counted like a head, and
trailers are dropped, because uvicorn would add them to the headers.

A connection without progress is closed. Every `idle_seconds / 2` each is checked (`_check_progress`), from its start:
it must complete a head within `idle_seconds`, send its body and read its answer at `MIN_RATE` or faster.

A small request to `/v1` is held until its body is complete, and answered here if that needs neither a thread nor a wait
(`InlineExchange`): an ASGI application needs a task, four messages and two writes for it, which take longer than the
verb. Every other request goes through uvicorn, and so does a small one if an earlier reply is pending, or the caller
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
#: Seconds for a connection to complete a request's head, and the longest pause within a body or an answer.
IDLE_SECONDS = 30.0
#: Bytes a second: slower senders and readers are disconnected.
MIN_RATE = 4096
#: Headers of a head: each takes some 130 bytes of memory, however short it is.
MAX_HEADERS = 128
#: Requests of a connection that wait for the answer before theirs. One read may bring thousands.
MAX_PIPELINED = 16


class GuardedHttp(HttpToolsProtocol):
    """The protocol; `guarded` makes a subclass with limits."""

    head_limit: ClassVar[int]
    idle_seconds: ClassVar[float]
    operations: ClassVar[OperationsApp | None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = False
        #: Bytes received in a body since its last byte arrived: chunk heads, extensions and trailers.
        self._framing_bytes = 0
        #: When the connection was opened, or its last answer was complete.
        self.idle_since = 0.0
        #: Whether it has had an answer.
        self.served = False
        self._check_timer: asyncio.TimerHandle | None = None
        #: Since the last check: bytes of a body that arrived, and whether the caller read what was written.
        self._body_bytes = 0
        self._drained = False
        self._unsent = 0
        #: The body so far of a request that may be answered here; None: uvicorn handles it.
        self._held: bytes | None = None
        #: Whether no request is incomplete; and the last data, if it began one.
        self._between_requests = True
        self._data = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._drained = True
        super().resume_writing()

    @property
    def idle(self) -> bool:
        """Whether closing it interrupts nothing: every complete head has been answered."""
        return (self._between_requests or self._in_head) and getattr(self.cycle, "response_complete", True)

    @property
    def unfinished(self) -> bool:
        """Whether a small request is incomplete: nobody knows its caller yet, and nothing of it has been done."""
        return self._held is not None and not self._between_requests

    def _schedule_check(self) -> None:
        self._check_timer = self.loop.call_later(self.idle_seconds / 2, self._check_progress)

    def _check_progress(self) -> None:
        if self._stuck():
            self.transport.abort()
            return
        self._body_bytes, self._drained = 0, False
        self._unsent = self.transport.get_write_buffer_size()
        self._schedule_check()

    def _stuck(self) -> bool:
        """Whether the caller has sent or read too little since the last check."""
        least = MIN_RATE * self.idle_seconds / 2
        if self._unsent and not self._drained:  # the caller should read its answer
            return self.transport.get_write_buffer_size() > max(0, self._unsent - least)
        if self.idle:
            return self.loop.time() - self.idle_since >= self.idle_seconds
        # A body is arriving; if this server has paused reading, the caller is not the slow one.
        return not self._between_requests and not self.flow.read_paused and self._body_bytes < least

    def data_received(self, data: bytes) -> None:
        if self._between_requests and self.operations is not None:
            if self._answered_by_match(data):
                return
            self._data = data
        else:
            self._data = b""
        in_body = not self._between_requests and not self._in_head
        self._framing_bytes += len(data)
        super().data_received(data)
        if in_body and self._framing_bytes > self.head_limit and not self._between_requests:
            self._refuse(TooLarge("the framing of the request's body", self._framing_bytes, self.head_limit))
        elif self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.head_limit:
                self._refuse(self._too_large(self._head_bytes))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._between_requests = False
        self._in_head, self._head_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            if len(self.headers) == MAX_HEADERS:
                raise TooLarge("the number of the request's headers", MAX_HEADERS + 1, MAX_HEADERS)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._framing_bytes = 0
        self._body_bytes = round(MIN_RATE * self.idle_seconds)  # a body that has just begun is not late
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.head_limit:
            raise self._too_large(size)  # the parser turns it into a 400: see below
        if len(self.pipeline) == MAX_PIPELINED:
            raise TooLarge("the number of requests sent before their answers", MAX_PIPELINED + 1, MAX_PIPELINED)
        if self._may_answer_here():
            self._held = b""
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._framing_bytes = 0
        if self._held is None:
            super().on_body(body)
            return
        self._held += body
        if len(self._held) > SMALL_BYTES:
            self._pass_to_uvicorn()

    def on_message_complete(self) -> None:
        self._between_requests = True
        if self._held is not None:
            if self._answered(self._held):
                self._held = None
                return
            self._pass_to_uvicorn()
        super().on_message_complete()

    def shutdown(self) -> None:
        if self._held is not None:
            self._pass_to_uvicorn()  # it has begun, so it is still answered
        super().shutdown()

    def _may_answer_here(self) -> bool:
        """Whether this request may be answered here, by its head."""
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

    def _pass_to_uvicorn(self) -> None:
        """Pass the held request to uvicorn."""
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
            self.idle_since = self.loop.time()
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        cause = sys.exception()
        while cause is not None and not isinstance(cause, TenureError):
            cause = cause.__context__
        self._refuse(cause or InvalidArgument("that is not a request of HTTP/1.1"))

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge("the request's head", size, self.head_limit)

    def on_response_complete(self) -> None:
        self.served, self.idle_since = True, self.loop.time()
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
    """Return the protocol with these limits, for uvicorn's `http=`.

    `operations` answers small requests; None: uvicorn does.
    """
    limits = {"head_limit": head_limit, "idle_seconds": idle_seconds, "operations": operations}
    return type("GuardedHttp", (GuardedHttp,), limits)


def close_idle(connections: Iterable[object]) -> bool:
    """Close the connection that has been idle longest, those that never sent a request first.

    If none is idle, one whose small request is incomplete: callers without a token could otherwise hold all connections,
    each by the beginning of a body.
    """
    open_ones = [one for one in connections if isinstance(one, GuardedHttp) and not one.transport.is_closing()]
    closable = [one for one in open_ones if one.idle] or [one for one in open_ones if one.unfinished]
    if not closable:
        return False
    min(closable, key=lambda one: (one.served, one.idle_since)).transport.abort()
    return True
