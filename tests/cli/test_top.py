"""The screen of `tenure top`. `tests/worker/test_commands.py` runs it in a terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from tenure.cli.top import _TITLES, QueueSample, Sample, screen
from tenure.model.job import Counts
from tenure.model.names import QueueName


def test_a_small_terminal_shortens_names_and_no_numbers():
    name = QueueName("default", "customer-emails-of-the-european-region")
    counts = Counts(ready=1_234_567, scheduled=0, leased=0, done=0, dead=0, enqueued=1_234_567, removed=0)
    out = StringIO()
    Console(file=out, width=80).print(screen(Sample(0.0, [QueueSample(name, False, counts, None)]), None, 24, 80))
    head, _, titles, row = out.getvalue().splitlines()[:4]
    assert head.startswith("1 queue · 1,234,567 waiting · 0 workers with jobs")
    assert titles.split() == [title for title in _TITLES if title != "blocked"]
    assert row.startswith("cust")
    assert "…-region " in row
    assert " 1,234,567 " in row


def test_blocked_jobs_have_a_column_only_if_there_are_some():
    counts = Counts(ready=0, scheduled=0, leased=0, done=0, dead=0, enqueued=0, removed=0, blocked=3)
    out = StringIO()
    Console(file=out, width=80).print(
        screen(Sample(0.0, [QueueSample(QueueName("acme", "mail"), True, counts, None)]), None, 24, 80)
    )
    titles, row, more = out.getvalue().splitlines()[2:5]
    assert titles.split() == list(_TITLES)
    assert row.split()[:2] == ["acme/mail", "3"]
    assert more.split() == ["(paused)"]


@pytest.mark.parametrize(("height", "shown"), [(24, 13), (50, 39), (8, 5)])
def test_of_more_queues_than_lines_the_busiest_are_shown(height: int, shown: int):
    queues = []
    for n in range(100):
        counts = Counts(ready=n, scheduled=0, leased=0, done=0, dead=0, enqueued=n, removed=0)
        queues.append(QueueSample(QueueName("default", f"queue-{n}"), False, counts, None))
    for queue in queues[:3]:
        queue.workers["mole"] = 1
    queues[2].workers.update(hare=1, newt=1)
    out = StringIO()
    Console(file=out, width=100).print(screen(Sample(0.0, queues), None, height, 100))
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines[3 : 3 + shown]] == [f"queue-{99 - n}" for n in range(shown)]
    assert lines[3 + shown].startswith(f"{100 - shown} queues more, less busy")
    assert lines[0].startswith("100 queues · 4,950 waiting · 3 workers with jobs")
    assert "mole" in out.getvalue(), "the workers of queues that are not shown are"
    assert len(lines) <= max(height, 5 + 11)
