"""The screen of `tenure top`. `tests/worker/test_commands.py` runs it in a terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from tenure.cli.top import _TITLES, QueueSample, Sample, screen
from tenure.model.job import Counts
from tenure.model.names import QueueName


def test_a_small_terminal_shortens_names_and_no_numbers():
    name = QueueName("default", "customer-emails-of-the-european-region")
    counts = Counts(ready=1_234_567, scheduled=0, leased=0, done=0, dead=0, enqueued=1_234_567, removed=0)
    out = StringIO()
    Console(file=out, width=80).print(screen(Sample(0.0, [QueueSample(name, False, counts, None)]), None))
    head, _, titles, row = out.getvalue().splitlines()[:4]
    assert head.startswith("1 queue · 1,234,567 waiting · 0 workers with jobs")
    assert titles.split() == list(_TITLES)
    assert row.startswith("cust")
    assert " 1,234,567 " in row
