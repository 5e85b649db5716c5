"""Connections that make no progress are closed; their number stays below the process's limit of file handles."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tenure.protocol.connection_limit import connection_limit
from tenure.server_settings import Limits
from tests.server.alone import ran_alone
from tests.server.running import Running, running, token


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(limits=Limits(idle=1.0, connections=20)) as made:
        yield made


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def closed(connection: socket.socket, within: float = 20) -> bool:
    """Whether the other end closes it, whatever it says before."""
    connection.settimeout(within)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def head(server: Running, body: int) -> bytes:
    bearer = token("acme", "produce")["Authorization"]
    return (
        f"POST /v1/queues/emails/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {body}\r\n\r\n"
    ).encode()


def test_one_that_sends_nothing_is_closed(server: Running):
    with connect(server) as silent:
        assert closed(silent)


@pytest.mark.parametrize("size", [1000, 10_000_000], ids=["small", "large"])
def test_a_body_that_never_comes_is_closed(server: Running, size: int):
    with connect(server) as half:
        half.sendall(head(server, size) + b'{"text": "')
        assert closed(half)


def test_a_body_that_drips_is_closed(server: Running):
    """Slower than any caller, though never silent for long."""
    with connect(server) as slow:
        slow.sendall(head(server, 1_000_000) + b'{"text": "')
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 20:
                slow.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - began < 20


def test_a_body_that_comes_in_time_is_taken(server: Running):
    text = b'{"text": "' + b"x" * 60_000 + b'"}'
    with connect(server) as steady:
        steady.sendall(head(server, len(text)))
        for at in range(0, len(text), 6000):
            steady.sendall(text[at : at + 6000])
            time.sleep(0.2)
        assert steady.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_response_that_the_caller_does_not_read_is_ended(server: Running):
    """A caller requests megabytes and reads nothing: the server closes its connection."""
    for _ in range(8):
        server.ask("POST", "/v1/queues/large/jobs", b'{"text": "' + b"x" * 4_000_000 + b'"}', token("acme", "produce"))
    bearer = token("acme", "consume")["Authorization"]
    ask = (
        f"GET /v1/queues/large/jobs?state=ready&limit=8 HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer}\r\n\r\n"
    )
    server.close()
    connections = server.service._server.server_state.connections  # type: ignore[union-attr]  # a running server has one
    wait_until(lambda: not connections)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        before = handles()
        deaf.connect(("127.0.0.1", server.port))
        deaf.sendall(ask.encode())
        wait_until(lambda: len(connections) == 1)
        wait_until(lambda: not connections)
        assert handles() <= before


def wait_until(true: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.05)
    assert true()


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_waiting_claim_is_no_idle_connection(server: Running):
    server.close()  # a connection of its own: the last one has been idle
    body = b'{"limit": 1, "lease_ms": 1000, "wait_ms": 3000}'
    answer = server.ask("POST", "/v1/queues/empty/claims", body, token("acme", "consume"))
    assert answer.status == 200


def test_silent_connections_do_not_shut_out_callers(server: Running):
    """Twice as many connections as allowed: the oldest idle ones are closed, and requests are answered."""
    crowd = [connect(server) for _ in range(40)]
    try:
        for _ in range(5):
            with connect(server) as caller:
                caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert caller.recv(4096).startswith(b"HTTP/1.1 200")
    finally:
        for one in crowd:
            one.close()


def test_half_requests_do_not_shut_out_callers(server: Running):
    """Without a token: who sends them is not known before they are complete."""
    crowd = [connect(server) for _ in range(40)]
    try:
        for one in crowd:
            with contextlib.suppress(ConnectionError):
                one.sendall(b"POST /v1/queues/a/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        time.sleep(0.2)
        for _ in range(5):
            with connect(server) as caller:
                caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert caller.recv(4096).startswith(b"HTTP/1.1 200")
    finally:
        for one in crowd:
            one.close()


def test_busy_connections_are_not_closed_for_new_ones(caplog: pytest.LogCaptureFixture):
    """Where all are in use, a new one is refused; refusals are one line of log, not one each."""
    if ran_alone("tests/server/test_connections.py::test_busy_connections_are_not_closed_for_new_ones"):
        return
    bearer = token("acme", "consume")["Authorization"]
    body = b'{"limit": 1, "lease_ms": 1000, "wait_ms": 12000}'
    claim = (
        f"POST /v1/queues/none/claims HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body
    with running(limits=Limits(connections=10)) as server, contextlib.ExitStack() as stack:
        waiting = []
        for _ in range(10):
            waiting.append(stack.enter_context(connect(server)))
            waiting[-1].sendall(claim)
            time.sleep(0.3)  # it is read before the next one comes: one that says nothing yet would be closed for it
        refused = 0
        for _ in range(5):
            with connect(server) as more:
                refused += closed(more, 1)
        assert refused
        assert all(one.recv(4096).startswith(b"HTTP/1.1 200") for one in waiting)
    lines = [record for record in caplog.records if "connections_refused" in str(record.msg)]
    assert len(lines) == 1


def test_the_limit_leaves_handles_for_the_store():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        assert connection_limit() == 768
        assert connection_limit(10_000) == 768
        assert connection_limit(100) == 100
        assert connection_limit(share=0.25) == 192
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
