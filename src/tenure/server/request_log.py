"""Around every request: its id, its line of log, its numbers, its span.

    {"event": "request", "request_id": "…", "route": "enqueue", "tenant": "acme", "subject": "ada", "queue": "emails",
     "method": "POST", "status": 200, "code": null, "ms": 1.3, "bytes_in": 31, "bytes_out": 64, …}

    tenure_http_requests_total{route,status}   tenure_http_seconds{route}

A line says who asked for which operation and how it ended. It never holds a header, a path as it was sent, a query, a body or a
receipt: whatever a caller wrote could be a secret. The route is the operation's name, so that callers cannot make
up new ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from time import perf_counter
from typing import Any

from tenure.protocol.dispatcher import Prepared
from tenure.protocol.tracing import server_span, tracing
from tenure.server.metrics import NUMBERS
from tenure.telemetry import inform_often

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

REQUEST_ID = b"tenure-request"
_ID = re.compile(rb"[0-9a-f]{32}\Z")
_TEXT_ID = re.compile(r"[0-9a-f]{32}\Z")

#: Of a request that got as far as no operation.
NO_ROUTE = "none"


class Facts:
    """What becomes known of a request while it is served. Handlers fill it in; it is at `scope["tenure"]`."""

    __slots__ = (
        "bytes_in", "bytes_out", "code", "prepared", "queue", "request_id", "route", "status", "subject", "tenant",
    )  # fmt: skip

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.route = NO_ROUTE
        self.tenant: str | None = None
        self.subject: str | None = None
        self.queue: str | None = None
        #: Of the error, if it was one.
        self.code: str | None = None
        self.status = 0
        self.bytes_in = 0
        self.bytes_out = 0
        #: What its head decided, once it was answered at once.
        self.prepared: Prepared | None = None


def facts_of(scope: Scope) -> Facts:
    found = scope.get("tenure")
    if not isinstance(found, Facts):  # served without a watch, as in a test
        found = scope["tenure"] = Facts("")
    return found


def plain_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """By their names; the values of one that came twice are joined, so that nobody can show one guard this and the next that."""
    found: dict[str, str] = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


class Watch:
    """An ASGI application around another. `plain` are paths beside the operations, which name themselves."""

    def __init__(self, app: Asgi, plain: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._plain = plain
        NUMBERS.register()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        facts = scope["tenure"] = Facts(request_id(scope["headers"]))
        if scope["path"] in self._plain:
            facts.route = scope["path"]
        sent_id = facts.request_id.encode()

        async def receiving() -> Message:
            message = await receive()
            facts.bytes_in += len(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (REQUEST_ID, sent_id)]}
            elif message["type"] == "http.response.body":
                facts.bytes_out += len(message.get("body", b""))
            await send(message)

        start = perf_counter()
        try:
            with server_span(
                "request",
                plain_headers(scope["headers"]) if tracing() else {},
                {"http.request.method": scope["method"]},
            ) as span:
                await self._app(scope, receiving, sending)
                if span is not None:
                    describe(span, facts)
        finally:
            tell(scope["method"], facts, perf_counter() - start)


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's, if it looks like one of ours; else a new one."""
    for name, value in headers:
        if name == REQUEST_ID and _ID.match(value):
            return str(value, "ascii")
    return os.urandom(16).hex()


def named(said: str) -> str:
    """As `request_id`, of what a caller has said."""
    return said if _TEXT_ID.match(said) else os.urandom(16).hex()


def describe(span: Any, facts: Facts) -> None:
    span.update_name(facts.route)
    span.set_attribute("http.response.status_code", facts.status)
    span.set_attribute("tenure.request_id", facts.request_id)
    for name, value in (("tenant", facts.tenant), ("queue", facts.queue), ("error", facts.code)):
        if value is not None:
            span.set_attribute(f"tenure.{name}", value)
    if facts.status >= 500:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, facts.code or ""))


def tell(method: str, facts: Facts, seconds: float) -> None:
    """A request has been answered, or its caller has left."""
    status = facts.status or 499
    NUMBERS.answered(facts.route, status, seconds)
    inform_often(
        "request",
        request_id=facts.request_id,
        route=facts.route,
        method=method,
        tenant=facts.tenant,
        subject=facts.subject,
        queue=facts.queue,
        status=status,
        code=facts.code,
        ms=round(seconds * 1000, 3),
        bytes_in=facts.bytes_in,
        bytes_out=facts.bytes_out,
    )
