"""The application: the operations below `/v1`, and beside them what people, probes and scrapers ask for.

/v1/…                    the operations (`door`)
/schema, /docs           the protocol as OpenAPI, and as a page
/healthz, /readyz        this process answers; the store behind it does too
/metrics                 numbers, for Prometheus
"""

from __future__ import annotations

from functools import cache
from typing import Any

from litestar import Litestar, MediaType, Request, Response, get
from litestar.exceptions import HTTPException

from tenure.errors import Forbidden, InvalidArgument, NotFound, TenureError
from tenure.protocol.dispatcher import Host
from tenure.server.asgi import Door
from tenure.server.auth import Authenticator
from tenure.server.docs_page import docs_page
from tenure.server.openapi import openapi
from tenure.server.request_log import facts_of, plain_headers

#: The paths beside the operations.
PLAIN = frozenset({"/", "/docs", "/schema", "/schema/openapi.json", "/healthz", "/readyz", "/metrics"})


def _refused(request: Request[Any, Any, Any], exc: HTTPException) -> Response[bytes]:
    """What Litestar itself refuses, in the one shape that errors have."""
    error = NotFound("there is nothing at that path") if exc.status_code == 404 else InvalidArgument(exc.detail)
    scope: Any = request.scope
    facts_of(scope).code = error.code
    status, content_type, body, _ = Host.refusal(error, plain_headers(scope["headers"]))
    if exc.status_code == 405:
        status, body = 405, body.replace(b'"status":400', b'"status":405')
    return Response(body, status_code=status, headers={"content-type": content_type, **(exc.headers or {})})


document = cache(openapi)
"""The protocol as OpenAPI; made when it is first asked for."""


class App:
    """The operations go straight to their door, all the rest to Litestar, whose way to a handler takes longer than a small verb."""

    def __init__(self, door: Door, rest: Litestar) -> None:
        self.door = door
        self._rest = rest

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (scope["path"].startswith("/v1/") or scope["path"] == "/v1"):
            await self.door(scope, receive, send)
        else:
            await self._rest(scope, receive, send)


def build(host: Host, authenticator: Authenticator, *, threads: int = 16, open_metrics: bool = False) -> App:
    """The application for a host. It does not own the store: who opened it closes it."""
    door = Door(host, authenticator, threads=threads)

    @get("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @get("/readyz", include_in_schema=False)
    async def readyz() -> Response[dict[str, str]]:
        if host.stopping:
            return Response({"status": "going down"}, status_code=503)
        try:
            await door.run(host.backend.queues, "readyz")  # a read that finds nothing, and says that it could look
        except TenureError as exc:
            return Response({"status": exc.code}, status_code=503)
        return Response({"status": "ready"})

    @get("/metrics", include_in_schema=False)
    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        if not open_metrics:
            scope: Any = request.scope
            headers, facts = plain_headers(scope["headers"]), facts_of(scope)
            try:
                identity = await door.identified(headers)
                facts.subject = identity.subject
                if not identity.operator:
                    raise Forbidden("this takes the scope 'operator'")
            except TenureError as exc:
                facts.code = exc.code
                status, content_type, body, extra = Host.refusal(exc, headers)
                return Response(body, status_code=status, headers={"content-type": content_type, **dict(extra)})
        return Response(await door.run(generate_latest), headers={"content-type": CONTENT_TYPE_LATEST})

    @get(["/schema", "/schema/openapi.json"], include_in_schema=False)
    async def the_schema() -> dict[str, Any]:
        return document()

    @get(["/", "/docs"], include_in_schema=False, media_type=MediaType.HTML)
    async def docs() -> str:
        return docs_page(document())

    async def ended() -> None:
        door.threads.shutdown(wait=True)

    rest = Litestar(
        [healthz, readyz, metrics, the_schema, docs],
        openapi_config=None,
        logging_config=None,
        on_shutdown=[ended],
        exception_handlers={HTTPException: _refused},
    )
    return App(door, rest)
