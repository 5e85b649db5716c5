"""Cap'n Proto's thread and event loop, separate from the HTTP server's.

The RPC layer runs its own loop under asyncio's, and neither server should be able to block the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Any

import capnp

from tenure.errors import OpenError
from tenure.protocol.connection_limit import connection_limit
from tenure.protocol.dispatcher import Dispatcher
from tenure.protocol.identity import Identity
from tenure.server.acceptor import Acceptor
from tenure.server.auth import Authenticator
from tenure.server.capnp.guard import GuardedStream
from tenure.server.capnp.interfaces import Calls, DoorServer
from tenure.server.request_quota import RequestQuota
from tenure.server.verb_runner import VerbRunner
from tenure.telemetry import inform

#: The smallest message limit, in words: the RPC layer's own messages need some room.
_MIN_WORDS = 8192


#: Threads for verbs that do not run on the event loop.
_THREADS = 8


class CapnpService:
    """Serves the operations of a dispatcher over Cap'n Proto while the context is open."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        authenticator: Authenticator,
        listening: socket.socket,
        idle_seconds: float = 30.0,
        connections: int = 0,
    ) -> None:
        """`connections`: how many at once; 0, and the upper bound: a quarter of the process's file descriptors."""
        self._runner = VerbRunner(dispatcher, _THREADS, "tenure-capnp-verb")
        self._authenticator = authenticator
        self._quota = RequestQuota(dispatcher.backend)
        calls = Calls(dispatcher, self._identify, self._runner)
        limit = connection_limit(connections, share=0.25)
        self._server = CapnpServer(calls, listening, dispatcher.limits.body_bytes, idle_seconds, limit)

    @property
    def port(self) -> int:
        return self._server.port

    async def _identify(self, headers: Mapping[str, str]) -> Identity:
        found = self._authenticator.identify_at_once(headers)
        if found is None:
            found = await asyncio.to_thread(self._authenticator.identify, headers)
        if not self._quota.free(found):
            await asyncio.to_thread(self._quota.draw, found)
        return found

    def __enter__(self) -> CapnpService:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._runner.close()


class CapnpServer:
    """Listens from `start` to `stop`."""

    def __init__(
        self, calls: Calls, listening: socket.socket, max_bytes: int, idle_seconds: float, connections: int
    ) -> None:
        self._calls = calls
        self._idle_seconds = idle_seconds
        self._connections = connections
        self._open: set[GuardedStream] = set()
        self._listening = listening
        self.port: int = listening.getsockname()[1]
        self._words = max(_MIN_WORDS, max_bytes // 8)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tenure-capnp", daemon=True)

    def start(self) -> None:
        """Return once it accepts connections. Raises OpenError."""
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise OpenError(f"cannot serve Cap'n Proto on port {self.port}: {self._failed}")

    def stop(self) -> None:
        """Accept no more connections and close the open ones; unanswered calls are cancelled."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # the loop has already ended
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(capnp.run(self._serve()))
        except Exception as exc:  # noqa: BLE001 - raised by `start`
            self._failed = exc
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        with self._listening as listening:
            acceptor = Acceptor(
                listening,
                self._connect,
                limit=self._connections,
                in_use=lambda: len(self._open),
                close_idle=self._close_idle,
            )
            self._ready.set()
            await self._stopping.wait()
            acceptor.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connect(self, sock: socket.socket) -> None:
        guard = GuardedStream(self._words * 8, self._idle_seconds)

        def protocol() -> GuardedStream:
            # pycapnp's own `create_server` creates its protocol only this way; here the guard is in front of it.
            guard.inner = capnp.AsyncIoStream._connect(lambda stream: self._serve_stream(stream, guard))
            return guard

        await asyncio.get_running_loop().connect_accepted_socket(protocol, sock)

    async def _serve_stream(self, stream: Any, guard: GuardedStream) -> None:
        """Serve until the caller disconnects, or sends something that is no RPC message."""
        self._open.add(guard)
        try:
            connection = capnp.TwoPartyServer(
                stream,
                bootstrap=DoorServer(self._calls, guard),
                traversal_limit_in_words=self._words,
                nesting_limit=16,
            )
            await connection.on_disconnect()
        except capnp.KjException as exc:
            inform("capnp_connection_ended", reason=str(exc).splitlines()[0][:200])
        finally:
            self._open.discard(guard)
            guard.close()

    def _close_idle(self) -> bool:
        idle = [one for one in self._open if one.idle]
        if not idle:
            return False
        chosen = min(idle, key=lambda one: (one.logged_in, one.idle_since))
        self._open.discard(chosen)
        chosen.close()
        return True
