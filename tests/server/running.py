"""A server in the test's process, on a real socket."""

from __future__ import annotations

import http.client
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any, NamedTuple

import tenure
from tenure import ManualClock, SystemClock
from tenure.server.auth.claims import Rules
from tenure.server.auth.issue import mint
from tenure.server.service import Bind, Service, listening
from tenure.server_settings import Auth, Secret, Server

SECRET = b"a secret of the tests, 32 bytes or more"
RULES = Rules("tenure", "tenure")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


#: Of every answer its own.
_OWN = {"date", "tenure-request", "content-length", "server"}


class Running:
    def __init__(self, store: tenure.Store, port: int, service: Service | None = None) -> None:
        self.store = store
        self.service = service
        self.port = port
        self.capnp_port = 0
        self.metrics_port = 0
        self.url = f"http://127.0.0.1:{port}"
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        content = {} if body is None else {"Content-Type": "application/json"}
        self._renew()
        self._connection.request(method, target, body, {**content, **headers})
        got = self._connection.getresponse()
        found = {name.lower(): value for name, value in got.getheaders()}
        return Answer(got.status, {n: v for n, v in found.items() if n not in _OWN}, got.read())

    def _renew(self) -> None:
        """On a slow machine the server has closed a quiet connection before the next question."""
        sock = self._connection.sock
        if sock is not None and select.select([sock], [], [], 0)[0]:
            self._connection.close()

    def close(self) -> None:
        self._connection.close()


def token(
    tenant: str | None, scopes: str, queues: Sequence[str] | None = None, lifetime: float = 7200
) -> dict[str, str]:
    """Headers with a token of the real time: servers of tests check it by the real clock."""
    made = mint(
        SECRET,
        RULES,
        subject="a test",
        tenant=tenant,
        scopes=scopes.split(),
        queues=queues,
        now=SystemClock().wall_ms() / 1000,
        lifetime=lifetime,
    )
    return {"Authorization": f"Bearer {made}"}


@contextmanager
def running(
    clock: ManualClock | None = None,
    capnp: bool = False,
    metrics: bool = False,
    url: str = "memory:",
    **settings: Any,
) -> Iterator[Running]:
    """`settings` are those of `serving.Server`."""
    served = Server(**{"auth": Auth(secret=Secret(SECRET.decode())), **settings})
    bind = Bind("127.0.0.1", 0)
    with (
        tenure.open(url, clock=clock, sweep=False) as store,
        listening(bind) as sock,
        listening(bind) if capnp else nullcontext() as capnp_sock,
        listening(bind) if metrics else nullcontext() as metrics_sock,
    ):
        service = Service(store, bind, served, capnp=capnp_sock, metrics=metrics_sock)
        with service.running(sock), closing(Running(store, sock.getsockname()[1], service)) as made:
            if service.capnp is not None:
                made.capnp_port = service.capnp.port
            if metrics_sock is not None:
                made.metrics_port = metrics_sock.getsockname()[1]
            yield made
