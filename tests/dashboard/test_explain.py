"""`explain`: for every case of docs/explain.md, word for word; over HTTP and on the command line too."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import tenure
from tenure import ManualClock, Queue
from tenure.cli.main import cli
from tenure.model.explanation import WAITING_REASONS, Explanation
from tests.dashboard.explain_cases import CASES, SWEPT
from tests.docs.blocks import DOCS
from tests.server.running import running, token

PAGE = DOCS / "explain.md"
_SHOWN = re.compile(r"^### ([a-z-]+)\n(?:.*?)^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def hour(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S")


def text_of(found: Explanation) -> str:
    parts = [("", [found.where]), ("why", found.why), ("happened", found.happened), ("next", [found.next])]
    lines: list[str] = []
    for title, sentences in parts:
        lines += ["", title] if title else []
        lines += sentences
    return "\n".join(lines) + "\n"


def explained(name: str) -> Explanation:
    clock = ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        queue = store.queue("emails")
        job = CASES[name](queue, clock)
        if name in SWEPT:
            store.sweep()
        found = queue.explain(job, hour)
        assert found is not None
        return found


def test_the_page_shows_every_case_and_no_other():
    assert [name for name, _ in _SHOWN.findall(PAGE.read_text())] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_explained_as_the_page_says(name: str):
    shown = dict(_SHOWN.findall(PAGE.read_text()))
    assert text_of(explained(name)) == shown[name]


def test_every_reason_for_waiting_is_among_the_cases():
    said = [why for name in CASES for why in explained(name).why]
    for words in (
        "paused",
        "Its queue is at its limit",
        "hands out at most",
        "group customer-17 is at its limit of 2",
        "group customer-17 is handed out",
        "No worker has claimed",
        "Ahead of it",
        "ttl",
    ):
        assert any(words in why for why in said), words
    assert len(WAITING_REASONS) == 8  # a new one belongs into the list above, and gets a case


def test_a_job_that_never_was_is_not_explained():
    with tenure.open("memory:") as store:
        assert store.queue("emails").explain("0" * 31 + "1") is None


def test_over_http_it_is_the_callers_own_jobs_only():
    with running() as server:
        job = server.store.queue("emails", tenant="acme").enqueue(b"x", delay=60)
        path = f"/v1/queues/emails/jobs/{job.id}/explain"
        answer = server.ask("GET", path, None, token("acme", "consume"))
        assert answer.status == 200
        found = msgspec.json.decode(answer.body, type=Explanation)
        assert found.state == "scheduled"
        assert found.next_at_ms is not None
        assert server.ask("GET", path, None, token("other", "admin")).status == 404
        with tenure.open(server.url, token=token("acme", "consume")["Authorization"].split()[1]) as remote:
            told = remote.queue("emails", tenant="acme").explain(job.id)
            assert told is not None
            assert told.state == "scheduled"


def test_the_command_prints_sentences_and_json(tmp_path: Path):
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url) as store:
        queue: Queue = store.queue("emails")
        job = queue.enqueue(b"x")
        queue.fail(queue.claim(worker="w1")[0], error="Oops: \x1b[31mred")
    run = CliRunner().invoke(cli, ["--store", url, "explain", "emails", job.id])
    assert run.exit_code == 0, run.output
    assert "It stays until somebody replays or purges it." in run.stdout
    assert "\x1b" not in run.stdout
    shape = msgspec.json.decode(CliRunner().invoke(cli, ["--store", url, "explain", "emails", job.id, "--json"]).stdout)
    assert shape["state"] == "dead"
    assert shape["next_at"] is None
    assert CliRunner().invoke(cli, ["--store", url, "explain", "emails", "0" * 31 + "1"]).exit_code == 1
