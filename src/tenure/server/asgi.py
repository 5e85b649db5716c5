"""The operations as an ASGI application: what is below `/v1`.

A request is understood on the event loop and carried out in a pool of threads, or, a small verb of an embedded store, on the loop
itself, which takes less than changing threads does; what it has to wait for the disk, it waits without a thread. One that waits holds no thread: the
store tells when it is worth another look (`Backend.watch`), and the caller's leaving ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from tenure import telemetry
from tenure.backends.embedded import KvBackend
from tenure.errors import NotFound, TenureError, TooLarge
from tenure.model.event import EventPage
from tenure.protocol import formats
from tenure.protocol import messages as m
from tenure.protocol.calls import Operation
from tenure.protocol.dispatcher import REQUEST_ID, ROUTES, SMALL, Begun, Host, Reply, Routes, Streamed
from tenure.protocol.head_cache import LEARNT, Found, Lane
from tenure.protocol.identity import Identity
from tenure.server.auth import Authenticator
from tenure.server.decompression import inflated
from tenure.server.request_log import Facts, facts_of, plain_headers
from tenure.server.request_quota import Meter
from tenure.storage.group_commit import GroupCommit

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: With a larger body than this even a small verb may take a while.
SMALL_BYTES = 16 * 1024
#: And so may a claim of more than this.
_SMALL_CLAIM = 1000
#: A stream of events says that it is alive this often.
_ALIVE_S = 15.0
_END = object()


class Gone(Exception):
    """The caller has left."""


class Door:
    def __init__(
        self,
        host: Host,
        authenticator: Authenticator,
        *,
        threads: int = 16,
        routes: Routes = ROUTES,
        inline: bool | None = None,
    ) -> None:
        self.host = host
        self._authenticator = authenticator
        self._routes = routes
        self.meter = Meter(host.backend)
        self.threads = ThreadPoolExecutor(threads, "tenure-server")
        self._inline = host.quick if inline is None else inline
        self.lane = Lane()
        self._syncer = host.backend.syncer if isinstance(host.backend, KvBackend) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, facts = plain_headers(scope["headers"]), facts_of(scope)
        try:
            reply = await self._answer(scope, headers, facts, receive, send)
        except Gone:
            return
        except Exception as exc:  # noqa: BLE001 - the caller is told, and so is the log
            reply = self._refused(exc, headers, facts)
        if reply is not None:
            await _send(send, reply)

    def at_once(self, method: str, path: str, headers: Mapping[str, str], body: bytes, facts: Facts) -> Reply | None:
        """The answer to a small verb that can be given here and now. None: it takes a thread or a wait; nothing was done.

        For whoever has the whole request at hand: it spares a small verb the event loop's machinery (`wire`).
        """
        host = self.host
        if not self._inline or method not in ("POST", "GET") or "content-encoding" in headers:
            return None
        try:
            identity = self._authenticator.identify_at_once(headers)
            if identity is None or not self.meter.free(identity):
                return None
            facts.subject, facts.tenant = identity.subject, identity.tenant
            operation, named = self._routes.find(method, path)
            facts.route = operation.name
            if operation.name not in SMALL:
                return None
            prepared = host.prepare(operation, named, headers, identity)
            begun = host.understand(prepared, {}, headers.get(REQUEST_ID), body)
            if begun.waiting is not None:
                return None
            _note(facts, begun, named)
            if operation.name in LEARNT:
                facts.prepared = prepared._replace(name=begun.call.name)
            return host.reply(begun, host.run(begun))
        except Exception as exc:  # noqa: BLE001 - as above
            return self._refused(exc, headers, facts)

    def known(self, found: Found, body: bytes, facts: Facts) -> Reply | None:
        """The same, of a request that begins like one before (`lane`)."""
        host, (prepared, headers) = self.host, found.known
        try:
            identity = self._authenticator.identify_at_once(headers)
            if identity != prepared.identity or not self.meter.free(identity) or len(body) > SMALL_BYTES:
                return None  # the long way tells why
            begun = host.understand(prepared, {}, found.name, body)
            if begun.waiting is not None:
                return None
            facts.subject, facts.route = identity.subject, prepared.operation.name
            facts.tenant = identity.tenant if prepared.tenant is None else prepared.tenant
            facts.queue = begun.call.name.queue
            return host.reply(begun, host.run(begun))
        except Exception as exc:  # noqa: BLE001 - as above
            return self._refused(exc, headers, facts)

    def _refused(self, exc: Exception, headers: Mapping[str, str], facts: Facts) -> Reply:
        if isinstance(exc, TenureError):
            facts.code = exc.code
            return self.host.refusal(exc, headers)
        telemetry.warn("request_failed", exc, route=facts.route, request_id=facts.request_id)
        facts.code = "error"
        return self.host.refusal(TenureError(f"the server failed: {type(exc).__name__}"), headers)

    async def _answer(
        self, scope: Scope, headers: Mapping[str, str], facts: Facts, receive: Receive, send: Send
    ) -> Reply | None:
        host, method = self.host, scope["method"]
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        path = raw.partition(b"?")[0].decode("latin-1")
        identity = await self.identified(headers)
        facts.subject, facts.tenant = identity.subject, identity.tenant
        if not self.meter.free(identity):
            await self.run(self.meter.draw, identity)
        if method == "DELETE" and path.startswith("/v1/requests/"):
            if not host.call_off(identity, headers, path[13:]):
                raise NotFound("no request of that id waits")
            return Reply(200, "application/json", b"{}")
        operation, named = self._routes.find(method, path)
        facts.route = operation.name
        text = scope["query_string"]
        query = dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True)) if text else {}
        body = b"" if operation.in_query else await self._body(receive, headers)
        if "content-encoding" in headers:
            body = await self.run(inflated, body, headers["content-encoding"], host.limits.inflated_bytes)
        if operation.name == "events" and "text/event-stream" in headers.get("accept", ""):
            await self._stream_events(operation, query, headers, identity, receive, send)
            return None
        begun = host.begin(operation, named, query, headers, body, identity)
        _note(facts, begun, named)
        if begun.waiting is not None:
            answer = await self._wait(begun, receive)
        elif self._inline and operation.name in SMALL and len(body) <= SMALL_BYTES:
            answer = host.run(begun)
        elif self._syncer is not None and operation.name in SMALL and len(body) <= SMALL_BYTES:
            answer = await self._durable(begun, self._syncer)
        else:
            answer = await self.run(host.run, begun)
        if isinstance(answer, Streamed):
            await self._stream(answer, send)
            return None
        return host.reply(begun, answer)

    async def _durable(self, begun: Begun, syncer: GroupCommit) -> object:
        """Do it here, and wait for the disk without a thread: whatever is done meanwhile shares the next sync."""

        def work() -> object:
            try:
                return self.host.run(begun)
            except TenureError as exc:  # its being remembered may be a commit, too
                return exc

        answer, commit = syncer.deferring(work)
        if commit:
            loop = asyncio.get_running_loop()
            durable: asyncio.Future[None] = loop.create_future()

            def told() -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: so is the server
                    loop.call_soon_threadsafe(_answer_to, durable)

            syncer.call_when_durable(commit, told)
            await durable
            syncer.wait(commit)  # at once: it is, or this says why it is not
        if isinstance(answer, TenureError):
            raise answer
        return answer

    async def identified(self, headers: Mapping[str, str]) -> Identity:
        found = self._authenticator.identify_at_once(headers)
        return await self.run(self._authenticator.identify, headers) if found is None else found

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)

    async def _body(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        limit = self.host.limits.body_bytes
        said = headers.get("content-length", "")
        if said.isdigit() and int(said) > limit:
            raise TooLarge("the request", int(said), limit)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if size > limit:
                raise TooLarge("the request", size, limit)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _wait(self, begun: Begun, receive: Receive) -> object:
        host, loop = self.host, asyncio.get_running_loop()
        woken = asyncio.Event()
        # A look at a queue takes less than two changes of threads, between which the job may be another's.
        small = isinstance(begun.call.request, m.ClaimBody) and begun.call.request.limit <= _SMALL_CLAIM
        run = _here if self._inline and small else self.run

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: so is the server
                loop.call_soon_threadsafe(woken.set)

        entry = host.attendance.enter(begun.key, told)
        gone = asyncio.ensure_future(_gone(receive))
        gone.add_done_callback(lambda done: woken.set())
        watch = None
        try:
            watch = await run(host.watch, begun, told)
            while True:
                woken.clear()
                if gone.done():
                    raise Gone
                answer = await run(host.look, begun, watch, entry)
                if answer is not None:
                    if gone.done():
                        await run(host.give_back, begun, entry, answer)
                        raise Gone
                    return answer
                if not gone.done():
                    await woken.wait()
        finally:
            gone.cancel()
            if watch is not None:
                watch.close()
            host.attendance.leave(begun.key, entry)

    # ── answers that go on ───────────────────────────────────────────────────────────────────────────────────────────

    async def _stream(self, answer: Streamed, send: Send) -> None:
        await send(_start(200, answer.content_type, answer.headers))
        pieces: Iterator[bytes] = iter(answer.pieces)
        try:
            while True:
                piece = await self.run(next, pieces, _END)
                if piece is _END:
                    break
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                await self.run(close)
        await send({"type": "http.response.body", "body": b""})

    async def _stream_events(
        self,
        operation: Operation,
        query: dict[str, str],
        headers: Mapping[str, str],
        identity: Identity,
        receive: Receive,
        send: Send,
    ) -> None:
        """The journal as server-sent events, from a cursor (or `Last-Event-ID`) on, until the caller leaves."""
        host, loop = self.host, asyncio.get_running_loop()
        query = {"limit": "100"} | query | {"wait_ms": "1"}
        if "last-event-id" in headers:
            query["after"] = headers["last-event-id"]
        woken = asyncio.Event()

        def told() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(woken.set)

        begun = host.begin(operation, {}, query, headers, b"", identity)
        page = await self.run(host.run, begun)
        entry = host.attendance.enter(begun.key, told)
        gone = asyncio.ensure_future(_gone(receive))
        gone.add_done_callback(lambda done: woken.set())
        watch = await self.run(host.backend.watch, (None,), 86_400_000 * 365, told)
        try:
            await send(_start(200, "text/event-stream", (("Cache-Control", "no-store"),)))
            while not gone.done() and not host.stopping and not entry.over:
                assert isinstance(page, EventPage)
                text = _events_text(page) if page.events else b": alive\n\n"
                await send({"type": "http.response.body", "body": text, "more_body": True})
                query["after"] = page.cursor
                if not page.events:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(woken.wait(), _ALIVE_S)
                woken.clear()
                try:  # a stream ends with its caller's token
                    identity = await self.identified(headers)
                except TenureError:
                    break
                begun = host.begin(operation, {}, query, headers, b"", identity)
                page = await self.run(host.run, begun)
                if isinstance(page, EventPage) and not page.events:
                    await self.run(watch.again)
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            watch.close()
            host.attendance.leave(begun.key, entry)


def _note(facts: Facts, begun: Begun, named: Mapping[str, str]) -> None:
    if begun.call.tenant is not None:
        facts.tenant = begun.call.tenant
    if "queue" in named:
        facts.queue = begun.call.name.queue


async def _here(work: Callable[..., T], *arguments: object) -> T:
    """As `Door.run`, without a thread."""
    return work(*arguments)


def _answer_to(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():  # its caller may have left
        waiting.set_result(None)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _events_text(page: EventPage) -> bytes:
    """The last event of a page carries the cursor: whoever comes back with it goes on behind the page."""
    lines = [
        b"event: " + event.type.encode() + b"\ndata: " + formats.JSON.encode(event) + b"\n" for event in page.events
    ]
    lines[-1] = b"id: " + page.cursor.encode() + b"\n" + lines[-1]
    return b"\n".join(lines) + b"\n"


def _start(status: int, content_type: str, headers: tuple[tuple[str, str], ...]) -> Message:
    raw = [(b"content-type", content_type.encode("latin-1"))]
    raw += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http.response.start", "status": status, "headers": raw}


async def _send(send: Send, reply: Reply) -> None:
    status, content_type, body, extra = reply
    start = _start(status, content_type, extra)
    start["headers"].append((b"content-length", str(len(body)).encode()))
    await send(start)
    await send({"type": "http.response.body", "body": body})
