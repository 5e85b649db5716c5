"""`tenure serve` as a process: its log, its metrics, its errors; no secret appears in any of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.server.service import Bind, listening
from tests.server.certificates import certificates
from tests.server.running import SECRET, Running, token

#: None of these may turn up in a log.
SECRETS = {
    "payload": b"PAYLOAD-7f3a",
    "result": b"RESULT-7f3a",
    "error": b"ERROR-7f3a",
    "key": b"KEY-7f3a",
    "header": b"HEADER-7f3a",
    "query": b"QUERY-7f3a",
    "path": b"PATH-7f3a",
    "signing key": SECRET,
}


class Process:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_bytes().splitlines()]


@contextmanager
def process_of(folder: Path, *args: str, **settings: str) -> Iterator[Process]:
    (folder / "secret").write_bytes(SECRET)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    environ |= {f"TENURE_{name}": value for name, value in settings.items()}
    log = folder / "log"
    with log.open("wb") as into:
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure", "--debug", "--json", "serve", "--store", "memory:", *args],
            cwd=folder,
            env=environ,
            stderr=into,
            stdout=into,
        )
        try:
            yield Process(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def port_of(process: Process) -> int:
    """Read from what it says of itself."""
    until = time.monotonic() + 90
    while time.monotonic() < until and process.process.poll() is None:
        for line in process.log.read_text().splitlines(keepends=True):
            if '"serving"' in line and line.endswith("\n"):
                return int(json.loads(line)["address"].rpartition(":")[2])
        time.sleep(0.05)
    raise AssertionError(process.log.read_text())


def busy(served: Running, headers: dict[str, str]) -> None:
    """A bit of everything, with secrets wherever a caller can put one."""
    queue = "/v1/queues/emails"

    def ask(method: str, target: str, body: Any = None, **more: str) -> Any:
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        answer = served.ask(method, target, raw, {**headers, **more})
        return json.loads(answer.body) if answer.body.startswith(b"{") else answer.body

    job = {"text": "PAYLOAD-7f3a", "key": "KEY-7f3a", "headers": {"a": "HEADER-7f3a"}}
    ask("POST", f"{queue}/jobs", job)
    ask("POST", f"{queue}/jobs", {**job, "text": "PAYLOAD-7f3a again"})  # a conflict, which names the key
    ask("POST", f"{queue}/jobs", {**job, "PAYLOAD-7f3a": 1})
    ask("POST", f"{queue}/jobs", b'{"text": "PAYLOAD-7f3a')
    ask("POST", f"{queue}/jobs", b"PAYLOAD-7f3a", **{"Content-Type": "application/PAYLOAD-7f3a"})
    receipt = ask("POST", f"{queue}/claims", {})["jobs"][0]["receipt"]
    ask("POST", f"{queue}/settle", {"items": [{"verb": "fail", "receipt": receipt, "error": "ERROR-7f3a"}]})
    ask("POST", f"{queue}/jobs", {"text": "PAYLOAD-7f3a"})
    receipt = ask("POST", f"{queue}/claims", {})["jobs"][0]["receipt"]
    ask("POST", f"{queue}/settle", {"items": [{"verb": "ack", "receipt": receipt, "result": "UkVTVUxULTdmM2E="}]})
    ask("GET", f"{queue}/jobs?state=dead&cursor=QUERY-7f3a")
    ask("GET", f"{queue}/jobs?QUERY-7f3a=QUERY-7f3a")
    ask("GET", f"{queue}/jobs/PATH-7f3a")
    ask("GET", "/PATH-7f3a/PATH-7f3a?QUERY-7f3a")
    ask("GET", f"{queue}/counts", Authorization="Bearer PATH-7f3a.QUERY-7f3a.x")
    ask("GET", f"{queue}/counts", **{"Tenure-Request": "PATH-7f3a"})
    ask("PUT", f"{queue}/jobs", {})


@pytest.mark.xdist_group("serving")
def test_logs_numbers_and_no_secrets(tmp_path: Path):
    with process_of(tmp_path, "--bind", "127.0.0.1:0", SERVER_AUTH_SECRET_FILE="secret") as process:
        served = Running(None, port_of(process))  # type: ignore[arg-type]
        headers = token("acme", "admin")
        busy(served, headers)
        numbers = served.ask("GET", "/metrics", None, token(None, "operator")).body
        known = served.ask("GET", "/v1/queues/emails/counts", None, {**headers, "Tenure-Request": "ab" * 16})
        served.close()
    log = process.log.read_bytes()
    for what, secret in SECRETS.items():
        assert secret not in log, what
        assert what == "query" or secret not in numbers, what
    for held in (headers["Authorization"].removeprefix("Bearer "), *headers["Authorization"].split(".")[1:]):
        assert held.encode() not in log
    requests = [line for line in process.lines() if line.get("event") == "request"]
    assert len(requests) == 19
    first = requests[0]
    assert (first["route"], first["method"], first["status"]) == ("enqueue", "POST", 200)
    assert (first["tenant"], first["subject"], first["queue"], first["code"]) == ("acme", "a test", "emails", None)
    assert len(first["request_id"]) == 32
    assert first["ms"] > 0
    assert first["bytes_in"] > 10
    assert {line["route"] for line in requests} == {
        "enqueue",
        "claim",
        "settle",
        "list",
        "get",
        "counts",
        "none",
        "/metrics",
    }
    codes = {line["code"] for line in requests}
    assert codes == {None, "key_conflict", "invalid_argument", "not_found", "unauthenticated"}
    assert known.status == 200
    assert requests[-1]["request_id"] == "ab" * 16
    for line in (
        b'tenure_http_requests_total{route="enqueue",status="200"} 2.0',
        b'tenure_http_requests_total{route="none",status="401"} 1.0',
        b'tenure_http_requests_total{route="none",status="404"} 1.0',
        b'tenure_http_seconds_count{route="claim"} 2.0',
        b'tenure_verb_seconds_count{verb="settle"} 2.0',
    ):
        assert line in numbers, line


@pytest.mark.xdist_group("serving")
def test_tls_and_the_other_door_from_the_command_line(tmp_path: Path):
    files = certificates(tmp_path)
    args = ("--bind", "127.0.0.1:0", "--tls-cert", files.cert, "--tls-key", files.key, "--capnp", "127.0.0.1:0")
    with process_of(tmp_path, *args, SERVER_AUTH_SECRET_FILE="secret") as process:
        held = token("default", "admin")["Authorization"].removeprefix("Bearer ")
        with tenure.open(f"https://127.0.0.1:{port_of(process)}", token=held, ca_file=files.ca) as store:
            store.queue("emails").enqueue(b"x")
            assert store.queue("emails").counts().ready == 1
    (serving,) = (line for line in process.lines() if line["event"] == "serving")
    assert serving["capnp"] == "127.0.0.1:0"
    assert serving["authentication"] is True


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--bind", "0.0.0.0:0"), "no authentication is configured"),
        (("--bind", "127.0.0.1:0", "--capnp", "0.0.0.0:0"), "no authentication is configured"),
        (("--bind", "127.0.0.1:0", "--tls-cert", "x"), "server.tls"),
        (("--bind", "nowhere"), "HOST:PORT"),
        (("--bind", "127.0.0.1:0", "--capnp", "unix:x"), "HOST:PORT"),
    ],
)
def test_what_does_not_start(args: tuple[str, ...], says: str, tmp_path: Path):
    ran = subprocess.run(
        [sys.executable, "-m", "tenure", "serve", "--store", "memory:", *args],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert ran.returncode == 2, ran.stderr
    assert says in ran.stderr


def test_answers_are_not_held_back():
    """Without this option on what is accepted, an answer in two pieces takes 40 ms longer, and nothing else tells."""
    with listening(Bind("127.0.0.1", 0)) as sock, socket.create_connection(sock.getsockname()):
        accepted, _ = sock.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
