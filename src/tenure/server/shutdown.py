"""uvicorn's server, and how it ends.

uvicorn waits for requests to finish; those that wait for jobs would take as long as their callers allow. So the waits
are ended first, and answered with what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn

from tenure.protocol.dispatcher import Dispatcher


class Stopping(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, dispatcher: Dispatcher) -> None:
        super().__init__(config)
        self._dispatcher = dispatcher

    def stop_soon(self) -> None:
        self.should_exit = True
        with contextlib.suppress(AttributeError, RuntimeError):  # not begun, or ended
            self._loop.call_soon_threadsafe(self._stop_asked.set)

    async def main_loop(self) -> None:
        self._loop, self._stop_asked = asyncio.get_running_loop(), asyncio.Event()
        counter = 0
        while not await self.on_tick(counter):
            counter = (counter + 1) % 864_000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_asked.wait(), 0.1)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the signal is not raised again afterwards: the store has to be closed first."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but waiting requests are answered first, and it ends at once with the last connection."""
        self._dispatcher.stop()
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            await asyncio.wait_for(self._all_closed(), self.config.timeout_graceful_shutdown)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()

    async def _all_closed(self) -> None:
        state = self.server_state
        while (state.connections or state.tasks) and not self.force_exit:
            await asyncio.sleep(0.005)
        for server in self.servers:
            await server.wait_closed()
