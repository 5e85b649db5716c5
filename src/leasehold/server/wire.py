"""uvicorn's HTTP protocol, guarded against heads without end.

It hands a request on once its head is complete, and keeps whatever comes before that, however much and however slowly. So
the head is counted and timed here; what is refused gets an answer of our own shape, and the connection is closed.
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from leasehold.errors import InvalidArgument, LeaseholdError, TooLarge
from leasehold.stores.remote.host import Host

#: A head takes a packet or two; who takes longer than this is not about to ask for anything.
HEAD_SECONDS = 30.0


class GuardedHttp(HttpToolsProtocol):
    """Use what `guarded` makes of it."""

    head_limit: ClassVar[int]
    head_seconds: ClassVar[float]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_of_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.head_limit:
                self._refuse(self._too_large(self._head_bytes))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._head_timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def on_headers_complete(self) -> None:
        self._end_of_head()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.head_limit:
            raise self._too_large(size)  # to the parser, which makes a 400 of it: see below
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        cause = sys.exception()
        while cause is not None and not isinstance(cause, LeaseholdError):
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

    def _refuse(self, error: LeaseholdError) -> None:
        self._end_of_head()
        reply = Host.refusal(error, {})
        self.transport.write(
            f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\nContent-Type: {reply.content_type}\r\n"
            f"Content-Length: {len(reply.body)}\r\nConnection: close\r\n\r\n".encode()
            + reply.body
        )
        self.transport.close()


def guarded(head_limit: int, head_seconds: float = HEAD_SECONDS) -> type[GuardedHttp]:
    """The protocol with these limits, for uvicorn's `http=`."""
    return type("GuardedHttp", (GuardedHttp,), {"head_limit": head_limit, "head_seconds": head_seconds})
