"""Requests that begin like one before: the same answers, and nothing that a parser would have refused."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import tenure
from tenure.backends.owner.listener import Listener
from tenure.protocol.dispatcher import Dispatcher
from tenure.protocol.head_cache import HeadCache
from tenure.protocol.http_heads import parse
from tenure.protocol.identity import LOCAL
from tenure.protocol.routes import ROUTES
from tenure.server.auth.issue import mint
from tenure.server.service import Bind, Service, listening
from tenure.server_settings import Auth, Secret, Server
from tests.server.running import RULES, SECRET

PREFIX = "POST /v1/queues/q/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def request(prefix: str = PREFIX, name: str = "a1", body: bytes = b'{"text": "x"}', length: str = "") -> bytes:
    head = f"{prefix}Tenure-Request: {name}\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def cache_with(data: bytes) -> HeadCache:
    heads = HeadCache()
    with tenure.open("memory:", sweep=False) as store:
        host = Dispatcher(store._backend)
        method, target, headers = parse(data[: data.find(b"\r\n\r\n")].decode())
        operation, path = ROUTES.find(method, target)
        heads.store(data, host.head(operation, path, headers, LOCAL), headers)
    return heads


def test_it_is_known_again() -> None:
    heads = cache_with(request())
    data = request(name="another", body=b'{"text": "something else"}')
    found = heads.find(data)
    assert found is not None
    assert found.cached.head.operation.name == "enqueue"
    assert found.request_id == "another"
    assert data[found.body :] == b'{"text": "something else"}'


@pytest.mark.parametrize(
    "data",
    [
        request(PREFIX.replace("/q/", "/r/")),
        request(PREFIX + "Tenure-Tenant: acme\r\n"),
        request(PREFIX + "Authorization: Bearer x\r\n"),
        request(name="a\r\nAuthorization: Bearer x"),
        request(name="a\r\nTransfer-Encoding: chunked"),
        request(name="a\nTransfer-Encoding: chunked"),
        request(length="13\r\nTransfer-Encoding: chunked"),
        request(length="-13"),
        request(length="+13"),
        request(length="1_3"),
        request(length="0" * 10 + "13"),
        request(length="12"),
        request(length="14"),
        request() + request(),
        request().replace(b"\r\nContent-Length: 13", b""),
        request()[:-1],
        request()[:40],
        b"",
        b"\r\n\r\n",
    ],
)
def test_what_is_not_exactly_that_goes_the_long_way(data: bytes) -> None:
    assert cache_with(request()).find(data) is None


@pytest.mark.parametrize(
    "prefix",
    [
        PREFIX + "Transfer-Encoding: chunked\r\n",
        PREFIX + "Content-Length: 13\r\n",
        PREFIX + "CONTENT-LENGTH: 0\r\n",
        PREFIX + "Connection: close\r\n",
        PREFIX + "Expect: 100-continue\r\n",
        PREFIX + "Upgrade: websocket\r\n",
        PREFIX + "Content-Encoding: gzip\r\n",
        PREFIX + "Tenure-Request: b\r\n",
        PREFIX + "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
        PREFIX + "X: y\nContent-Length: 0\r\n",
        PREFIX + f"X: {'y' * 5000}\r\n",
    ],
)
def test_what_takes_a_parser_is_never_learnt(prefix: str) -> None:
    assert not cache_with(request(prefix))._cached


def test_there_are_not_too_many() -> None:
    heads = cache_with(request())
    known = next(iter(heads._cached.values()))
    for number in range(5000):
        heads.store(request(PREFIX.replace("/q/", f"/q{number}/")), *known)
    assert 0 < len(heads._cached) <= 1024


# ── through both doors ───────────────────────────────────────────────────────────────────────────────────────────────


class Caller:
    """A connection on which bytes are said as they are."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(path))

    def say(self, data: bytes) -> tuple[int, bytes]:
        self.socket.sendall(data)
        return self.hear()

    def hear(self) -> tuple[int, bytes]:
        heard = b""
        while b"\r\n\r\n" not in heard:
            heard += self._more()
        head, _, body = heard.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += self._more()
        assert len(body) == length
        return int(head[9:12]), body

    def until_cached(self, heads: HeadCache, prefix: str, body: bytes = b"[]") -> None:
        """Of a tenant that was not seen before, a server looks at the quotas first."""
        for number in range(5):
            assert self.say(request(prefix, f"known-{number}", body))[0] == 200
            if heads._cached:
                return
        raise AssertionError("it is not cache_with")

    def _more(self) -> bytes:
        got = self.socket.recv(65536)
        assert got, "the connection was closed"
        return got


def told(lifetime: float, now: float, tenant: str = "acme") -> str:
    made = mint(SECRET, RULES, subject="s", tenant=tenant, scopes=["admin"], queues=None, now=now, lifetime=lifetime)
    return f"Authorization: Bearer {made}\r\n"


@pytest.fixture(params=["listener", "server"])
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, tenure.Store, HeadCache, str]]:
    path = tmp_path / "s"
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False) as store:
        if request.param == "listener":
            bound = socket.socket(socket.AF_UNIX)
            bound.bind(str(path))
            bound.listen()
            listener = Listener(bound, Dispatcher(store._backend))
            yield path, store, listener.heads, ""
            listener.stop()
            return
        bind = Bind(path=str(path))
        with listening(bind) as sock:
            service = Service(store, bind, Server(auth=Auth(secret=Secret(SECRET.decode()))))
            with service.running(sock):
                yield path, store, service.operations.heads, told(3600, tenure.SystemClock().wall_ms() / 1000)


