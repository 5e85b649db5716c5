"""A view, sent again whenever it changes, as server-sent events.

    event: now      {"now_ms": …}   the store's time, at first and every ALIVE_S: the page knows that the stream lives
    event: view     the view's JSON, if it differs from the one before
    event: ended    why there will be no more: signed out, not found, going down

All streams together may use SHARE of one core: a view that takes long to read is read less often, and the more
streams there are, the less often each is read. Nothing is read while the journal stands still, but for what changes by
time alone, every QUIET_S.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from time import thread_time

import msgspec

from tenure.errors import TenureError
from tenure.server.asgi import OperationsApp, Send, start_of

SHARE = 0.02
PACE_S = 1.0
QUIET_S = 5.0
ALIVE_S = 5.0
_A_YEAR_MS = 86_400_000 * 365

Read = Callable[[], bytes]
Identify = Callable[[int | None], Awaitable[Read]]


class LiveViews:
    """The streams of one server."""

    def __init__(self, operations: OperationsApp) -> None:
        self._operations = operations
        self.streams = 0

    async def stream(
        self,
        send: Send,
        identify: Identify,
        moment: Callable[[], int],
        caller_leaves: Callable[[], Awaitable[None]],
    ) -> None:
        """Send until the caller leaves, its token expires or the server stops.

        `identify` returns the function that reads the view for the caller, with what has happened until a moment.
        `moment` tells it. Raises what `identify` or the first reading raises.
        """
        app, loop = self._operations, asyncio.get_running_loop()
        woken, over = asyncio.Event(), asyncio.Event()

        def wake() -> None:
            woken.set()
            if app.dispatcher.stopping:
                over.set()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: so is the server
                loop.call_soon_threadsafe(wake)

        watch = await app.runner.run(app.dispatcher.backend.watch, (None,), _A_YEAR_MS, notify)
        key, gone = object(), asyncio.ensure_future(caller_leaves())
        entry = app.dispatcher.in_flight.enter(key, notify)
        gone.add_done_callback(lambda done: over.set())
        self.streams += 1
        try:
            last, cost = await app.runner.run(_timed, await identify(None))
            await send(start_of(200, "text/event-stream", (("Cache-Control", "no-store"),)))
            await self._say_now(send)
            await self._say(send, "view", last)
            woken.set()  # the first look may have been at a reading that was a moment old
            while True:
                await self._rest(send, max(PACE_S, cost / SHARE * self.streams), over)
                await self._rest(send, QUIET_S, woken, over)
                if gone.done():
                    return
                if app.dispatcher.stopping:
                    await self._end(send, "stopping")
                    return
                woken.clear()
                await app.runner.run(watch.again)  # before the look: what happens during it wakes again
                try:
                    read, cost = await app.runner.run(_timed, await identify(moment()))
                except TenureError as exc:
                    await self._end(send, exc.code)
                    return
                if read != last:
                    await self._say(send, "view", read)
                    last = read
        finally:
            self.streams -= 1
            gone.cancel()
            watch.close()
            app.dispatcher.in_flight.leave(key, entry)

    async def _rest(self, send: Send, seconds: float, *events: asyncio.Event) -> None:
        """Return when one of the events is set, or time is up. Meanwhile the page is told that the stream lives."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 0 and not any(event.is_set() for event in events):
            await _first_of(min(left, ALIVE_S), *events)
            await self._say_now(send)

    async def _say_now(self, send: Send) -> None:
        now_ms = await self._operations.runner.run(self._operations.dispatcher.backend.now_ms)
        await self._say(send, "now", msgspec.json.encode({"now_ms": now_ms}))

    async def _end(self, send: Send, why: str) -> None:
        await self._say(send, "ended", msgspec.json.encode({"why": why}))
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    async def _say(send: Send, event: str, data: bytes) -> None:
        body = b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _first_of(seconds: float, *events: asyncio.Event) -> None:
    """Return when one of the events is set, or time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _timed(read: Read) -> tuple[bytes, float]:
    """What was read, and the processor's time that it took, in seconds."""
    began = thread_time()
    return read(), thread_time() - began
