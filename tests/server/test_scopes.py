"""A caller without the scope is refused before its body is read, so it cannot fill the server's memory."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import tenure
from tenure.backends.owner.listener import Listener
from tenure.errors import Unauthenticated
from tenure.protocol.dispatcher import Dispatcher
from tenure.protocol.identity import Identity
from tests.server.running import Running, running, token

SIZE = 60_000_000
PATH = "/v1/queues/emails/jobs"


@pytest.fixture
def served() -> Iterator[Running]:
    with running() as made:
        yield made


def head(headers: dict[str, str], size: int = SIZE) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{lines}"
        f"Content-Length: {size}\r\n\r\n"
    ).encode()


def status_of(caller: socket.socket) -> int:
    caller.settimeout(30)
    got = b""
    while b"\r\n\r\n" not in got:
        more = caller.recv(65536)
        assert more, "the server closed the connection without a reply"
        got += more
    return int(got.split(b" ", 2)[1])


@pytest.mark.parametrize(("held", "status"), [(token("acme", "consume"), 403), ({}, 401)])
def test_a_refusal_does_not_wait_for_the_body(held: dict[str, str], status: int, served: Running):
    """Nothing of the body is sent: a server that reads it first would wait for ever."""
    with closing(socket.create_connection(("127.0.0.1", served.port))) as caller:
        caller.sendall(head(held))
        assert status_of(caller) == status


def test_a_body_that_is_sent_all_the_same_is_dropped(served: Running):
    before = peak_kb()
    with closing(socket.create_connection(("127.0.0.1", served.port))) as caller:
        caller.sendall(head(token("acme", "consume")))
        piece = bytes(1_000_000)
        for _ in range(SIZE // len(piece)):
            caller.sendall(piece)
        assert status_of(caller) == 403
    assert peak_kb() - before < SIZE // 2 // 1024, "the server held the body"
    assert served.ask("POST", PATH, b'{"text": "x"}', token("acme", "produce")).status == 200


def peak_kb() -> int:
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)


def test_a_listener_drops_the_body_too_and_keeps_the_connection(tmp_path: Path):
    """The listener of the owner's socket, with callers that may do different things."""
    path = str(tmp_path / "S")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    scopes = {scope: Identity("a test", "acme", frozenset({scope})) for scope in ("produce", "consume")}

    def identify(headers: object) -> Identity:
        assert isinstance(headers, dict)
        if headers.get("authorization") not in scopes:
            raise Unauthenticated("no such caller")
        return scopes[headers["authorization"]]

    with tenure.open("memory:", sweep=False) as store:
        listener = Listener(listening, Dispatcher(store.backend), identify)
        try:
            with closing(socket.socket(socket.AF_UNIX)) as caller:
                caller.connect(path)
                caller.sendall(head({"Authorization": "consume"}, 5_000_000))
                assert status_of(caller) == 403
                caller.sendall(bytes(5_000_000))
                body = b'{"text": "x"}'
                caller.sendall(head({"Authorization": "produce"}, len(body)) + body)
                assert status_of(caller) == 200
        finally:
            listener.stop()


def test_then_takes_the_right_to_add_jobs_to_that_queue(served: Running):
    queue = served.store.queue("emails", "acme")
    queue.enqueue(b"parent")
    (delivery,) = queue.claim()
    body = msgspec.json.encode(
        {"items": [{"verb": "ack", "receipt": delivery.receipt, "then": [{"text": "child", "queue": "other"}]}]}
    )
    for headers, status in (
        (token("acme", "consume"), 403),
        (token("acme", "consume produce", ["emails"]), 404),
        (token("acme", "consume produce"), 200),
    ):
        assert served.ask("POST", "/v1/queues/emails/settle", body, headers).status == status
    assert [job.payload for job in served.store.queue("other", "acme").list("ready")] == [b"child"]
