"""Listen on an address and run the application on uvicorn (docs/adr says why uvicorn).

On SIGTERM or SIGINT it accepts no more connections, answers waiting requests with nothing, lets current requests
finish, and ends.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import math
import os
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tenure.api.store import Store
from tenure.backends.remote.address import reachable
from tenure.errors import OpenError, SettingsError
from tenure.extras import needs
from tenure.protocol.dispatcher import Dispatcher
from tenure.protocol.free_space import FreeSpace
from tenure.protocol.limits import Limits
from tenure.server.auth import Authenticator, LoopbackAuthenticator
from tenure.server.auth.configuration import authenticator
from tenure.server.metrics_listener import serving_metrics
from tenure.server.queue_metrics import QUEUE_METRICS
from tenure.server_settings import Server, Tls
from tenure.settings import parse_url

if TYPE_CHECKING:
    from tenure.server.capnp.service import CapnpService

#: Connections that the kernel queues until they are accepted.
_BACKLOG = 1024
#: Seconds for current requests to finish, once the server stops.
_FINISH_S = 30


class Bind(NamedTuple):
    """An address to listen on: `HOST:PORT`, or `unix:PATH`."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
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
def listening(bind: Bind, setting: str = "--bind") -> Iterator[socket.socket]:
    """Yield a socket that listens there. Raises OpenError, which names the option or setting to change."""
    try:
        if bind.path:
            made = _unix(bind.path)
        else:
            family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
            made = socket.create_server((bind.host, bind.port), family=family, backlog=_BACKLOG)
            # Accepted connections inherit it. asyncio does not set it on a socket created without a protocol number.
            # Without it, an answer in two pieces waits 40 ms for the caller's acknowledgement of the first.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as exc:
        why = os.strerror(exc.errno) if exc.errno else exc  # create_server repeats the address in its message
        if exc.errno == errno.EADDRINUSE:
            why = f"{why} by another program: stop it, or choose another with {setting}"
        raise OpenError(f"cannot listen on {bind.path or f'{bind.host}:{bind.port}'}: {why}") from exc
    try:
        yield made
    finally:
        made.close()
        if bind.path:
            with contextlib.suppress(OSError):
                os.unlink(bind.path)


def _unix(path: str) -> socket.socket:
    """Listen on a Unix socket for this user only. Replaces a killed server's socket, but not one that answers."""
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
                        raise OSError("another server uses it: stop it, or choose another path")
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


def metrics_place(settings: Server) -> Bind | None:
    """Return the second address for `/metrics`, if there is one. Raises SettingsError."""
    if settings.metrics_bind is None:
        return None
    place = parse_bind(settings.metrics_bind)
    if place.path:
        raise SettingsError("server.metrics_bind takes HOST:PORT")
    return place


def configured_authenticator(settings: Server, *places: Bind | None) -> Authenticator | None:
    """Return the authenticator; None if callers need no token.

    Raises SettingsError for invalid keys, and for a server that would be open to everyone.
    """
    known = authenticator(settings.auth)
    for place in places:
        if place is not None and known is None and not place.loopback:
            raise SettingsError(
                f"{place.host}:{place.port} can be reached from other machines, and no authentication is configured:"
                " set one of server.auth.secret, secret_file, key_file or jwks_url, or bind to 127.0.0.1 or unix:PATH"
            )
    check_tls(settings.tls)
    return known


def check_tls(tls: Tls) -> None:
    if (tls.cert is None) != (tls.key is None):
        raise SettingsError("server.tls.cert and server.tls.key go together: set both, or none")
    if tls.cert is None or tls.key is None:
        return
    import ssl

    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as exc:
        raise SettingsError(f"server.tls.cert = {tls.cert!r}, server.tls.key = {tls.key!r}: {exc}") from None


def _folder_of(url: str) -> str | None:
    """Return the folder of an embedded store; None if it has none, or is on another machine."""
    engine, path = parse_url(url)
    return path if engine in ("rocksdb", "lmdb") else None


class Service:
    """A store behind an application, behind uvicorn. `run` serves until `stop`."""

    def __init__(
        self,
        store: Store,
        bind: Bind,
        settings: Server,
        *,
        threads: int = 16,
        capnp: socket.socket | None = None,
        metrics: socket.socket | None = None,
    ) -> None:
        """`capnp` and `metrics`: listening sockets on which to serve Cap'n Proto, and `/metrics` without a token.

        Raises SettingsError for a server open to everyone.
        """
        known = configured_authenticator(settings, bind, None if capnp is None else Bind(*capnp.getsockname()[:2]))
        self.open_to_all = known is None
        self.bind = bind
        self.tls = settings.tls.cert is not None
        limits = self._limits = settings.limits
        space = FreeSpace(_folder_of(store.url), limits.free)
        self.dispatcher = Dispatcher(store.backend, limits=Limits.of(limits), space=space)
        with needs("server", "The server"):
            import uvicorn

            from tenure.server.application import Application
            from tenure.server.http_protocol import guarded
            from tenure.server.request_log import RequestLogger
            from tenure.server.shutdown import DrainingServer
        self._metrics = metrics
        self.authenticator: Authenticator = known or LoopbackAuthenticator(not bind.path)
        app = Application(
            self.dispatcher,
            self.authenticator,
            threads=threads,
            open_metrics=settings.open_metrics,
            bodies=limits.bodies,
        )
        self.operations = app.operations
        self.dashboard = app.dashboard
        config = uvicorn.Config(
            RequestLogger(app, app.paths),
            http=guarded(limits.head, limits.idle, app.operations),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=math.ceil(limits.idle),  # uvicorn's default of five seconds is short for a slow caller
            timeout_graceful_shutdown=_FINISH_S,
            ssl_certfile=settings.tls.cert,
            ssl_keyfile=settings.tls.key,
        )
        self._server = DrainingServer(config, self.dispatcher, limits.connections)
        self.capnp = None if capnp is None else self._capnp_service(capnp)

    def _capnp_service(self, sock: socket.socket) -> CapnpService:
        with needs("capnp", "The Cap'n Proto service"):
            from tenure.server.capnp.service import CapnpService

        limits = self._limits
        return CapnpService(self.dispatcher, self.authenticator, sock, limits.idle, limits.connections)

    def run(self, sock: socket.socket) -> None:
        """Serve on a listening socket, in this thread. In the main thread, SIGTERM and SIGINT end it."""
        self.authenticator.prepare()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._shown_in_metrics())
            if self._metrics is not None:
                stack.enter_context(serving_metrics(self._metrics))
            self._serve(sock)

    @contextlib.contextmanager
    def _shown_in_metrics(self) -> Iterator[None]:
        """Include the store's queues in `/metrics` while it is served."""
        backend = self.dispatcher.backend
        QUEUE_METRICS.add(backend)
        try:
            yield
        finally:
            QUEUE_METRICS.remove(backend)

    def _serve(self, sock: socket.socket) -> None:
        with self.capnp or contextlib.nullcontext():
            self._server.run(sockets=[sock])

    @contextlib.contextmanager
    def running(self, sock: socket.socket) -> Iterator[None]:
        """Serve in another thread while the context is open."""
        thread = threading.Thread(target=self.run, args=(sock,), name="tenure-server", daemon=True)
        thread.start()
        try:
            while not self._server.started and thread.is_alive():
                thread.join(0.005)
            yield
        finally:
            self.stop()
            thread.join(_FINISH_S)

    def stop(self) -> None:
        """Stop serving. May be called from any thread."""
        self._server.stop_soon()
