"""uvicorn's server with our own way to accept connections and to shut down.

It accepts through an `Acceptor`, which keeps the number of connections below the process's file descriptor limit.

At shutdown uvicorn waits for requests to finish; those that wait for jobs could take long. So they are answered first,
with what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Iterator

import uvicorn

from tenure.protocol.connection_limit import connection_limit
from tenure.protocol.dispatcher import Dispatcher
from tenure.server.acceptor import Acceptor
from tenure.server.http_protocol import close_idle

#: Seconds for a TLS handshake.
_HANDSHAKE_S = 10.0


class DrainingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, dispatcher: Dispatcher, connections: int = 0) -> None:
        """`connections`: how many at once; 0: as many as the process has file descriptors for."""
        super().__init__(config)
        self._dispatcher = dispatcher
        self._connections = connections
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, on the given listening sockets, but accept with `Acceptor`."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(3)  # as uvicorn does: the application could not start
        config, loop, state = self.config, asyncio.get_running_loop(), self.server_state
        limit = connection_limit(self._connections)

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]  # uvicorn's own call
                config=config, server_state=state, app_state=self.lifespan.state, _loop=loop
            )
            return made

        async def connect(sock: socket.socket) -> None:
            handshake = _HANDSHAKE_S if config.ssl else None
            await loop.connect_accepted_socket(protocol, sock, ssl=config.ssl, ssl_handshake_timeout=handshake)

        self.servers = []
        self._acceptors = [
            Acceptor(
                sock,
                connect,
                limit=limit,
                in_use=lambda: len(state.connections),
                close_idle=lambda: close_idle(state.connections),
            )
            for sock in sockets or ()
        ]
        self.started = True

    def stop_soon(self) -> None:
        self.should_exit = True
        with contextlib.suppress(AttributeError, RuntimeError):  # not begun, or already ended
            self._loop.call_soon_threadsafe(self._stop_requested.set)

    async def main_loop(self) -> None:
        self._loop, self._stop_requested = asyncio.get_running_loop(), asyncio.Event()
        counter = 0
        while not await self.on_tick(counter):
            counter = (counter + 1) % 864_000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), 0.1)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the signal is not raised again afterwards: the store must be closed first."""
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
        """Shut down as uvicorn does, but answer waiting requests first, and return as soon as all are gone."""
        self._dispatcher.stop()
        for acceptor in self._acceptors:
            acceptor.close()
        for listening in sockets or ():
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            await asyncio.wait_for(self._wait_closed(), self.config.timeout_graceful_shutdown)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()

    async def _wait_closed(self) -> None:
        state = self.server_state
        while (state.connections or state.tasks) and not self.force_exit:
            await asyncio.sleep(0.005)
