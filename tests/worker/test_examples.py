"""The examples, run: as a person would, and with the workers they name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(name: str, where: Path, *options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py"), *options],
        cwd=where, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(where.iterdir()) == []  # nothing is left behind
    return done.stdout.splitlines()


def test_the_mail_sender(tmp_path: Path):
    said = run("mail", tmp_path)
    assert [line[8:] for line in said[:4]] == [
        "sent at attempt 2",
        "sent at attempt 1",
        "sent at attempt 1",
        "dead: nobody@nowhere.invalid: 550 no such user",
    ]
    assert said[1] == said[2]  # one job
    assert said[4] == "the server took 2 mails"


def test_a_mail_that_was_sent_is_not_sent_again(monkeypatch):
    """A worker died after its handler had ended and before its ack: the job is delivered once more."""
    from examples import mail
    from tenure.worker import execution
    from tenure.worker.context import CurrentJob

    monkeypatch.setattr(mail, "server", mail.Server())
    monkeypatch.setattr(mail, "outbox", mail.Outbox(":memory:"))
    payload = mail.send.codec.encode_call(("ada@example.org", "hello"), {})
    said = [
        execution.run(mail.app, CurrentJob("mail.send", id="job-1", attempt=attempt, token=attempt), payload)
        for attempt in (1, 2, 3)
    ]
    assert [outcome.verb for outcome in said] == ["nack", "ack", "ack"]
    assert [outcome.result for outcome in said[1:]] == [b'"sent at attempt 2"', b'"sent before"']
    assert mail.server.sent == ["<job-1@example.org>"]


def test_the_thumbnailer(tmp_path: Path):
    said = run("thumbnails", tmp_path)
    assert sum("'width': " in line for line in said) == 6
    assert max(int(number) for line in said for number in re.findall(r"'(?:width|height)': (\d+)", line)) == 64
    assert [line for line in said if line.startswith("dead:")] == [
        next(line for line in said if re.fullmatch(r"dead: PIL.UnidentifiedImageError: .*broken.png'", line))
    ]
    assert said[-1] == "by 2 processes"


def test_the_periodic_report(tmp_path: Path):
    said = run("report", tmp_path)
    assert [line.partition(", due ")[0] for line in said[:-1]] == [
        "report for Sunday 25 October",
        "report for Monday 26 October",
        "report for Tuesday 27 October",
        "report for Wednesday 28 October",
        "report for Thursday 29 October",
    ]
    assert {line.partition(", due ")[2] for line in said[:-1]} == {"07:00 CET"}
    assert said[-1] == f"and {7 * 24 * 3} checks"


def test_mails_from_fastapi(tmp_path: Path):
    from starlette.testclient import TestClient

    from examples import web

    web.app.use(f"lmdb:{tmp_path / 'data'}")
    hello = {"to": "ada@example.org", "subject": "hello"}
    with TestClient(web.web) as client:
        answer = client.post("/mails", json=hello)
        assert answer.status_code == 202
        job = answer.json()["job"]
        assert client.post("/mails", json=hello).json() == {"job": job, "seen_before": True}
        assert client.get("/mails").json() == {"waiting": 1, "dead": 0}
        with web.app.worker(concurrency=1):
            found = client.get(f"/mails/{job}?wait=30").json()
            assert found == {"status": "done", "result": "'hello' to ada@example.org"}
            bad = client.post("/mails", json=hello | {"to": "x@nowhere.invalid"}).json()["job"]
            found = client.get(f"/mails/{bad}?wait=30").json()
            assert found == {"status": "dead", "error": "ValueError: 550 no such user"}
        assert client.get(f"/mails/{'0' * 32}").status_code == 404
        assert client.post("/mails", json=hello | {"subject": "x" * 201}).status_code == 422


def test_the_crawler(tmp_path: Path):
    assert run("crawler", tmp_path) == [
        "10 requests for 10 pages",
        "10 requests for 10 pages",
        "failed: 0",
        "at most two pages of a host at once: True",
    ]


def test_the_word_count(tmp_path: Path):
    """The handlers run in processes, and use the store that the app was told to use."""
    (said,) = run("word_count", tmp_path)
    assert re.fullmatch(r"8 texts, the three most frequent words occur \d+ times", said)


@pytest.mark.crash
def test_a_flow_whose_workers_are_killed_is_finished(tmp_path: Path):
    """SITE_PAGES and SITE_KILLS: 1,000 and ten, as a person would run it, by `make test-crash`."""
    pages, kills = os.environ.get("SITE_PAGES", "40"), os.environ.get("SITE_KILLS", "2")
    assert run("index_site", tmp_path, "--pages", pages, "--kills", kills) == [
        f"{50 * int(pages)} words, 8 different ones",
        f"{int(pages) + 3} of {int(pages) + 3} jobs are done",
    ]


def test_a_trace_goes_through_the_queue(tmp_path: Path):
    assert run("tracing", tmp_path) == [
        "POST /orders, below nothing",
        "task tracing.charge, below POST /orders",
        "card, below task tracing.charge",
        "task tracing.receipt, below card",
        "1 trace",
    ]


def test_errors_reach_sentry(tmp_path: Path):
    assert run("errors_to_sentry", tmp_path) == [
        f"errors_to_sentry.charge attempt {attempt}: ConnectionError: order 17: the bank is away" for attempt in (1, 2)
    ]


@pytest.mark.parametrize(
    "name",
    ["mail", "thumbnails", "report", "web", "tracing", "errors_to_sentry", "crawler", "word_count", "index_site"],
)
def test_the_commands_an_example_names_are_there(name: str):
    text = (ROOT / "examples" / f"{name}.py").read_text()
    (command,) = re.findall(r"tenure worker (\S+)(.*)$", text.split('"""')[1], re.MULTILINE)[:1]
    from tenure.worker.app_loader import load_app

    assert load_app(str(ROOT / command[0]) if command[0].endswith(".py") else command[0]).tasks
