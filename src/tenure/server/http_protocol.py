"""uvicorn's HTTP protocol, guarded against heads without end, and with a short way for small verbs.

uvicorn hands a request on once its head is complete, and keeps what arrives before that, however much and however
slowly. So the head is counted and timed here; a refused one gets a reply of our own shape, and the connection is
closed.

A small request to `/v1` is held until its body is complete, and answered here if that takes neither a thread nor a wait
(`InlineExchange`): an ASGI application needs a task, four messages and two writes for it, which take longer than the
verb. Every other request goes uvicorn's way, and so does this one where a reply is under way before it, or the caller
does not read.
"""

from __future__ import annotations

import asyncio
import sys
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
#: A head takes a packet or two: a caller that takes longer than this is not about to send a request.
HEAD_SECONDS = 30.0


class GuardedHttp(HttpToolsProtocol):
    """Use what `guarded` makes of it."""

    head_limit: ClassVar[int]
    head_seconds: ClassVar[float]
    operations: ClassVar[OperationsApp | None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = False
        self._head_timer: asyncio.TimerHandle | None = None
        #: The body so far of a request that may be answered at once; None: it is uvicorn's.
        self._held: bytes | None = None
        #: No request is half here; and the last data, if it began one.
        self._between = True
        self._data = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_of_head()
        super().connection_lost(exc)

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
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._between = False
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._end_of_head()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.head_limit:
            raise self._too_large(size)  # to the parser, which makes a 400 of it: see below
        if self._short_way():
            self._held = b""
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
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
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        cause = sys.exception()
        while cause is not None and not isinstance(cause, TenureError):
            cause = cause.__context__
        self._refuse(cause or InvalidArgument("that is not a request of HTTP/1.1"))

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge("the request's head", size, self.head_limit)

    def _end_of_head(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._end_of_head()
        self.transport.abort()

    def _refuse(self, error: TenureError) -> None:
        self._end_of_head()
        reply = Dispatcher.refusal(error, {})
        self.transport.write(
            f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\nContent-Type: {reply.content_type}\r\n"
            f"Content-Length: {len(reply.body)}\r\nConnection: close\r\n\r\n".encode()
            + reply.body
        )
        self.transport.close()


def guarded(
    head_limit: int, head_seconds: float = HEAD_SECONDS, operations: OperationsApp | None = None
) -> type[GuardedHttp]:
    """The protocol with these limits, for uvicorn's `http=`. `operations` answers small requests here; None: none."""
    limits = {"head_limit": head_limit, "head_seconds": head_seconds, "operations": operations}
    return type("GuardedHttp", (GuardedHttp,), limits)
