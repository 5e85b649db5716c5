"""A done job whose children have not ended is kept past its retention, and a sweep does not count it as removed."""

from __future__ import annotations

import tenure
from tenure import ManualClock, NewJob, Policy
from tenure.queueing.flows import KEPT_FOR_CHILDREN_MS


def test_a_parent_is_removed_once_its_child_has_ended() -> None:
    clock = ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        queue = store.queue("work")
        queue.configure(Policy(retention=1, lease=3600))
        first, second = queue.enqueue(b"first").id, queue.enqueue(b"second").id
        queue.enqueue_many([NewJob(b"child", after=[first, second])])
        done, held = queue.claim(limit=2)
        queue.ack(done)
        clock.advance(2)
        assert store.sweep().retired == 0
        kept = queue.get(first)
        assert kept is not None
        assert kept.state == "done"
        queue.ack(held)
        (child,) = queue.claim()
        queue.ack(child)
        clock.advance(KEPT_FOR_CHILDREN_MS / 1000)
        assert store.sweep().retired == 3
        assert queue.get(first) is None
        assert store.check().clean
