"""Hardening: what responses leave out, what the audit log records, and what is refused when resources are short."""

from __future__ import annotations

import http.client
import json
import logging
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tenure
from tenure import Unavailable
from tenure.server.service import Bind, Service, listening
from tenure.server_settings import Limits, Server
from tests.server.running import Running, running, token


@contextmanager
def open_server(url: str) -> Iterator[Running]:
    """Without tokens, for this machine."""
    bind = Bind("127.0.0.1", 0)
    with tenure.open(url, sweep=False) as store, listening(bind) as sock:
        service = Service(store, bind, Server())
        with service.running(sock), closing(Running(store, sock.getsockname()[1])) as made:
            yield made


# ── what it keeps to itself ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/v1/queues/emails/counts", "/v1/queues/emails/jobs"])
def test_a_store_that_cannot_answer_tells_callers_no_path(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with running() as server:
        secret = "IO error: No space left on device: /srv/tenants/data/db/000123.log"

        def failing(*args: Any, **kwargs: Any) -> None:
            raise Unavailable(secret)

        for verb in ("counts", "list", "enqueue"):
            monkeypatch.setattr(type(server.store.backend), verb, failing)
        answers = [server.ask("GET", path, None, token("acme", "admin")) for _ in range(20)]
        assert {answer.status for answer in answers} == {503}
        assert all(b"/srv" not in answer.body and b"log says why" in answer.body for answer in answers)
        lines = [record for record in caplog.records if "store_unavailable" in str(record.msg)]
        assert len(lines) == 1, "and not one for every request"
        assert secret in str(lines[0].msg)


def test_pages_run_and_load_nothing():
    with running() as server:
        for path in ("/", "/docs", "/schema", "/healthz"):
            answer = server.ask("GET", path, None, {})
            assert "default-src 'none'" in answer.headers["content-security-policy"], path
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/docs", "/schema", "/readyz", "/metrics", "/v1/queues"])
@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "http://localhost:3000"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_without_tokens_no_other_sites_page_is_answered(path: str, headers: dict[str, str]):
    with open_server("memory:") as server:
        assert server.ask("GET", path, None, {}).status == 200
        assert server.ask("GET", path, None, headers).status == 403


# ── what it writes down ──────────────────────────────────────────────────────────────────────────────────────────────


def test_acts_of_administration_are_in_the_audit_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """At any level of the other lines; who, what, on what, and how it ended."""
    monkeypatch.setattr(logging.getLogger("tenure"), "level", logging.ERROR)
    with running() as server:
        operator, admin, worker = token(None, "operator"), token("acme", "admin"), token("acme", "consume")
        server.ask("PUT", "/v1/quotas/acme", b'{"max_waiting": 5}', operator)
        server.ask("POST", "/v1/queues/emails/pause", None, admin)
        server.ask("POST", "/v1/queues/emails/pause", None, worker)
        server.ask("POST", "/v1/queues/emails/jobs", b'{"text": "x"}', admin)
        server.ask("GET", "/v1/queues", None, admin)
    told: list[Any] = [record.msg for record in caplog.records if record.name == "tenure.audit"]
    lines = [dict(line) for line in told]
    assert [(line["action"], line["outcome"], line["tenant"], line["target"]) for line in lines] == [
        ("set_quota", "ok", None, {"tenant": "acme"}),
        ("pause", "ok", "acme", {"queue": "emails"}),
        ("pause", "forbidden", "acme", {"queue": "emails"}),
    ]
    assert {line["subject"] for line in lines} == {"a test"}


# ── what it refuses ──────────────────────────────────────────────────────────────────────────────────────────────────


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_a_disk_that_is_nearly_full_takes_no_more_jobs_and_lets_them_go(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    free = [2**40]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 0, free[0]))
    with open_server(f"{engine}:{tmp_path}/data") as server:
        assert server.ask("POST", "/v1/queues/work/jobs", b'{"text": "x"}', {}).status == 200
        free[0] = 2**20
        time.sleep(1.1)
        refused = server.ask("POST", "/v1/queues/work/jobs", b'{"text": "x"}', {})
        assert refused.status == 503
        assert refused.headers["retry-after"] == "30"
        assert b"nearly full" in refused.body
        assert str(tmp_path).encode() not in refused.body
        claimed = json.loads(server.ask("POST", "/v1/queues/work/claims", b'{"lease_ms": 1000}', {}).body)
        body = json.dumps({"items": [{"verb": "ack", "receipt": claimed["jobs"][0]["receipt"]}]}).encode()
        assert server.ask("POST", "/v1/queues/work/settle", body, {}).status == 200
        free[0] = 2**40
        time.sleep(1.1)
        assert server.ask("POST", "/v1/queues/work/jobs", b'{"text": "x"}', {}).status == 200


def test_bodies_together_are_bounded():
    """Several callers that send most of a large body and stop: the next is refused, and taken once they are gone."""
    size = 1_000_000
    with running(limits=Limits(bodies=2_500_000)) as server:
        bearer = token("acme", "produce")["Authorization"]
        head = (
            f"POST /v1/queues/work/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: {bearer}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {size + 1000}\r\n\r\n"
        ).encode()
        halves = []
        for _ in range(2):
            half = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            half.sendall(head + b"x" * size)
            halves.append(half)
        time.sleep(0.5)
        body = b'{"text": "' + b"x" * size + b'"}'
        refused = server.ask("POST", "/v1/queues/work/jobs", body, token("acme", "produce"))
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        for half in halves:
            half.close()
        time.sleep(0.5)
        assert server.ask("POST", "/v1/queues/work/jobs", body, token("acme", "produce")).status == 200


def test_a_caller_without_the_scope_sends_no_body():
    with running() as server:
        bearer = token("acme", "consume")["Authorization"]
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.putrequest("POST", "/v1/queues/work/jobs")
        connection.putheader("Authorization", bearer)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "60000000")
        connection.endheaders()
        assert connection.getresponse().status == 403, "before any of the body was sent"
        connection.close()
