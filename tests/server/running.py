"""A server of a test's own, in this process, on a real socket."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import leasehold
from leasehold import ManualClock, SystemClock
from leasehold.server.auth.claims import Rules
from leasehold.server.auth.keys import OneKey, from_secret
from leasehold.server.auth.mint import mint
from leasehold.server.auth.tokens import TokenAuthenticator
from leasehold.stores.remote.host import Host
from leasehold.stores.remote.identity import Identity
from leasehold.stores.remote.listener import Listener

SECRET = b"a secret of the tests, 32 bytes or more"
RULES = Rules("leasehold", "leasehold")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


#: Of every answer its own.
_OWN = {"date", "leasehold-request", "content-length", "server"}


class Running:
    def __init__(self, store: leasehold.Store, port: int) -> None:
        self.store = store
        self.port = port
        self.capnp_port = 0
        self.url = f"http://127.0.0.1:{port}"
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        content = {} if body is None else {"Content-Type": "application/json"}
        self._connection.request(method, target, body, {**content, **headers})
        got = self._connection.getresponse()
        found = {name.lower(): value for name, value in got.getheaders()}
        return Answer(got.status, {n: v for n, v in found.items() if n not in _OWN}, got.read())

    def close(self) -> None:
        self._connection.close()


def token(
    tenant: str | None, scopes: str, queues: Sequence[str] | None = None, lifetime: float = 600
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
def running(clock: ManualClock | None = None, capnp: bool = False) -> Iterator[Running]:
    door = TokenAuthenticator(OneKey(from_secret(SECRET, "secret")), RULES)
    with leasehold.open("memory:", clock=clock, sweep=False) as store, ExitStack() as ending:
        listening = socket.create_server(("127.0.0.1", 0))
        made = Running(store, listening.getsockname()[1])
        host = Host(store._backend)
        listener = Listener(listening, host, door.identify)
        ending.callback(listener.stop)
        ending.callback(made.close)
        if capnp:
            made.capnp_port = ending.enter_context(_capnp(host, door))
        yield made


@contextmanager
def _capnp(host: Host, door: TokenAuthenticator) -> Iterator[int]:
    from leasehold.server.capnp.carrying import Carrier
    from leasehold.server.capnp.door import Lobby
    from leasehold.server.capnp.serving import CapnpServer

    async def identify(headers: Mapping[str, str]) -> Identity:
        return door.identify(headers)

    carrier = Carrier(host)
    server = CapnpServer(Lobby(host, identify, carrier.carry), "127.0.0.1", 0, host.limits.body_bytes)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()
        carrier.close()
