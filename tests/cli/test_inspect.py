"""get, list, dead, upcoming, counts, queues, timeline, events: they change nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

UNKNOWN = "0" * 31 + "1"


def test_get_shows_everything_to_people(shell: Shell):
    job = shell.enqueue("emails", "hello", "--delay", "1h", "--key", "order-17", "--header", "a=b")
    out = shell("get", "emails", job).out
    for part in (job, "scheduled", "hello", "order-17", "a=b", "in 60 min", "0 of 5"):
        assert part in out


def test_what_is_not_there_is_a_no(shell: Shell):
    shell.enqueue("emails", "x")
    for args in (("get", "emails", UNKNOWN), ("timeline", "emails", UNKNOWN), ("cancel", "emails", UNKNOWN)):
        assert shell(*args).code == 1
        assert shell.json(*args).code == 1
    assert shell("get", "emails", "nonsense").code == 2
    job = shell.enqueue("emails", "y")
    assert shell("get", "emails", job, "--result").code == 1
    ran = shell("get", "emails", job, "--wait", "50ms")
    assert ran.code == 1
    assert "had not ended" in ran.err


def test_list_pages_by_cursor(shell: Shell):
    ids = [shell.enqueue("emails", f"{n}") for n in range(5)]
    first = shell.json("list", "emails", "--limit", "2").lines
    assert [line["id"] for line in first] == ids[:2]
    assert first[0]["cursor"] is None
    rest = shell.json("list", "emails", "ready", "--cursor", first[1]["cursor"]).lines
    assert [line["id"] for line in rest] == ids[2:]
    assert rest[-1]["cursor"] is None
    assert len(shell.json("list", "emails", "--all").lines) == 5
    assert shell("list", "emails", "sleeping").code == 2
    assert shell("list", "emails", "done").out == "no done jobs in emails\n"


def test_lists_of_each_state(shell: Shell):
    dead = shell.kill("emails", "c", "Timeout: it took too long")
    scheduled = shell.enqueue("emails", "b", "--delay", "30")
    leased = shell.enqueue("emails", "d")
    shell.claim("emails", "--worker", "somebody")
    ready = shell.enqueue("emails", "a")
    assert ready in shell("list", "emails").out
    assert scheduled in shell("list", "emails", "scheduled").out
    out = shell("list", "emails", "leased").out
    assert leased in out
    assert "somebody" in out
    out = shell("dead", "emails").out
    assert dead in out
    assert "Timeout: it took too long" in out
    assert "failed" in out
    assert shell.json("dead", "emails").object["error"] == "Timeout: it took too long"
    assert scheduled in shell("upcoming").out
    assert shell.json("upcoming", "--before", "10s").out == ""
    assert shell.json("upcoming", "--before", "60s").object["id"] == scheduled
    assert shell("upcoming", "--before", "10s").out == "nothing is scheduled\n"


def test_counts_and_queues(shell: Shell):
    shell.enqueue("emails", "a")
    shell.enqueue("emails", "b", "--delay", "30")
    shell.kill("sms", "c", "no")
    assert shell.json("counts", "emails").object == {
        "tenant": "default", "queue": "emails", "ready": 1, "scheduled": 1, "waiting": 2, "leased": 0, "done": 0, "dead": 0,
        "blocked": 0, "enqueued": 2, "removed": 0, "at_least": False,
    }  # fmt: skip
    assert shell("counts", "emails").out.split()[:7] == [
        "ready", "scheduled", "leased", "done", "dead", "enqueued", "removed",
    ]  # fmt: skip
    queues = {line["queue"]: line for line in shell.json("queues").lines}
    assert queues["sms"]["dead"] == 1
    assert queues["sms"]["policy"]["max_attempts"] == 5
    assert "tenant" not in shell("queues").out
    shell.enqueue("emails", "x", "--tenant", "acme")
    shell("pause", "emails")
    out = shell("queues").out
    assert "acme" in out
    assert "paused" in out
    assert [line["tenant"] for line in shell.json("queues", "--tenant", "acme").lines] == ["acme"]


def test_a_timeline_tells_the_story(shell: Shell):
    job = shell.kill("emails", "x", "boom")
    shell("replay", "emails", job)
    assert [line["type"] for line in shell.json("timeline", "emails", job).lines] == [
        "enqueued", "claimed", "died", "replayed",
    ]  # fmt: skip
    out = shell("timeline", "emails", job).out
    assert "command-line, for 30 s" in out
    assert "failed" in out


def test_events_page_and_filter(shell: Shell):
    shell.kill("emails", "x", "boom")
    shell.enqueue("sms", "y")
    everything = shell.json("events").lines
    assert [line["number"] for line in everything] == list(range(1, len(everything) + 1))
    assert everything[0]["cursor"] is None
    assert shell.json("events", "--after", everything[-1]["cursor"]).out == ""
    assert shell("events", "--after", everything[-1]["cursor"]).out == "no events\n"
    assert {line["queue"] for line in shell.json("events", "--queue", "sms").lines} == {"sms"}
    assert [line["type"] for line in shell.json("events", "--type", "died", "--type", "claimed").lines] == [
        "claimed",
        "died",
    ]
    # A filtered page's cursor leaves nothing out.
    first = shell.json("events", "--type", "enqueued", "--limit", "1").object
    second = shell.json("events", "--type", "enqueued", "--limit", "1", "--after", first["cursor"]).object
    assert [first["queue"], second["queue"]] == ["emails", "sms"]
    assert "boom" in shell("events").out
    assert shell("events", "--after", "nonsense").code == 2
    assert shell("events", "--new").code == 2


@pytest.mark.parametrize(
    "args",
    [
        ("list", "emails"), ("counts", "emails"), ("queues",), ("get", "emails", UNKNOWN), ("dead", "emails"), ("events",),
        ("claim", "emails"), ("ack", "emails", UNKNOWN + "." + UNKNOWN + ".1"), ("check",), ("cleanup",), ("upgrade",),
        ("snapshot", "copy"), ("upcoming",), ("purge", "emails", "--yes"), ("replay", "emails", "--all"),
    ],
)  # fmt: skip
def test_a_mistyped_path_does_not_become_a_store(shell: Shell, tmp_path: Path, args: tuple[str, ...]):
    ran = shell(*args)
    assert ran.code == 4
    assert "there is no store at" in ran.err
    assert not (tmp_path / "store").exists()


def test_what_was_stored_cannot_speak_to_the_terminal(shell: Shell):
    evil = "\x1b]0;owned\x07 [bold]x[/] \x9b31m"
    job = shell.enqueue("emails", evil, "--key", evil, "--header", f"a={evil}", "--delay", "1ms")
    shell(
        "nack", "emails", shell.claim("emails", "--worker", "\x1b[2J", "--wait", "1"), "--error", evil, "--delay", "0"
    )
    for args in (
        ("get", "emails", job),
        ("list", "emails"),
        ("timeline", "emails", job),
        ("events",),
        ("claim", "emails"),
    ):
        ran = shell(*args)
        assert ran.code == 0, ran.err
        assert not {"\x1b", "\x07", "\x9b"} & set(ran.out), args
        if args[0] in ("get", "list", "claim"):
            assert "[bold]x[/]" in ran.out
    assert shell.json("get", "emails", job).object["error"] == evil


def test_a_queue_that_is_not_there_is_said_to_be_missing(shell: Shell):
    job = shell.enqueue("emails", "x")
    for args in (
        ("dead", "emial"), ("list", "emial"), ("counts", "emial"), ("claim", "emial"), ("top", "emial", "--once"),
        ("groups", "emial"),
        ("get", "emial", job), ("timeline", "emial", job), ("cancel", "emial", job),
        ("purge", "emial", "dead", "--yes"), ("replay", "emial", "--all"),
    ):  # fmt: skip
        ran = shell(*args)
        assert (ran.code, ran.out) == (1, ""), args
        assert "has no queue 'emial': did you mean 'emails'?" in ran.err, args
    assert "See 'tenure queues'" in shell("dead", "nosuchqueue").err
    ran = shell.json("dead", "nosuchqueue")
    assert (ran.code, ran.out) == (1, "")
    assert '"error": "not_found"' in ran.err
    assert shell("dead", "emails").code == 0, "an empty list of a queue that is there is no error"
    assert shell.json("claim", "nosuchqueue").code == 1
    assert [line["queue"] for line in shell.json("queues").lines] == ["emails"], "looking made no queue"


def test_a_traceback_is_shown_line_by_line(shell: Shell):
    trace = 'ValueError: no\x1b[2J\n\nTraceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: no'
    job = shell.kill("emails", "x", trace)
    shown = shell("get", "emails", job).out
    (first,) = [line for line in shown.splitlines() if line.startswith("error")]
    assert first == "error     ValueError: no\\x1b[2J"
    assert '            File "a.py", line 1, in f\n' in shown
    assert "⏎" not in shown
    assert "Traceback" not in shell("dead", "emails").out, "a table shows the line that names the error"
    bare = shell.kill("emails", "y", trace[trace.index("Traceback") :])
    (row,) = [line for line in shell("dead", "emails").out.splitlines() if line.startswith(bare)]
    assert row.rstrip().endswith("ValueError: no")


def test_get_finds_a_job_by_its_id_alone(shell: Shell):
    job_id = shell.json("enqueue", "reports", "hello", "--tenant", "acme").object["id"]
    found = shell.json("get", job_id).object
    assert (found["id"], found["tenant"], found["queue"]) == (job_id, "acme", "reports")
    assert shell("get", job_id, "--tenant", "other").code == 1
    assert shell("get", "0" * 32).code == 1
    assert shell("get", "reports", job_id, "more").code == 2


def test_a_queue_is_deleted_by_force_only_if_it_has_jobs(shell: Shell):
    shell("enqueue", "doomed", "x")
    refused = shell("delete", "doomed")
    assert refused.code == 1
    assert "1 waiting" in refused.err
    assert shell("delete", "doomed", "--force").out == "deleted doomed\n"
    assert shell("delete", "doomed").code != 0


def test_groups_are_listed(shell: Shell):
    for group in ("a", "a", "b"):
        shell.enqueue("reports", "x", "--group", group)
    shell.enqueue("emails", "x")
    assert "no group has jobs" in shell("groups", "emails").out
    listed = shell("groups", "reports").out
    assert re.search(r"^a +2 +0 ", listed, re.MULTILINE), listed
    found = {row["group"]: row for row in shell.json("groups", "reports").lines}
    assert {group: (row["waiting"], row["leased"], row["at_limit"]) for group, row in found.items()} == {
        "a": (2, 0, False), "b": (1, 0, False),
    }  # fmt: skip
    first = shell.json("groups", "reports", "--limit", "1").lines
    second = shell.json("groups", "reports", "--limit", "5", "--cursor", first[0]["cursor"]).lines
    assert {row["group"] for row in first + second} == {"a", "b"}
    (top,) = shell.json("top", "reports", "--once").lines
    assert {group: seen["waiting"] for group, seen in top["groups"].items()} == {"a": 2, "b": 1}
