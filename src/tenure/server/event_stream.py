"""The journal as server-sent events: from a cursor (or `Last-Event-ID`) on, until the caller disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tenure.errors import TenureError
from tenure.model.event import EventPage
from tenure.protocol import formats
from tenure.protocol.answer import Exchange
from tenure.protocol.dispatcher import RequestHead
from tenure.server.asgi import Send, start_of

if TYPE_CHECKING:
    from tenure.server.asgi import OperationsApp

#: Seconds after which a stream without events sends a keep-alive.
_ALIVE_S = 15.0
_A_YEAR_MS = 86_400_000 * 365
#: Seconds between two looks of a stream, times the number of streams, up to a second: every commit wakes all of them,
#: and hundreds of looks would leave little of the server for others.
_PACE_S = 0.002


async def stream_events(
    app: OperationsApp, exchange: Exchange, send: Send, caller_leaves: Callable[[], Awaitable[None]]
) -> None:
    """Send events until the caller disconnects, its token expires, it cancels the request, or the server stops.

    `exchange` is a checked request for `events`. Raises what its first page raises, with nothing sent.
    """
    dispatcher, loop, woken = app.dispatcher, asyncio.get_running_loop(), asyncio.Event()
    query = {"limit": "100"} | exchange.query | {"wait_ms": "1"}
    if "last-event-id" in exchange.headers:
        query["after"] = exchange.headers["last-event-id"]

    def notify() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the server
            loop.call_soon_threadsafe(woken.set)

    async def next_page(head: RequestHead) -> EventPage:
        found = await app.runner.run(dispatcher.run, dispatcher.request(head, query, exchange.request_id, b""))
        assert isinstance(found, EventPage)
        return found

    head, request = exchange.head, exchange.request
    assert head is not None
    assert request is not None
    page = await next_page(head)
    entry = dispatcher.in_flight.enter(request.key, notify)
    gone = asyncio.ensure_future(caller_leaves())
    gone.add_done_callback(lambda done: woken.set())
    watch = await app.runner.run(dispatcher.backend.watch, (None,), _A_YEAR_MS, notify)
    app.streams += 1
    try:
        await send(start_of(200, "text/event-stream", (("Cache-Control", "no-store"),)))
        while not gone.done() and not dispatcher.stopping and not entry.cancelled:
            text = _text_of(page) if page.events else b": alive\n\n"
            await send({"type": "http.response.body", "body": text, "more_body": True})
            moved_on, query["after"] = page.cursor != query.get("after"), page.cursor
            if not page.events and not moved_on:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), _ALIVE_S)
                if not gone.done() and not dispatcher.stopping:
                    await asyncio.sleep(min(1.0, _PACE_S * app.streams))
            woken.clear()
            try:  # the stream ends with its caller's token
                identity = await app.identify(exchange.headers)
            except TenureError:
                break
            page = await next_page(dispatcher.head(head.operation, head.path, exchange.headers, identity))
            if not page.events:
                await app.runner.run(watch.again)
        await send({"type": "http.response.body", "body": b""})
    finally:
        app.streams -= 1
        gone.cancel()
        watch.close()
        dispatcher.in_flight.leave(request.key, entry)


def _text_of(page: EventPage) -> bytes:
    """Encode a page. Its last event carries the cursor, with which a caller continues after the page."""
    lines = [
        b"event: " + event.type.encode() + b"\ndata: " + formats.JSON.encode(event) + b"\n" for event in page.events
    ]
    lines[-1] = b"id: " + page.cursor.encode() + b"\n" + lines[-1]
    return b"\n".join(lines) + b"\n"
