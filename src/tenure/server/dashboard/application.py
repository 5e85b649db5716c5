"""The dashboard's routes: its page and files, signing in, and the views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from tenure.errors import Forbidden, NotFound, TooLarge
from tenure.protocol.dispatcher import Reply
from tenure.protocol.identity import Identity
from tenure.protocol.routes import WrongMethod
from tenure.server.dashboard.assets import assets, headers_of
from tenure.server.dashboard.history import History
from tenure.server.dashboard.live import LiveViews, Read
from tenure.server.dashboard.session import check_own_page, cookie, token_in, token_of
from tenure.server.dashboard.views import VIEWS, View, Viewer, shown
from tenure.server.request_log import log_entry, plain_headers

if TYPE_CHECKING:
    from tenure.server.asgi import OperationsApp, Receive, Scope, Send

_NO_STORE = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
_MAX_BODY = 16 * 1024
#: Pages by path.
_PAGES = {"/": "index.html", "/docs": "docs.html"}
#: The reply of a view that was already sent as a stream.
Streamed = None


class Dashboard:
    """Serves the dashboard; the operations identify its callers. `start` and `stop` go with the server."""

    def __init__(self, operations: OperationsApp, *, tokens: bool) -> None:
        """`tokens`: callers sign in. Otherwise every caller is an operator."""
        self._operations = operations
        self._tokens = tokens
        self.history = History(operations.dispatcher.backend)
        self.live = LiveViews(operations)

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(
            {*_PAGES, "/session", *(f"/ui/{name}" for name in VIEWS), *(f"/assets/{name}" for name in assets())}
        )

    def start(self) -> None:
        self.history.start()

    def stop(self) -> None:
        self.history.stop()

    def signed_in(self, scope: Scope) -> Scope:
        """Return the request with its cookie's token as an Authorization header.

        Raises Forbidden for another site's page.
        """
        if not self._tokens or not any(name == b"cookie" for name, _ in scope["headers"]):
            return scope
        headers = plain_headers(scope["headers"])
        token = token_of(headers)
        if token is None:
            return scope
        check_own_page(scope["method"], headers)
        return {**scope, "headers": [*scope["headers"], (b"authorization", b"Bearer " + token.encode("latin-1"))]}

    async def reply(self, scope: Scope, receive: Receive, send: Send) -> Reply | None:
        """Return the reply to a request for one of `paths`; None if it was streamed. Raises TenureError."""
        path, method = scope["path"], scope["method"]
        if path == "/session":
            return await self._session(scope, receive)
        if method not in ("GET", "HEAD"):
            raise WrongMethod(path, method, ("GET", "HEAD"))
        if path.startswith("/ui/"):
            return await self._view(scope, receive, send)
        self._operations.check_page(plain_headers(scope["headers"]))
        return self._asset(_PAGES.get(path) or path.removeprefix("/assets/"), scope)

    def _asset(self, name: str, scope: Scope) -> Reply:
        found = assets().get(name)
        if found is None:
            raise NotFound("there is nothing at that path")
        headers = (*headers_of(name), ("ETag", found.etag))
        if plain_headers(scope["headers"]).get("if-none-match") == found.etag:
            return Reply(304, found.content_type, b"", headers)
        return Reply(200, found.content_type, found.body, headers)

    # ── signing in ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _session(self, scope: Scope, receive: Receive) -> Reply:
        headers, method = plain_headers(scope["headers"]), scope["method"]
        if method not in ("POST", "DELETE"):
            raise WrongMethod("/session", method, ("POST", "DELETE"))
        check_own_page(method, headers)
        if not self._tokens:
            raise NotFound("this server asks for no token")
        secure = scope.get("scheme") == "https"
        if method == "DELETE":
            return Reply(200, "application/json", b"{}", (("Set-Cookie", cookie("", secure)), *_NO_STORE))
        token = token_in(await _body(receive))
        identity = await self._operations.identify({**headers, "authorization": f"Bearer {token}"})
        log_entry(scope).subject = identity.subject
        return Reply(200, "application/json", b"{}", (("Set-Cookie", cookie(token, secure)), *_NO_STORE))

    # ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _view(self, scope: Scope, receive: Receive, send: Send) -> Reply | None:
        view = VIEWS[scope["path"].removeprefix("/ui/")]
        scope = self.signed_in(scope)
        headers = plain_headers(scope["headers"])
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))

        async def identify(after: int | None) -> Read:
            return self._reader(view, await self._identify(scope, headers), query, after)

        await self._count(await self._identify(scope, headers))
        if "text/event-stream" not in headers.get("accept", ""):
            runner = self._operations.runner
            async with runner.long_turn(log_entry(scope).tenant):  # a job's view may search the journal
                body = await runner.run(await identify(None))
            return Reply(200, "application/json", body, _NO_STORE)

        async def caller_leaves() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        await self.live.stream(send, identify, self.history.moment, caller_leaves)
        return Streamed

    async def _identify(self, scope: Scope, headers: Mapping[str, str]) -> Identity:
        """Return the caller. Raises Unauthenticated, Forbidden."""
        identity = await self._operations.identify(headers)
        if not identity.may("any"):
            raise Forbidden("this needs a scope")
        entry = log_entry(scope)
        entry.subject, entry.tenant = identity.subject, identity.tenant
        return identity

    async def _count(self, identity: Identity) -> None:
        """Count a request against its tenant's quota; a stream counts once. Raises RateLimited."""
        app = self._operations
        if not app.quota.free(identity):
            await app.runner.run(app.quota.draw, identity)

    def _reader(
        self, view: View, identity: Identity, query: Mapping[str, str], after: int | None
    ) -> Callable[[], bytes]:
        viewer = Viewer(self._operations.dispatcher.backend, self.history, identity, self._tokens, after)
        return lambda: shown(view, viewer, query)


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > _MAX_BODY:
            raise TooLarge("the request", len(body), _MAX_BODY)
    return body
