"""The operations below `/v1` as an ASGI application.

The event loop decodes a request, and a `VerbRunner` carries it out. A waiting request holds no thread: the backend
notifies when to look again (`Backend.watch`), and the wait ends when the caller disconnects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from tenure.errors import TooLarge, Unavailable
from tenure.protocol.answer import Abandoned, Exchange, InlineExchange, answer
from tenure.protocol.dispatcher import DecodedRequest, Dispatcher, Reply
from tenure.protocol.head_cache import HeadCache, Match
from tenure.protocol.identity import Identity
from tenure.server.auth import Authenticator
from tenure.server.decompression import inflated
from tenure.server.request_log import log_entry, plain_headers
from tenure.server.request_quota import RequestQuota
from tenure.server.verb_runner import SMALL_BYTES, CallerGone, VerbRunner

# ASGI does not type the values of its messages: hence Any.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class OperationsApp:
    def __init__(
        self, dispatcher: Dispatcher, authenticator: Authenticator, *, threads: int = 16, bodies: int = 2**40
    ) -> None:
        """`bodies`: how many bytes of request bodies may be held at once."""
        self.dispatcher = dispatcher
        self.quota = RequestQuota(dispatcher.backend)
        self.runner = VerbRunner(dispatcher, threads, "tenure-server")
        self.heads = HeadCache()
        self.bodies = BodyBudget(bodies)
        #: Open event streams.
        self.streams = 0
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _AsgiExchange(self, scope, receive, send)
        try:
            await send_reply(send, await answer(self.dispatcher, exchange))
        except Abandoned:
            return
        finally:
            self.bodies.release(exchange.held)
            log_entry(scope).record(exchange)

    def check_page(self, headers: Mapping[str, str]) -> None:
        """Raise Forbidden if these headers may not be shown a page."""
        self._authenticator.check_page(headers)

    def inline(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> InlineExchange | None:
        """Return an exchange for a complete request that can be answered without ASGI; None if it cannot.

        For `http_protocol`: ASGI takes a task, four messages and two writes for a request, which cost more than a small
        verb.
        """
        # A cookie may sign the caller in, which only the application checks.
        if not self.runner.inline or "content-encoding" in headers or "cookie" in headers:
            return None
        return InlineExchange(self.dispatcher, method, path, headers, body, identify=self._identify_inline)

    def inline_match(self, match: Match, body: bytes) -> InlineExchange | None:
        """As `inline`, for a request whose head is in the cache."""
        if len(body) > SMALL_BYTES:
            return None
        head, headers = match.cached
        made = InlineExchange(self.dispatcher, head.operation.method, "", headers, body, identify=self._identify_inline)
        made.use_head(head, match.request_id)
        return made

    async def identify(self, headers: Mapping[str, str]) -> Identity:
        """Raises Unauthenticated."""
        found = self._authenticator.identify_at_once(headers)
        return await self.runner.run(self._authenticator.identify, headers) if found is None else found

    def _identify_inline(self, headers: Mapping[str, str]) -> Identity | None:
        """Return the caller; None if that needs a thread, or the request must be counted against a quota."""
        identity = self._authenticator.identify_at_once(headers)
        return identity if identity is not None and self.quota.free(identity) else None


class _AsgiExchange(Exchange):
    """A request delivered by ASGI."""

    def __init__(self, app: OperationsApp, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        path = raw.partition(b"?")[0].decode("latin-1")
        text = scope["query_string"]
        query = dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True)) if text else {}
        super().__init__(scope["method"], path, query, plain_headers(scope["headers"]))
        self._app = app
        self.in_thread = app.runner.run
        #: Bytes of its body that are held.
        self.held = 0
        self._receive = receive
        self._send = send

    async def identify(self) -> Identity:
        app = self._app
        identity = await app.identify(self.headers)
        if not app.quota.free(identity):
            await app.runner.run(app.quota.draw, identity)
        return identity

    async def body(self) -> bytes:
        body = await self._read_body()
        if "content-encoding" in self.headers:
            limit = self._app.dispatcher.limits.inflated_bytes
            body = await self._app.runner.run(inflated, body, self.headers["content-encoding"], limit)
        return body

    async def _read_body(self) -> bytes:
        limit = self._app.dispatcher.limits.body_bytes
        length = self.headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise TooLarge("the request", int(length), limit)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise CallerGone
            part = message.get("body", b"")
            size += len(part)
            more = message.get("more_body", False)
            if size > limit:
                raise TooLarge("the request", size, limit)
            self._app.bodies.reserve(len(part))
            self.held += len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def carry_out(self, request: DecodedRequest) -> object:
        if request.operation.name == "events" and "text/event-stream" in self.headers.get("accept", ""):
            from tenure.server.event_stream import stream_events

            await stream_events(self._app, self, self._send, self.caller_leaves)
            raise Abandoned
        return await self._app.runner.carry_out(request, self.caller_leaves)

    async def caller_leaves(self) -> None:
        """Return once the caller has closed the connection."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class BodyBudget:
    """The budget for the bytes of all request bodies held at once. Used by one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def reserve(self, size: int) -> None:
        """Raises BodiesFull."""
        if self.held + size > self._limit:
            raise BodiesFull
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size


class BodiesFull(Unavailable):
    """The server holds as many bytes of request bodies as it may. Nothing was done: try again."""

    retry_after = 1.0
    for_callers = True

    def __init__(self) -> None:
        super().__init__("the server's memory for request bodies is in use: try again")


def start_of(status: int, content_type: str, headers: tuple[tuple[str, str], ...]) -> Message:
    raw = [(b"content-type", content_type.encode("latin-1"))]
    raw += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http.response.start", "status": status, "headers": raw}


async def send_reply(send: Send, reply: Reply) -> None:
    status, content_type, body, extra = reply
    start = start_of(status, content_type, extra)
    start["headers"].append((b"content-length", str(len(body)).encode()))
    await send(start)
    await send({"type": "http.response.body", "body": body})
