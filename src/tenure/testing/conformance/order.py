"""Order: by priority (9 first), then visibility time, then order of enqueueing. No job is delivered early."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.model.job import NewJob
from tenure.testing.conformance.world import PROMPT, World, claimed, fill, ids, kill, seen


@pytest.fixture
def ordered(world: World) -> Queue:
    if world.store.traits.order != "strict":
        pytest.skip("this store keeps the order nearly")
    return world.queue(policy=PROMPT)


def test_jobs_come_as_they_were_enqueued(ordered: Queue) -> None:
    made = fill(ordered, 10) + [ordered.enqueue(b"x").id for _ in range(10)]
    assert [claimed(ordered).id for _ in range(20)] == made


def test_the_highest_priority_comes_first(ordered: Queue) -> None:
    made = {priority: ordered.enqueue(b"x", priority=priority).id for priority in (0, 5, 9, 1, 8, 2, 7, 3, 6, 4)}
    assert ids(ordered.claim(limit=10)) == [made[priority] for priority in range(9, -1, -1)]


def test_within_a_priority_the_earlier_visible_comes_first(ordered: Queue, clock: ManualClock) -> None:
    late = ordered.enqueue(b"late", delay=30).id
    early = ordered.enqueue(b"early", delay=10).id
    clock.advance(20)
    between = ordered.enqueue(b"between").id
    clock.advance(20)
    assert ids(ordered.claim(limit=3)) == [early, between, late]


def test_a_higher_priority_that_is_not_yet_visible_holds_nothing_up(ordered: Queue, clock: ManualClock) -> None:
    high = ordered.enqueue(b"high", priority=9, delay=10).id
    low = ordered.enqueue(b"low", priority=0).id
    assert ids(ordered.claim(limit=2)) == [low]
    clock.advance(10)
    assert ids(ordered.claim(limit=2)) == [high]


def test_a_released_job_keeps_its_place(ordered: Queue, clock: ManualClock) -> None:
    made = fill(ordered, 3)
    first = claimed(ordered)
    clock.advance(5)
    before = seen(ordered, made[1]).visible_at
    ordered.release(first)
    assert seen(ordered, made[0]).visible_at == before
    assert ids(ordered.claim(limit=3)) == made


def test_a_job_released_long_after_many_were_consumed_is_first_again(ordered: Queue, clock: ManualClock) -> None:
    made = fill(ordered, 300)
    first = claimed(ordered, lease=3600)
    clock.advance(1)
    for _ in range(5):
        ordered.ack_many(ordered.claim(limit=40))
    ordered.release(first)
    assert ids(ordered.claim(limit=2)) == [made[0], made[201]]


def test_a_job_of_an_emptied_priority_is_found(ordered: Queue) -> None:
    for priority in (9, 5, 0):
        ordered.enqueue(b"x", priority=priority)
    ordered.ack_many(ordered.claim(limit=3))
    assert not ordered.claim()
    made = [ordered.enqueue(b"x", priority=priority).id for priority in (0, 5, 9)]
    assert ids(ordered.claim(limit=3)) == made[::-1]


def test_a_retried_job_queues_by_its_new_time(ordered: Queue, clock: ManualClock) -> None:
    first, second = fill(ordered, 2)
    delivery = claimed(ordered)
    clock.advance(5)
    third = ordered.enqueue(b"3").id
    clock.advance(5)
    ordered.nack(delivery)
    clock.advance(5)
    fourth = ordered.enqueue(b"4").id
    assert ids(ordered.claim(limit=4)) == [second, third, first, fourth]


def test_an_expired_job_queues_by_its_new_time(ordered: Queue, store: Store, clock: ManualClock) -> None:
    first, second = fill(ordered, 2)
    claimed(ordered, lease=10)
    clock.advance(10.001)
    store.sweep()
    assert ids(ordered.claim(limit=2)) == [second, first]


def test_a_replayed_job_queues_by_its_new_time(ordered: Queue, clock: ManualClock) -> None:
    (first,) = kill(ordered, 1)
    clock.advance(5)
    second = ordered.enqueue(b"2").id
    clock.advance(5)
    ordered.replay()
    clock.advance(5)
    third = ordered.enqueue(b"3").id
    assert ids(ordered.claim(limit=3)) == [second, first, third]


def test_a_retried_job_keeps_its_priority(ordered: Queue, clock: ManualClock) -> None:
    ordered.enqueue(b"low")
    high = ordered.enqueue(b"high", priority=9).id
    delivery = claimed(ordered, lease=600)
    clock.advance(60)
    ordered.nack(delivery)
    assert claimed(ordered).id == high


def test_a_hundred_jobs_in_the_order_of_the_rule(ordered: Queue, clock: ManualClock) -> None:
    rng = random.Random(17)
    wanted = []
    for place in range(150):
        if rng.random() < 0.2:
            clock.advance(rng.choice([0.001, 0.5, 3]))
        priority, delay = rng.randrange(10), rng.choice([0, 0, 0.001, 1, 2.5, 20])
        job_id = ordered.enqueue(NewJob(b"x", priority=priority, delay=delay)).id
        wanted.append((-priority, clock.steady_ms() + round(delay * 1000), place, job_id))
    clock.advance(21)
    found: list[str] = []
    while claim := ordered.claim(limit=rng.choice([1, 7, 30])):
        found += ids(claim)
    assert found == [job_id for *_, job_id in sorted(wanted)]


# ── never early ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("delay", [0.001, 0.25, 1.5, 3600.123, 30 * 86_400])
def test_a_delayed_job_is_never_early_to_the_millisecond(queue: Queue, clock: ManualClock, delay: float) -> None:
    job_id = queue.enqueue(b"x", delay=delay).id
    assert seen(queue, job_id).state == "scheduled"
    clock.advance(delay - 0.001)
    assert not queue.claim()
    clock.advance(0.001)
    assert seen(queue, job_id).state == "ready"
    assert claimed(queue).id == job_id


def test_a_part_of_a_millisecond_counts_as_a_whole(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"x", delay=0.0001)
    assert not queue.claim()
    clock.advance(0.001)
    assert queue.claim()


@pytest.mark.parametrize("form", ["datetime", "seconds"])
def test_a_job_may_be_due_at_a_moment_of_the_calendar(queue: Queue, clock: ManualClock, form: str) -> None:
    moment = clock.wall_ms() / 1000 + 90
    job_id = queue.enqueue(b"x", at=datetime.fromtimestamp(moment, UTC) if form == "datetime" else moment).id
    clock.advance(89.999)
    assert not queue.claim()
    clock.advance(0.001)
    assert claimed(queue).id == job_id


def test_a_moment_that_has_passed_is_now(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(b"x", at=clock.wall_ms() / 1000 - 3600).id
    assert claimed(queue).id == job_id
