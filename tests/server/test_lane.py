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
from tenure.protocol.dispatcher import ROUTES, Host
from tenure.protocol.head_cache import Lane
from tenure.protocol.http_heads import parsed
from tenure.protocol.identity import LOCAL
from tenure.server.auth.issue import mint
from tenure.server.service import Bind, Service, listening
from tenure.server_settings import Auth, Secret, Server
from tests.server.running import RULES, SECRET

BEGINNING = "POST /v1/queues/q/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def request(beginning: str = BEGINNING, name: str = "a1", body: bytes = b'{"text": "x"}', length: str = "") -> bytes:
    head = f"{beginning}Tenure-Request: {name}\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def learnt(data: bytes) -> Lane:
    lane = Lane()
    with tenure.open("memory:", sweep=False) as store:
        host = Host(store._backend)
        method, target, headers = parsed(data[: data.find(b"\r\n\r\n")].decode())
        operation, path = ROUTES.find(method, target)
        lane.learn(data, host.prepare(operation, path, headers, LOCAL), headers)
    return lane


def test_it_is_known_again() -> None:
    lane = learnt(request())
    data = request(name="another", body=b'{"text": "something else"}')
    found = lane.find(data)
    assert found is not None
    assert found.known.prepared.operation.name == "enqueue"
    assert found.name == "another"
    assert data[found.body :] == b'{"text": "something else"}'


@pytest.mark.parametrize(
    "data",
    [
        request(BEGINNING.replace("/q/", "/r/")),
        request(BEGINNING + "Tenure-Tenant: acme\r\n"),
        request(BEGINNING + "Authorization: Bearer x\r\n"),
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
    assert learnt(request()).find(data) is None


@pytest.mark.parametrize(
    "beginning",
    [
        BEGINNING + "Transfer-Encoding: chunked\r\n",
        BEGINNING + "Content-Length: 13\r\n",
        BEGINNING + "CONTENT-LENGTH: 0\r\n",
        BEGINNING + "Connection: close\r\n",
        BEGINNING + "Expect: 100-continue\r\n",
        BEGINNING + "Upgrade: websocket\r\n",
        BEGINNING + "Content-Encoding: gzip\r\n",
        BEGINNING + "Tenure-Request: b\r\n",
        BEGINNING + "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
        BEGINNING + "X: y\nContent-Length: 0\r\n",
        BEGINNING + f"X: {'y' * 5000}\r\n",
    ],
)
def test_what_takes_a_parser_is_never_learnt(beginning: str) -> None:
    assert not learnt(request(beginning))._known


def test_there_are_not_too_many() -> None:
    lane = learnt(request())
    known = next(iter(lane._known.values()))
    for number in range(5000):
        lane.learn(request(BEGINNING.replace("/q/", f"/q{number}/")), *known)
    assert 0 < len(lane._known) <= 1024


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

    def until_known(self, lane: Lane, beginning: str, body: bytes = b"[]") -> None:
        """Of a tenant that was not seen before, a server looks at the quotas first."""
        for number in range(5):
            assert self.say(request(beginning, f"known-{number}", body))[0] == 200
            if lane._known:
                return
        raise AssertionError("it is not learnt")

    def _more(self) -> bytes:
        got = self.socket.recv(65536)
        assert got, "the connection was closed"
        return got


def told(lifetime: float, now: float, tenant: str = "acme") -> str:
    made = mint(SECRET, RULES, subject="s", tenant=tenant, scopes=["admin"], queues=None, now=now, lifetime=lifetime)
    return f"Authorization: Bearer {made}\r\n"


@pytest.fixture(params=["listener", "server"])
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, tenure.Store, Lane, str]]:
    path = tmp_path / "s"
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False) as store:
        if request.param == "listener":
            bound = socket.socket(socket.AF_UNIX)
            bound.bind(str(path))
            bound.listen()
            listener = Listener(bound, Host(store._backend))
            yield path, store, listener.lane, ""
            listener.stop()
            return
        bind = Bind(path=str(path))
        with listening(bind) as sock:
            service = Service(store, bind, Server(auth=Auth(secret=Secret(SECRET.decode()))))
            with service.running(sock):
                yield path, store, service.door.lane, told(3600, tenure.SystemClock().wall_ms() / 1000)


