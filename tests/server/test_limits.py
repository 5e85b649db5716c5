"""Each limit of the settings: a request within it passes; one above it gets its own error, and writes nothing."""

from __future__ import annotations

import gzip
import http.client
import json
import threading
import time
import zlib
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Semaphore
from typing import Any

import pytest

from tenure.model.names import QueueName
from tenure.server_settings import Limits
from tests.server.running import Running, running, token

LIMITS = Limits(body=20_000, inflated=50_000, head=4096, batch=5, claim=4, lease=60, wait=0.2)
JOBS, CLAIMS, SETTLE = "/v1/queues/emails/jobs", "/v1/queues/emails/claims", "/v1/queues/emails/settle"


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def headers() -> dict[str, str]:
    return token("acme", "admin")


def asked(served: Running, headers: dict[str, str], target: str, body: Any, **more: str) -> tuple[int, str | None]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = served.ask("POST", target, raw, headers | {name.replace("_", "-"): value for name, value in more.items()})
    found = json.loads(answer.body)
    if answer.status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert found["status"] == answer.status
    return answer.status, found.get("code") if isinstance(found, dict) else None


RECEIPT = f"{0:032x}.{0:032x}.1"
JOB = {"text": "x"}


def alike(count: int) -> dict[str, object]:
    return {"verb": "ack", "lease": "0" * 32, "jobs": b64encode(bytes(16 * count)).decode(), "tokens": [1] * count}


@pytest.mark.parametrize(
    ("target", "within", "past"),
    [
        (JOBS, {"text": "x" * 19_000}, {"text": "x" * 20_000}),
        (JOBS, [JOB] * 5, [JOB] * 6),
        (CLAIMS, {"limit": 4}, {"limit": 5}),
        (CLAIMS, {"lease_ms": 60_000}, {"lease_ms": 60_001}),
        (f"/v1/queues/emails/leases/{0:032x}/extend", {"lease_ms": 60_000}, {"lease_ms": 60_001}),
        (SETTLE, {"items": [{"verb": "ack", "receipt": RECEIPT}] * 5}, {"items": [{"verb": "ack", "receipt": RECEIPT}] * 6}),
        (SETTLE, {"alike": alike(5)}, {"alike": alike(6)}),
        (JOBS, ["eA=="] * 5, ["eA=="] * 6),
        ("/v1/queues/emails/replay", {"ids": ["0" * 32] * 5}, {"ids": ["0" * 32] * 6}),
        ("/v1/claims", {"queues": [f"q{n}" for n in range(5)]}, {"queues": [f"q{n}" for n in range(6)]}),
        (JOBS, JOB, {**JOB, "unknown": 1}),
        (JOBS, JOB, {**JOB, "priority": 10}),
    ],
    ids=["body", "batch", "claim", "lease", "extend", "settle", "settle alike", "payloads", "ids", "queues", "unknown field", "shape"],
)  # fmt: skip
def test_within_and_past(target: str, within: Any, past: Any, served: Running, headers: dict[str, str]):
    status, _ = asked(served, headers, target, within)
    assert status in (200, 409)
    before = served.store.queue("emails", "acme").counts().enqueued
    assert asked(served, headers, target, past) in ((400, "invalid_argument"), (413, "too_large"))
    assert served.store.queue("emails", "acme").counts().enqueued == before


def test_bodies_without_a_length(served: Running, headers: dict[str, str]):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)

    def pieces(count: int) -> Iterator[bytes]:
        yield b'{"text": "'
        for _ in range(count):
            yield b"x" * 1000
        yield b'"}'

    for count, status in ((10, 200), (30, 413)):
        connection.request("POST", JOBS, pieces(count), headers | {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (status, True)
        connection.close()


def test_compressed_bodies(served: Running, headers: dict[str, str]):
    def text(size: int) -> bytes:
        return json.dumps({"text": "x" * size}).encode()

    for encoding, press in (("gzip", gzip.compress), ("deflate", zlib.compress)):
        assert asked(served, headers, JOBS, press(text(40_000)), Content_Encoding=encoding)[0] == 200
        assert asked(served, headers, JOBS, press(text(50_000)), Content_Encoding=encoding) == (413, "too_large")
        assert asked(served, headers, JOBS, press(bytes(10**7)), Content_Encoding=encoding) == (413, "too_large")
        assert asked(served, headers, JOBS, text(10), Content_Encoding=encoding) == (400, "invalid_argument")
    assert asked(served, headers, JOBS, text(10), Content_Encoding="br") == (400, "invalid_argument")
    assert asked(served, headers, JOBS, text(10), Content_Encoding="identity")[0] == 200


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"[" * 15_000, "application/json"),
        (b'{"a":' * 3_000, "application/json"),
        (b'{"headers":' + b'{"a":' * 3_000 + b"1" + b"}" * 3_001, "application/json"),
        (b"\x91" * 15_000, "application/msgpack"),
        (b"\x81\xa7headers" + b"\x81\xa1a" * 3_000 + b"\xc0", "application/msgpack"),
        (b"\xdd\xff\xff\xff\xff", "application/msgpack"),
        (b"\xc6\xff\xff\xff\xff", "application/msgpack"),
    ],
)
def test_depth_and_lengths_that_lie(body: bytes, kind: str, served: Running, headers: dict[str, str]):
    assert asked(served, headers, JOBS, body, Content_Type=kind, Accept="application/json") == (400, "invalid_argument")


def test_heads(served: Running, headers: dict[str, str]):
    assert asked(served, headers, JOBS, JOB, A="x" * 2000)[0] == 200
    assert asked(served, headers, JOBS, JOB, A="x" * 4096) == (413, "too_large")


def test_a_longer_wait_is_answered_at_the_limit(served: Running, headers: dict[str, str]):
    start = time.monotonic()
    answer = served.ask("POST", "/v1/queues/empty/claims", b'{"wait_ms": 3600000}', headers)
    found = json.loads(answer.body)
    assert (answer.status, found["jobs"]) == (200, [])
    assert found["left_ms"] > 3_500_000
    assert time.monotonic() - start < 30


def test_long_requests_of_a_tenant_leave_threads_for_others():
    """A search of the journal for a job that is gone may take minutes; sixteen would stop the server for all."""
    with running() as served:
        backend = served.store._backend
        timeline, begun, go_on = backend.timeline, Semaphore(0), threading.Event()

        def slow(name: QueueName, job: bytes) -> object:
            if name.tenant == "acme":
                begun.release()
                assert go_on.wait(60)
            return timeline(name, job)

        backend.timeline = slow  # type: ignore[assignment,method-assign]
        of = {tenant: token(tenant, "admin") for tenant in ("acme", "globex")}
        path = f"/v1/queues/emails/jobs/{1:032x}"
        with ThreadPoolExecutor(20) as pool:

            def ask(tenant: str, target: str) -> int:
                with closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)) as connection:
                    connection.request("GET", target, headers=of[tenant])
                    return connection.getresponse().status

            others = [pool.submit(ask, "acme", path + end) for end in ("/timeline", "/explain") * 10]
            assert begun.acquire(timeout=60)
            assert begun.acquire(timeout=60)
            assert ask("globex", path + "/timeline") == 404
            assert ask("globex", "/v1/queues/emails/jobs?state=ready") == 200
            assert not begun.acquire(timeout=0.1)
            go_on.set()
            assert [other.result(60) for other in others] == [404] * 20
