"""tenure flow."""

from __future__ import annotations

import json

import tenure
from tenure import NewJob
from tests.cli.conftest import Shell


def test_a_flow_is_shown_retried_and_cancelled(shell: Shell):
    with tenure.open(shell.url) as store:
        queue = store.queue("work")
        crawl, parse, report = queue.enqueue_many(
            [
                NewJob(b"crawl", name="crawl"),
                NewJob(b"parse", name="parse", after=["#crawl"], on_parent_dead="wait", queue="parsing"),
                NewJob(b"report", after=["#parse", "#crawl"], on_parent_dead="wait"),
            ]
        )
        (delivery,) = queue.claim()
        queue.fail(delivery, "Oops: \x1b[31mred")
    (top,) = [line for line in shell.json("top", "--once").lines if line["queue"] == "work"]
    assert (top["blocked"], top["dead"]) == (1, 1)
    assert "it waits for 2 of 2 parents" in shell("explain", "work", report.id).out
    shown = shell("flow", "show", report.id)
    assert shown.code == 0
    assert "\x1b[31m" not in shown.out
    assert [word in shown.out for word in (crawl.id, parse.id, report.id, "blocked", "dead", "parsing")] == [True] * 6
    shapes = {shape["id"]: shape for shape in map(json.loads, shell.json("flow", "show", report.id).out.splitlines())}
    assert shapes[report.id]["parents"] == [parse.id, crawl.id]
    assert (shapes[crawl.id]["state"], shapes[crawl.id]["depth"]) == ("dead", 1)
    assert shell.json("flow", "retry", report.id).object == {"replayed": 1}
    assert shell.json("flow", "cancel", report.id).object["cancelled"] >= 1
    with tenure.open(shell.url) as store:
        assert [store.get(job.id) for job in (crawl, parse, report)] == [None] * 3
    assert shell("flow", "show", report.id).code == 1
