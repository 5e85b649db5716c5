"""tenure schedule."""

from __future__ import annotations

import json

from tests.cli.conftest import Shell


def test_a_schedule_is_added_listed_paused_run_and_removed(shell: Shell):
    shell.enqueue("default", "first")
    assert shell("schedule", "list").code == 0
    args = ("--task", "tasks.send", "--args", '{"to": "ada"}', "--cron", "@daily", "--tz", "Europe/Berlin")
    assert shell("schedule", "add", "daily", *args).code == 0
    assert shell("schedule", "add", "daily", *args).code != 0
    assert shell("schedule", "add", "poll", "--queue", "polls", "--payload", "now", "--every", "30").code == 0
    assert shell("schedule", "add", "none", "--every", "30").code != 0
    shown = shell("schedule", "list").out
    assert "0 0 * * * Europe/Berlin" in shown
    assert "polls" in shown
    assert shell.json("schedule", "pause", "poll").object == {"paused": "poll"}
    shapes = [json.loads(line) for line in shell.json("schedule", "list").out.splitlines()]
    assert [(shape["name"], shape["paused"], shape["next_ms"] is None) for shape in shapes] == [
        ("daily", False, False),
        ("poll", True, True),
    ]
    assert shell("schedule", "resume", "poll").code == 0
    assert shell.json("schedule", "run", "daily").object["id"]
    jobs = [json.loads(line) for line in shell.json("list", "default").out.splitlines()]
    assert len(jobs) == 2
    assert shell("schedule", "remove", "poll").code == 0
    assert shell("schedule", "remove", "poll").code == 1
