"""Retention and cleanup: done jobs are removed after their retention, and no other jobs are."""

from __future__ import annotations

import pytest

from tenure.api.queue import Queue
from tenure.clock import ManualClock
from tenure.model.retry import Policy
from tenure.testing.conformance.world import World, claimed, event_types, fill, kill, nothing_written, seen, sweep_all


def _done(queue: Queue, result: bytes | None = None) -> str:
    job_id = queue.enqueue(b"x").id
    queue.ack(claimed(queue), result=result)
    return job_id


@pytest.mark.parametrize(
    ("retention", "result_retention", "result", "seconds"),
    [
        (60, 0, None, 60),
        (60, 600, None, 60),
        (60, 600, b"r", 600),
        (600, 60, b"r", 600),
        (0, 60, b"", 60),
    ],
)
def test_a_done_job_stays_for_the_larger_of_its_retentions(
    world: World, clock: ManualClock, retention: float, result_retention: float, result: bytes | None, seconds: float
) -> None:
    queue = world.queue(policy=Policy(retention=retention, result_retention=result_retention))
    job_id = _done(queue, result)
    clock.advance(seconds - 0.001)
    sweep_all(world.store)
    job = seen(queue, job_id)
    assert (job.state, job.result) == ("done", result)
    clock.advance(0.002)
    assert world.store.sweep().retired == 1
    assert queue.get(job_id) is None
    assert event_types(queue, job_id) == ["enqueued", "claimed", "done", "retired"]
    assert (queue.counts().done, queue.counts().removed) == (0, 1)


def test_a_result_with_no_retention_at_all_is_not_kept(world: World) -> None:
    queue = world.queue(policy=Policy(retention=0, result_retention=0))
    assert queue.get(_done(queue, b"result")) is None


def test_retention_never_touches_a_job_that_has_not_ended(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(retention=1, result_retention=1))
    _done(queue)
    (dead,) = kill(queue, 1)
    held = queue.enqueue(b"held").id
    delivery = claimed(queue, lease=86_400 * 300)
    waiting = queue.enqueue(b"waiting").id
    later = queue.enqueue(b"later", delay=86_400 * 365).id
    clock.advance(86_400 * 200)
    sweep_all(world.store)
    world.store.cleanup()
    world.store.cleanup(before=clock.wall_ms() / 1000 - 86_400 * 250)
    assert [seen(queue, i).state for i in (dead, held, waiting, later)] == ["dead", "leased", "ready", "scheduled"]
    queue.ack(delivery)


def test_cleanup_removes_what_is_past_its_retention(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(retention=60))
    for _ in range(5):
        _done(queue)
    clock.advance(30)
    fresh = _done(queue)
    with nothing_written(world.store):
        assert world.store.cleanup() == 0
    clock.advance(31)
    assert world.store.cleanup(limit=3) == 3
    assert world.store.cleanup() == 2
    assert seen(queue, fresh).state == "done"


def test_cleanup_before_a_moment_removes_all_that_ended_before_it(world: World, clock: ManualClock) -> None:
    a, b = world.queue("a", policy=Policy(retention=86_400)), world.queue("b", tenant="acme")
    old = _done(a)
    (old_dead,) = kill(b, 1)
    waiting = a.enqueue(b"waiting").id
    clock.advance(60)
    moment = clock.wall_ms() / 1000
    clock.advance(60)
    (new_dead,) = kill(b, 1)
    assert world.store.cleanup(before=moment) == 2
    assert (a.get(old), b.get(old_dead)) == (None, None)
    assert (seen(a, waiting).state, seen(b, new_dead).state) == ("ready", "dead")
    assert event_types(b, old_dead)[-1] in {"purged", "retired"}


def test_cleanup_in_bounded_steps(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(retention=10))
    fill(queue, 1200)
    queue.ack_many(queue.claim(limit=1200))
    clock.advance(11)
    removed = []
    while (n := world.store.cleanup(limit=500)) > 0:
        removed.append(n)
    assert sum(removed) == 1200
    assert max(removed) <= 500
