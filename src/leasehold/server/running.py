"""Listening: an address, a socket, and the ASGI server (uvicorn: docs/adr tells why) that runs the application on it.

On SIGTERM or SIGINT it takes no more connections, answers those who wait with nothing, lets every request under way finish, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from leasehold.errors import OpenError, SettingsError
from leasehold.extras import needs
from leasehold.server.auth import LoopbackAuthenticator
from leasehold.server.auth.opening import authenticator
from leasehold.serving import Server
from leasehold.stores.remote.address import reachable
from leasehold.stores.remote.host import Host
from leasehold.stores.remote.limits import Limits
from leasehold.stores.store import Store

if TYPE_CHECKING:
    import uvicorn

#: Connections that the kernel keeps until they are taken.
_BACKLOG = 1024
#: For requests under way, once the server is told to end.
_FINISH_S = 30


class Bind(NamedTuple):
    """`HOST:PORT`, or `unix:PATH`."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def loopback(self) -> bool:
        """Whether only this machine gets here."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def url(self, tls: bool = False) -> str:
        if self.path:
            return f"http+unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if tls else 'http'}://{host}:{self.port}"


def parse_bind(text: str) -> Bind:
    """Raises SettingsError."""
    if text.startswith("unix:"):
        path = text[5:]
        if not path or "\0" in path:
            raise SettingsError(f"{text!r} names no socket: write unix:PATH")
        return Bind(path=os.path.abspath(os.path.expanduser(path)))
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"{text!r} is no address to listen on: write HOST:PORT, or unix:PATH")
    return Bind(host.strip("[]") or "127.0.0.1", int(port))


@contextlib.contextmanager
def listening(bind: Bind) -> Iterator[socket.socket]:
    """A socket that listens there. Raises OpenError."""
    try:
        if bind.path:
            made = _unix(bind.path)
        else:
            family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
            made = socket.create_server((bind.host, bind.port), family=family, backlog=_BACKLOG)
    except OSError as exc:
        raise OpenError(f"cannot listen on {bind.path or f'{bind.host}:{bind.port}'}: {exc.strerror or exc}") from exc
    try:
        yield made
    finally:
        made.close()
        if bind.path:
            with contextlib.suppress(OSError):
                os.unlink(bind.path)


def _unix(path: str) -> socket.socket:
    """Only this user gets in. What a server that was killed left behind is replaced; one that answers is not."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reachable(path) as name:
            if os.path.exists(path):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                    try:
                        probe.connect(name)
                    except ConnectionRefusedError:
                        os.unlink(path)
                    else:
                        raise OSError(f"{path} is in use by another server")
            before = os.umask(0o177)
            try:
                made.bind(name)
            finally:
                os.umask(before)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


class Service:
    """A store behind an application, behind uvicorn. `run` serves until it is told to stop."""

    def __init__(self, store: Store, bind: Bind, settings: Server, *, threads: int = 16) -> None:
        """Raises SettingsError: what would be open to everyone is refused."""
        known = authenticator(settings.auth)
        if known is None and not bind.loopback:
            raise SettingsError(
                f"{bind.host}:{bind.port} can be reached from other machines, and no authentication is configured: set one of "
                "server.auth.secret, secret_file, key_file or jwks_url, or bind to 127.0.0.1 or unix:PATH"
            )
        self.open_to_all = known is None
        self.bind = bind
        self.tls = settings.tls.cert is not None
        limits = settings.limits
        self.host = Host(store._backend, limits=Limits.of(limits))
        with needs("server", "The server"):
            import uvicorn

            from leasehold.server.app import build
            from leasehold.server.watching import Watch
            from leasehold.server.wire import guarded
        self.app = build(self.host, known or LoopbackAuthenticator(not bind.path), threads=threads)
        config = uvicorn.Config(
            Watch(self.app),  # type: ignore[arg-type]
            http=guarded(limits.head),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=_FINISH_S,
            ssl_certfile=settings.tls.cert,
            ssl_keyfile=settings.tls.key,
        )
        self._server = _server(config, self.host)

    def run(self, sock: socket.socket) -> None:
        """Serve on a listening socket, in this thread. In the main thread, SIGTERM and SIGINT end it."""
        self._server.run(sockets=[sock])

    @contextlib.contextmanager
    def running(self, sock: socket.socket) -> Iterator[None]:
        """Serve in a thread beside, for as long as the context lasts."""
        thread = threading.Thread(target=self.run, args=(sock,), name="leasehold-server", daemon=True)
        thread.start()
        try:
            while not self._server.started and thread.is_alive():
                thread.join(0.005)
            yield
        finally:
            self.stop()
            thread.join(_FINISH_S)

    def stop(self) -> None:
        """From any thread."""
        self._server.stop_soon()


def _server(config: uvicorn.Config, host: Host) -> Any:
    import uvicorn

    class Stopping(uvicorn.Server):
        """Uvicorn waits for requests to finish; those that wait for jobs would take as long as they have to live."""

        def stop_soon(self) -> None:
            self.should_exit = True
            with contextlib.suppress(AttributeError, RuntimeError):  # not begun, or ended
                self._loop.call_soon_threadsafe(self._told.set)

        async def main_loop(self) -> None:
            self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
            counter = 0
            while not await self.on_tick(counter):
                counter = (counter + 1) % 864_000
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._told.wait(), 0.1)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            host.stop()
            await super().shutdown(sockets)

    return Stopping(config)
