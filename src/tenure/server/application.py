"""The ASGI application: the operations below `/v1`, and pages for people, probes and scrapers.

/v1/…                    the operations (`asgi`)
/, /ui/…, /session, …    the dashboard (`dashboard`)
/schema                  the protocol as OpenAPI; the dashboard shows it at /docs
/healthz, /readyz        this process answers; the store behind it does too
/metrics                 metrics for Prometheus
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache, partial

import msgspec

from tenure import telemetry
from tenure.errors import Forbidden, NotFound, TenureError
from tenure.protocol.dispatcher import Dispatcher, Reply
from tenure.protocol.routes import WrongMethod
from tenure.server.asgi import OperationsApp, Receive, Scope, Send, send_reply
from tenure.server.auth import Authenticator, LoopbackAuthenticator
from tenure.server.dashboard.application import Dashboard
from tenure.server.openapi import openapi
from tenure.server.request_log import log_entry, plain_headers

document = cache(openapi)
"""The protocol as OpenAPI, generated on first use."""

Page = Callable[[Scope], Awaitable[Reply]]

#: These pages are data: tell browsers to load and run nothing.
_PAGE_HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)


class Application:
    """The ASGI application. It does not close the store, which it did not open."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        authenticator: Authenticator,
        *,
        threads: int = 16,
        open_metrics: bool = False,
        bodies: int = 2**40,
    ) -> None:
        """`open_metrics`: `/metrics` needs no token.

        `bodies`: how many bytes of request bodies may be held at once.
        """
        self.operations = OperationsApp(dispatcher, authenticator, threads=threads, bodies=bodies)
        self._dispatcher = dispatcher
        self._open_metrics = open_metrics
        self.dashboard = Dashboard(self.operations, tokens=not isinstance(authenticator, LoopbackAuthenticator))
        self._dashboard_paths = self.dashboard.paths
        self._pages: dict[str, Page] = {
            "/schema": self._schema,
            "/schema/openapi.json": self._schema,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
        }

    @property
    def paths(self) -> frozenset[str]:
        """The paths of the pages, which are not operations."""
        return frozenset(self._pages) | self._dashboard_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["path"].startswith("/v1/") or scope["path"] == "/v1":
            await self._operation(scope, receive, send)
        elif scope["path"] in self._dashboard_paths:
            await self._dashboard(scope, receive, send)
        else:
            await send_reply(send, await self._page(scope))

    async def _operation(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope = self.dashboard.signed_in(scope)
        except TenureError as exc:
            await send_reply(send, self._refusal(scope, exc))
            return
        await self.operations(scope, receive, send)

    async def _dashboard(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self.dashboard.reply(scope, receive, send)
        except TenureError as exc:
            reply = self._refusal(scope, exc)
        except Exception as exc:  # noqa: BLE001 - the caller gets an error without details, the log gets all of them
            telemetry.warn("dashboard_failed", exc, path=scope["path"])
            reply = self._refusal(scope, TenureError(f"the server failed: {type(exc).__name__}"))
        if reply is not None:
            await send_reply(send, reply)

    def _refusal(self, scope: Scope, error: TenureError) -> Reply:
        log_entry(scope).code = error.code
        return self._dispatcher.refusal(self._dispatcher.for_callers(error), plain_headers(scope["headers"]))

    async def _page(self, scope: Scope) -> Reply:
        path, method = scope["path"], scope["method"]
        try:
            page = self._pages.get(path.rstrip("/") or "/")
            if page is None:
                raise NotFound("there is nothing at that path")
            if method not in ("GET", "HEAD"):
                raise WrongMethod(path, method, ("GET", "HEAD"))
            self.operations.check_page(plain_headers(scope["headers"]))
            reply = await page(scope)
        except TenureError as exc:
            return self._refusal(scope, exc)
        return reply._replace(headers=(*reply.headers, *_PAGE_HEADERS))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.dashboard.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                self.dashboard.stop()
                self.operations.runner.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # ── the pages ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _healthz(self, scope: Scope) -> Reply:
        return _json({"status": "ok"})

    async def _readyz(self, scope: Scope) -> Reply:
        if self._dispatcher.stopping:
            return _json({"status": "going down"}, 503)
        try:
            # A read that finds nothing still shows that the store can be read.
            await self.operations.runner.run(partial(self._dispatcher.backend.queues, "readyz", 1, None))
        except TenureError as exc:
            return _json({"status": exc.code}, 503)
        return _json({"status": "ready"})

    async def _metrics(self, scope: Scope) -> Reply:
        """Raises Unauthenticated, Forbidden."""
        if not self._open_metrics:
            identity = await self.operations.identify(plain_headers(scope["headers"]))
            log_entry(scope).subject = identity.subject
            if not identity.operator:
                raise Forbidden("this needs the scope 'operator'")
        return Reply(200, *await self.operations.runner.run(telemetry.metrics_page))

    async def _schema(self, scope: Scope) -> Reply:
        return _json(document())


def _json(value: object, status: int = 200) -> Reply:
    return Reply(status, "application/json", msgspec.json.encode(value))
