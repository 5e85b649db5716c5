"""Request heads that are too large, too slow or missing, sent to uvicorn over a real socket."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from tenure.server.http_protocol import guarded
from tests.server.running import running, token

LIMIT = 8192


async def counting(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the size of what it was sent."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = str(size).encode()
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with contextlib.contextmanager(serving)(30) as made:
        yield made


@pytest.fixture(scope="module")
def hasty() -> Iterator[int]:
    """One that waits for no head."""
    with contextlib.contextmanager(serving)(0.3) as made:
        yield made


def serving(head_seconds: float) -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(counting, http=guarded(LIMIT, head_seconds), lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()
    listening.close()


def answered(heard: bytes) -> bool:
    """Whether a whole answer that all is well is there; head and body may come apart."""
    head, end, body = heard.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return bool(end) and b"200 OK" in head and length is not None and len(body) >= int(length[1])


def said(port: int, *parts: bytes, pause: float = 0.02) -> bytes:
    """What comes back until the other end closes, or has answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for index, part in enumerate(parts):
            if index:
                time.sleep(pause)
            try:
                connection.sendall(part)
            except OSError:
                break  # it has had enough
        heard = b""
        try:
            while not answered(heard):
                got = connection.recv(65536)
                if not got:
                    break
                heard += got
        except ConnectionResetError:
            pass
        return heard


def problem(heard: bytes) -> tuple[int, str]:
    head, _, body = heard.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    found = json.loads(body)
    assert int(head.split()[1]) == found["status"]
    return found["status"], found["code"]


def test_what_is_within_the_limit(port: int):
    assert said(port, b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * (LIMIT - 200) + b"\r\n\r\n").endswith(b"0")
    large = b"x" * 300_000  # a body has its own limit, and may come in the packet with the head
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n"
    assert said(port, head + large[:100_000], large[100_000:]).endswith(b"300000")


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * LIMIT + b"\r\n\r\n"],
        [b"GET /" + b"x" * LIMIT + b" HTTP/1.1\r\nHost: x\r\n\r\n"],
        [b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"A%d: x\r\n" % n for n in range(LIMIT // 4)) + b"\r\n"],
        [b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A:\r\n" * 200 + b"\r\n"],
        [b"POST / HTTP/1.1\r\nContent-Length: 5\r\nA: " + b"x" * LIMIT + b"\r\n\r\nhello"],
        [b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 5000, *[b"x" * 5000] * 20],
        [b"GET / HTTP/1.1\r\nHost: x\r\n", *[b"B: " + b"y" * 997 + b"\r\n"] * 20],
    ],
    ids=[
        "a header",
        "the line",
        "many headers",
        "small headers",
        "with a body",
        "a header without end",
        "headers without end",
    ],
)
def test_heads_that_are_too_large(parts: list[bytes], port: int):
    assert problem(said(port, *parts)) == (413, "too_large")


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (b"5\r\nhello\r\n0\r\n", b"B: " + b"y" * 997 + b"\r\n"),
        (b"5\r\nhello\r\n0\r\nB: ", b"y" * 1000),
        (b"5;", b"y" * 1000),
    ],
    ids=["trailers without end", "a trailer without end", "a chunk extension without end"],
)
def test_the_framing_of_a_body_is_limited_like_a_head(begin: bytes, part: bytes, port: int):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(CHUNKED + begin)
        sent = 0
        with contextlib.suppress(ConnectionError):  # it has had enough
            while sent < 100 * LIMIT:
                connection.sendall(part)
                sent += len(part)
                time.sleep(0.001)
        assert sent < 50 * LIMIT


def test_small_chunks_make_a_large_body(port: int):
    body = b"1;x=y\r\nz\r\n" * 20_000
    assert said(port, CHUNKED + body[:50_000], body[50_000:] + b"0\r\nB: y\r\n\r\n").endswith(b"20000")


def test_trailers_are_not_headers():
    """A trailer could otherwise bring a token, or name a tenant, past a proxy that checks headers."""
    head = b"POST /v1/queues/emails/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailer = "Authorization: " + token("acme", "produce")["Authorization"]
    with running() as server:
        for padding in (b"", b" " * 100_000):  # answered by the protocol, and by uvicorn
            body = b'{"text": "x"}' + padding
            sent = head + b"%x\r\n" % len(body) + body + b"\r\n0\r\n" + trailer.encode() + b"\r\n\r\n"
            assert problem(said(server.port, sent)) == (401, "unauthenticated")


def test_a_caller_does_not_send_thousands_of_requests_ahead(port: int):
    """Each waits in memory for the answers before it."""
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request[:-1])  # its answer waits for the last byte
        time.sleep(0.1)
        connection.sendall(request[-1:] + request * 1000)
        heard = b""
        with contextlib.suppress(ConnectionError):
            while got := connection.recv(65536):
                heard += got
    assert 0 < heard.count(b"200 OK") + heard.count(b"413 ") <= 40
    assert said(port, request * 10).count(b"200 OK") >= 1


@pytest.mark.parametrize(
    "nonsense",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_what_is_not_http(nonsense: bytes, port: int):
    assert problem(said(port, nonsense)) == (400, "invalid_argument")


def test_a_head_that_takes_its_time(hasty: int):
    assert said(hasty, b"GET / HTTP/1.1\r\nHost: x\r\n") == b""
    assert said(hasty, *(bytes([sign]) for sign in b"GET / HTTP/1.1\r\nHost: x" * 4)) == b""