def test_the_same_answers(door: tuple[Path, tenure.Store, HeadCache, str]) -> None:
    path, store, heads, token = door
    with closing((caller := Caller(path)).socket):
        bodies = [
            b'{"text": "a"}',
            b'[{"text": "b", "priority": 3}, "eA=="]',
            b'{"text": 1}',
            b"{",
            b'{"delay_ms": -1}',
        ]
        unusual = PREFIX + "Connection: keep-alive\r\n" + token
        long_way = [caller.say(request(unusual, f"n{number}", body)) for number, body in enumerate(bodies)]
    assert not heads._cached
    with closing((caller := Caller(path)).socket):
        caller.until_cached(heads, PREFIX + token)
        assert len(heads._cached) == 1
        for number, body in enumerate(bodies):
            status, answer = caller.say(request(PREFIX + token, f"m{number}", body))
            expected, first = long_way[number]
            assert status == expected
            if status == 200:  # ids are new ones
                assert len(answer) == len(first)
            else:
                assert answer == first
        assert len(heads._cached) == 1
        assert len(store.queues()) == 1


def test_an_id_stands_for_one_request(door: tuple[Path, tenure.Store, HeadCache, str]) -> None:
    path, store, heads, token = door
    name = os.urandom(16).hex()
    with closing((caller := Caller(path)).socket):
        caller.until_cached(heads, PREFIX + token)
        first = caller.say(request(PREFIX + token, name))
        assert caller.say(request(PREFIX + token, name)) == first
        status, problem = caller.say(request(PREFIX + token, name, b'{"text": "y"}'))
        assert (status, msgspec.json.decode(problem)["code"]) == (400, "invalid_argument")
        status, _ = caller.say(request(PREFIX + token, "not a name!"))
        assert status == 400
    assert sum(info.counts.ready for info in store.queues()) == 1


def test_what_comes_in_pieces_or_together(door: tuple[Path, tenure.Store, HeadCache, str]) -> None:
    path, store, heads, token = door
    prefix = PREFIX + token
    with closing((caller := Caller(path)).socket):
        caller.until_cached(heads, prefix)
        caller.say(request(prefix, "first"))
        data = request(prefix, "pieces")
        for cut in (10, len(prefix) + 5, len(data) - 3):
            whole = request(prefix, f"pieces-{cut}")
            caller.socket.sendall(whole[:cut])
            caller.socket.sendall(whole[cut:])
            assert caller.hear()[0] == 200
        # A body that looks like a request is a body.
        inner = request(prefix, "inner")
        outer = msgspec.json.encode({"text": inner.decode()})
        whole = request(prefix, "outer", outer)
        at = whole.find(b"\r\n\r\n") + 4
        caller.socket.sendall(whole[:at])
        caller.socket.sendall(whole[at:])
        assert caller.hear()[0] == 200
        waits = request(prefix.replace("/jobs", "/claims"), "c", b'{"wait_ms": 20000, "limit": 10}')
        assert len(msgspec.json.decode(caller.say(waits)[1])["jobs"]) == 5
    assert sum(info.counts.enqueued for info in store.queues()) == 5


def test_a_claim_that_begins_alike_may_wait(door: tuple[Path, tenure.Store, HeadCache, str]) -> None:
    path, store, heads, token = door
    prefix = PREFIX.replace("/jobs", "/claims") + token
    with closing((caller := Caller(path)).socket):
        caller.until_cached(heads, prefix, b"{}")
        assert caller.say(request(prefix, "nothing", b"{}")) == (200, b'{"jobs":[]}')
        heard: list[tuple[int, bytes]] = []
        thread = threading.Thread(
            target=lambda: heard.append(caller.say(request(prefix, "waits", b'{"wait_ms": 20000}')))
        )
        thread.start()
        store.queue("q", tenant="acme" if token else "default").enqueue(b"x")
        thread.join(20)
        assert len(msgspec.json.decode(heard[0][1])["jobs"]) == 1


def test_a_token_ends_though_its_bearer_is_known(tmp_path: Path) -> None:
    clock = tenure.ManualClock()
    path = tmp_path / "s"
    bind = Bind(path=str(path))
    with (
        tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False, clock=clock) as store,
        listening(bind) as sock,
    ):
        service = Service(store, bind, Server(auth=Auth(secret=Secret(SECRET.decode()), leeway=0)))
        service.authenticator._clock = clock  # type: ignore[attr-defined]  # tokens are checked by the machine's
        token = told(60, clock.wall_ms() / 1000)
        with service.running(sock), closing((caller := Caller(path)).socket):
            caller.until_cached(service.operations.heads, PREFIX + token)
            for name in ("a", "b"):
                assert caller.say(request(PREFIX + token, name))[0] == 200
            clock.advance(61)
            assert caller.say(request(PREFIX + token, "c"))[0] == 401
            other = told(60, clock.wall_ms() / 1000, tenant="other")
            assert caller.say(request(PREFIX + other, "d"))[0] == 200
            assert caller.say(request(PREFIX + token, "e"))[0] == 401
        assert store.queue("q", tenant="acme").counts().ready == 2
        assert store.queue("q", tenant="other").counts().ready == 1
