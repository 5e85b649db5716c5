"""The id, log line, metrics and span of every request.

    {"event": "request", "request_id": "…", "route": "enqueue", "tenant": "acme", "subject": "ada", "queue": "emails",
     "method": "POST", "status": 200, "code": null, "ms": 1.3, "bytes_in": 31, "bytes_out": 64, …}

    tenure_http_requests_total{route,status}   tenure_http_seconds{route}

A line names the caller, the operation and the outcome. It never contains a header, a path as sent, a query, a body or a
receipt: anything written by a caller could be a secret. The route is the operation's name, so that callers cannot
create new ones.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from time import perf_counter
from typing import Any

from tenure.errors import TenureError
from tenure.protocol.answer import Exchange
from tenure.protocol.tracing import server_span, tracing
from tenure.server.metrics import REQUEST_METRICS
from tenure.telemetry import inform_request

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

REQUEST_ID = b"tenure-request"
_ID = re.compile(rb"[0-9a-f]{32}\Z")
_TEXT_ID = re.compile(r"[0-9a-f]{32}\Z")

#: The route of a request that reached no operation.
NO_ROUTE = "none"


class LogEntry:
    """The facts for a request's log line, at `scope["tenure"]`, filled in while the request is served."""

    __slots__ = (
        "bytes_in", "bytes_out", "code", "queue", "request_id", "route", "status", "subject", "tenant",
    )  # fmt: skip

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.route = NO_ROUTE
        self.tenant: str | None = None
        self.subject: str | None = None
        self.queue: str | None = None
        #: The code of the error, if there was one.
        self.code: str | None = None
        self.status = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def record(self, exchange: Exchange) -> None:
        """Copy the facts of a request, once it has been answered or abandoned."""
        identity, request = exchange.identity, exchange.request
        if identity is not None:
            self.subject, self.tenant = identity.subject, identity.tenant
        if exchange.operation is not None:
            self.route = exchange.operation.name
        if request is not None:
            call = request.call
            if call.tenant is not None:
                self.tenant = call.tenant
            if "queue" in call.path:
                with contextlib.suppress(TenureError):  # a refused name: do not log what a caller wrote
                    self.queue = call.name.queue
        self.code = exchange.error


def log_entry(scope: Scope) -> LogEntry:
    found = scope.get("tenure")
    if not isinstance(found, LogEntry):  # served without a `RequestLogger`, as in a test
        found = scope["tenure"] = LogEntry("")
    return found


def plain_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name. Values of a repeated one are joined, so that no two checks can read different ones."""
    found: dict[str, str] = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


class RequestLogger:
    """An ASGI wrapper that logs and counts requests. `plain`: paths that are logged as they are."""

    def __init__(self, app: Asgi, plain: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._plain = plain
        REQUEST_METRICS.register()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        entry = scope["tenure"] = LogEntry(request_id(scope["headers"]))
        if scope["path"] in self._plain:
            entry.route = scope["path"]
        sent_id = entry.request_id.encode()

        async def receiving() -> Message:
            message = await receive()
            entry.bytes_in += len(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (REQUEST_ID, sent_id)]}
            elif message["type"] == "http.response.body":
                entry.bytes_out += len(message.get("body", b""))
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
                    describe(span, entry)
        finally:
            log(scope["method"], entry, perf_counter() - start)


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the caller's request id if it is valid, else a new one."""
    for name, value in headers:
        if name == REQUEST_ID and _ID.match(value):
            return str(value, "ascii")
    return os.urandom(16).hex()


def checked_request_id(request_id: str) -> str:
    """As `request_id`, for an id that was already extracted."""
    return request_id if _TEXT_ID.match(request_id) else os.urandom(16).hex()


def describe(span: Any, entry: LogEntry) -> None:
    span.update_name(entry.route)
    span.set_attribute("http.response.status_code", entry.status)
    span.set_attribute("tenure.request_id", entry.request_id)
    for name, value in (("tenant", entry.tenant), ("queue", entry.queue), ("error", entry.code)):
        if value is not None:
            span.set_attribute(f"tenure.{name}", value)
    if entry.status >= 500:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, entry.code or ""))


def log(method: str, entry: LogEntry, seconds: float) -> None:
    """Log and count a request that was answered, or whose caller has disconnected."""
    status = entry.status or 499
    REQUEST_METRICS.answered(entry.route, status, seconds)
    inform_request(
        "request",
        request_id=entry.request_id,
        route=entry.route,
        method=method,
        tenant=entry.tenant,
        subject=entry.subject,
        queue=entry.queue,
        status=status,
        code=entry.code,
        ms=round(seconds * 1000, 3),
        bytes_in=entry.bytes_in,
        bytes_out=entry.bytes_out,
    )