def test_the_same_answers(door: tuple[Path, tenure.Store, Lane, str]) -> None:
    path, store, lane, token = door
    with closing((caller := Caller(path)).socket):
        bodies = [
            b'{"text": "a"}',
            b'[{"text": "b", "priority": 3}, "eA=="]',
            b'{"text": 1}',
            b"{",
            b'{"delay_ms": -1}',
        ]
        unusual = BEGINNING + "Connection: keep-alive\r\n" + token
        long_way = [caller.say(request(unusual, f"n{number}", body)) for number, body in enumerate(bodies)]
    assert not lane._known
    with closing((caller := Caller(path)).socket):
        caller.until_known(lane, BEGINNING + token)
        assert len(lane._known) == 1
        for number, body in enumerate(bodies):
            status, answer = caller.say(request(BEGINNING + token, f"m{number}", body))
            expected, first = long_way[number]
            assert status == expected
            if status == 200:  # ids are new ones
                assert len(answer) == len(first)
            else:
                assert answer == first
        assert len(lane._known) == 1
        assert len(store.queues()) == 1


def test_an_id_stands_for_one_request(door: tuple[Path, tenure.Store, Lane, str]) -> None:
    path, store, lane, token = door
    name = os.urandom(16).hex()
    with closing((caller := Caller(path)).socket):
        caller.until_known(lane, BEGINNING + token)
        first = caller.say(request(BEGINNING + token, name))
        assert caller.say(request(BEGINNING + token, name)) == first
        status, problem = caller.say(request(BEGINNING + token, name, b'{"text": "y"}'))
        assert (status, msgspec.json.decode(problem)["code"]) == (400, "invalid_argument")
        status, _ = caller.say(request(BEGINNING + token, "not a name!"))
        assert status == 400
    assert sum(info.counts.ready for info in store.queues()) == 1


def test_what_comes_in_pieces_or_together(door: tuple[Path, tenure.Store, Lane, str]) -> None:
    path, store, lane, token = door
    beginning = BEGINNING + token
    with closing((caller := Caller(path)).socket):
        caller.until_known(lane, beginning)
        caller.say(request(beginning, "first"))
        data = request(beginning, "pieces")
        for cut in (10, len(beginning) + 5, len(data) - 3):
            whole = request(beginning, f"pieces-{cut}")
            caller.socket.sendall(whole[:cut])
            caller.socket.sendall(whole[cut:])
            assert caller.hear()[0] == 200
        # A body that looks like a request is a body.
        inner = request(beginning, "inner")
        outer = msgspec.json.encode({"text": inner.decode()})
        whole = request(beginning, "outer", outer)
        at = whole.find(b"\r\n\r\n") + 4
        caller.socket.sendall(whole[:at])
        caller.socket.sendall(whole[at:])
        assert caller.hear()[0] == 200
        waits = request(beginning.replace("/jobs", "/claims"), "c", b'{"wait_ms": 20000, "limit": 10}')
        assert len(msgspec.json.decode(caller.say(waits)[1])["jobs"]) == 5
    assert sum(info.counts.enqueued for info in store.queues()) == 5


def test_a_claim_that_begins_alike_may_wait(door: tuple[Path, tenure.Store, Lane, str]) -> None:
    path, store, lane, token = door
    beginning = BEGINNING.replace("/jobs", "/claims") + token
    with closing((caller := Caller(path)).socket):
        caller.until_known(lane, beginning, b"{}")
        assert caller.say(request(beginning, "nothing", b"{}")) == (200, b'{"jobs":[]}')
        heard: list[tuple[int, bytes]] = []
        thread = threading.Thread(
            target=lambda: heard.append(caller.say(request(beginning, "waits", b'{"wait_ms": 20000}')))
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
            caller.until_known(service.door.lane, BEGINNING + token)
            for name in ("a", "b"):
                assert caller.say(request(BEGINNING + token, name))[0] == 200
            clock.advance(61)
            assert caller.say(request(BEGINNING + token, "c"))[0] == 401
            other = told(60, clock.wall_ms() / 1000, tenant="other")
            assert caller.say(request(BEGINNING + other, "d"))[0] == 200
            assert caller.say(request(BEGINNING + token, "e"))[0] == 401
        assert store.queue("q", tenant="acme").counts().ready == 2
        assert store.queue("q", tenant="other").counts().ready == 1
