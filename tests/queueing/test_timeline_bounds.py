"""A timeline is bounded, however often a job was delivered: its newest events."""

from __future__ import annotations

import pytest

import tenure
from tenure import Policy
from tenure.queueing import journal


@pytest.mark.parametrize(
    ("limit", "value", "left"),
    [
        ("MAX_TIMELINE", 6, ["claimed", "retried"] * 3),
        ("MAX_TIMELINE_TEXT", 2500, ["retried", "claimed", "retried", "claimed", "retried"]),
    ],
)
def test_a_timeline_holds_the_newest_events(
    limit: str, value: int, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenure.open("memory:", sweep=False) as store:
        queue = store.queue("emails")
        queue.configure(Policy(max_attempts=100))
        job = queue.enqueue(b"x")
        for _ in range(5):
            queue.nack(queue.claim()[0], error="e" * 1000, delay=0)
        whole = queue.timeline(job.id)
        monkeypatch.setattr(journal, limit, value)
        found = queue.timeline(job.id)
    assert [event.type for event in found] == left
    assert found == whole[-len(left) :]
