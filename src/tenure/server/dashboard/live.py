"""A view sent again whenever it changes, as server-sent events.

    event: now      {"now_ms": …}   the store's time, at first and every ALIVE_S: the page knows that the stream lives
    event: view     the view's JSON, if it differs from the last one
    event: ended    why the stream ends: signed out, not found, server stopping

All streams together may use SHARE of one core: a view that is slow to read is read less often, and each of many streams
is read less often. Nothing is read while the journal does not change, except every QUIET_S, for values that change with
time.
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
        """Send until the caller disconnects, its token expires or the server stops.

        `identify` returns the function that reads the view for the caller, as of a time that `moment` returns. Raises
        what `identify` or the first reading raises.
        """
        app, loop = self._operations, asyncio.get_running_loop()
        woken, over = asyncio.Event(), asyncio.Event()

        def wake() -> None:
            woken.set()
            if app.dispatcher.stopping:
                over.set()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the server
                loop.call_soon_threadsafe(wake)

        watch = await app.runner.run(app.dispatcher.backend.watch, (None,), _A_YEAR_MS, notify)
        key, gone = object(), asyncio.ensure_future(caller_leaves())
        entry = app.dispatcher.in_flight.enter(key, notify)
        gone.add_done_callback(lambda done: over.set())
        self.streams += 1
        try:
            last, cost = await app.runner.run(_timed, await identify(None))
            await send(start_of(200, "text/event-stream", (("Cache-Control", "no-store"),)))
            await self._send_now(send)
            await self._send_event(send, "view", last)
            woken.set()  # the first view may be from a slightly older reading
            while True:
                await self._pause(send, max(PACE_S, cost / SHARE * self.streams), over)
                await self._pause(send, QUIET_S, woken, over)
                if gone.done():
                    return
                if app.dispatcher.stopping:
                    await self._end(send, "stopping")
                    return
                woken.clear()
                await app.runner.run(watch.again)  # before reading: changes during it notify again
                try:
                    read, cost = await app.runner.run(_timed, await identify(moment()))
                except TenureError as exc:
                    await self._end(send, exc.code)
                    return
                if read != last:
                    await self._send_event(send, "view", read)
                    last = read
        finally:
            self.streams -= 1
            gone.cancel()
            watch.close()
            app.dispatcher.in_flight.leave(key, entry)

    async def _pause(self, send: Send, seconds: float, *events: asyncio.Event) -> None:
        """Return when one of the events is set, or the time is up; meanwhile send keep-alive events."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 0 and not any(event.is_set() for event in events):
            await _first_of(min(left, ALIVE_S), *events)
            await self._send_now(send)

    async def _send_now(self, send: Send) -> None:
        now_ms = await self._operations.runner.run(self._operations.dispatcher.backend.now_ms)
        await self._send_event(send, "now", msgspec.json.encode({"now_ms": now_ms}))

    async def _end(self, send: Send, why: str) -> None:
        await self._send_event(send, "ended", msgspec.json.encode({"why": why}))
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    async def _send_event(send: Send, event: str, data: bytes) -> None:
        body = b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _first_of(seconds: float, *events: asyncio.Event) -> None:
    """Return when one of the events is set, or the time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _timed(read: Read) -> tuple[bytes, float]:
    """Return what was read, and the CPU seconds that it took."""
    began = thread_time()
    return read(), thread_time() - began
