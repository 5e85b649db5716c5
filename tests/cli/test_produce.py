"""enqueue: payloads from everywhere, options as the store sees them, many at once."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tenure.cli import produce
from tests.cli.conftest import Shell


def test_a_job_with_everything(shell: Shell):
    ran = shell.json(
        "enqueue", "emails", "hello", "--delay", "5m", "--priority", "5", "--key", "k", "--max-attempts", "3",
        "--ttl", "1h", "--header", "a=b", "--header", "c=d=e", "--group", "customer-17",
    )  # fmt: skip
    assert ran.code == 0
    assert ran.object == {"id": ran.object["id"], "duplicate": False, "tenant": "default", "queue": "emails"}
    job = shell.json("get", "emails", ran.object["id"]).object
    assert (job["payload"], job["payload_encoding"], job["state"]) == ("hello", "utf-8", "scheduled")
    assert (job["priority"], job["key"], job["max_attempts"], job["group"]) == (5, "k", 3, "customer-17")
    assert job["headers"] == {"a": "b", "c": "d=e"}
    assert job["visible_at_ms"] - job["created_at_ms"] == 300_000


def test_a_key_is_enqueued_once(shell: Shell):
    first = shell.enqueue("emails", "hello", "--key", "k")
    again = shell("enqueue", "emails", "hello", "--key", "k")
    assert again.code == 0
    assert first in again.out
    assert "already there" in again.out
    other = shell("enqueue", "emails", "other", "--key", "k")
    assert other.code == 1
    assert first in other.err
    assert shell.json("counts", "emails").object["ready"] == 1


def test_tenants_are_apart_and_may_be_named_before_or_after(shell: Shell):
    shell.enqueue("emails", "a", "--tenant", "acme")
    assert shell("--tenant", "acme", "enqueue", "emails", "b").code == 0
    assert "tenant 'default' has no queue 'emails'" in shell("counts", "emails").err
    assert shell.json("counts", "emails", "--tenant", "acme").object["ready"] == 2


def test_payloads_from_a_file_and_from_stdin_are_kept_byte_by_byte(shell: Shell, tmp_path: Path):
    content = bytes(range(256))
    (tmp_path / "content").write_bytes(content)
    for args, stdin in ((("--file", "content"), None), (("-",), content)):
        ran = shell.json("enqueue", "files", *args, stdin=stdin)
        assert ran.code == 0, ran.err
        assert shell("get", "files", ran.object["id"], "--payload").raw == content
        job = shell.json("get", "files", ran.object["id"]).object
        assert job["payload_encoding"] == "base64"
        assert "256 bytes: 00 01" in shell("get", "files", ran.object["id"]).out


def test_a_job_a_line_in_batches(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(produce, "BATCH_JOBS", 10)
    (tmp_path / "lines").write_text("".join(f"line {n}\n" for n in range(25)))
    ran = shell("enqueue", "bulk", "--lines", "lines", "--priority", "3")
    assert ran.code == 0
    assert "25 jobs" in ran.out
    ran = shell.json("enqueue", "bulk", "--lines", "-", stdin="one\r\n\ntwo")
    assert [line["duplicate"] for line in ran.lines] == [False, False]
    jobs = shell.json("list", "bulk", "--all").lines
    assert [job["payload"] for job in jobs] == [*(f"line {n}" for n in range(25)), "one", "two"]


def test_no_lines_are_no_jobs(shell: Shell):
    ran = shell("enqueue", "bulk", "--lines", "-", stdin="\n\n")
    assert ran.code == 0
    assert ran.out.startswith("enqueued 0 jobs in ")


def test_a_refused_batch_says_from_which_line_to_continue(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(produce, "BATCH_JOBS", 10)
    shell("configure", "bulk", "--max-waiting", "15")
    ran = shell("enqueue", "bulk", "--lines", "-", stdin="".join(f"{n}\n" for n in range(30)))
    assert ran.code == 1
    assert "10 jobs were enqueued before this; continue from line 11" in ran.err
    assert "tenure configure" in ran.err
    assert shell.json("counts", "bulk").object["ready"] == 10


def test_batches_are_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(produce, "BATCH_BYTES", 10)
    found = list(produce.batches(io.BytesIO(b"aaaa\n\nbbbb\ncccccccccccccc\ndd")))
    assert [(batch.payloads, batch.first_line) for batch in found] == [
        ([b"aaaa", b"bbbb"], 1),
        ([b"cccccccccccccc"], 4),
        ([b"dd"], 5),
    ]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("emails",), "Say what to enqueue"),
        (("emails", "x", "--file", "nowhere"), "nowhere"),
        (("emails", "--lines", "-", "--key", "k"), "--key names one job"),
        (("Emails", "x"), "a name has 1 to 64"),
        (("emails", "x", "--priority", "10"), "priority=10"),
        (("emails", "x", "--delay", "-1"), "0 or more"),
        (("emails", "x", "--delay", "nan"), "not a usable duration"),
        (("emails", "x", "--delay", "soon"), "not a duration"),
        (("emails", "x", "--at", "whenever"), "not a time"),
        (("emails", "x", "--delay", "1", "--at", "1h"), "delay or at"),
        (("emails", "x", "--header", "novalue"), "NAME=VALUE"),
        (("emails", "x", "--tenant", "A B"), "tenant"),
    ],
)
def test_bad_input_is_refused_in_one_line(shell: Shell, args: tuple[str, ...], says: str):
    ran = shell("enqueue", *args)
    assert ran.code == 2
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert ran.out == ""
    as_json = shell.json("enqueue", *args)
    assert as_json.code == 2
    assert says.split()[0] in as_json.err
    assert as_json.err.startswith('{"error": "')
