"""ttl: a job that is not claimed in time is removed, with an event; after its first claim the ttl has no effect."""

from __future__ import annotations

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.model.job import NewJob
from tenure.testing.conformance.world import PROMPT, World, all_events, claimed, event_types, ids, sweep_all


def test_a_job_not_claimed_in_time_is_never_delivered(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"x", ttl=10)
    clock.advance(10.001)
    assert not queue.claim(), "the clock decides, not the sweeper"


def test_up_to_its_ttl_a_job_is_delivered(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(b"x", ttl=10).id
    clock.advance(9.999)
    assert claimed(queue).id == job_id


def test_a_removal_by_ttl_is_an_event(store: Store, queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(b"x", ttl=10).id
    other = queue.enqueue(b"y").id
    clock.advance(10.001)
    assert store.sweep().ttl_passed == 1
    assert queue.get(job_id) is None
    assert event_types(queue, job_id) == ["enqueued", "ttl_passed"]
    assert queue.counts().removed == 1
    assert ids(queue.claim(limit=2)) == [other]
    assert store.sweep().ttl_passed == 0


@pytest.mark.parametrize("how", ["nacked", "released", "expired"])
def test_a_job_that_was_claimed_in_time_stays(world: World, clock: ManualClock, how: str) -> None:
    queue = world.queue(policy=PROMPT)
    job_id = queue.enqueue(b"x", ttl=10).id
    delivery = claimed(queue, lease=5)
    if how == "nacked":
        queue.nack(delivery)
    elif how == "released":
        queue.release(delivery)
    clock.advance(3600)
    world.store.sweep()
    assert claimed(queue).id == job_id


def test_a_job_is_not_taken_from_its_holder(store: Store, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"x", ttl=10)
    delivery = claimed(queue, lease=60)
    clock.advance(11)
    assert store.sweep().ttl_passed == 0
    queue.ack(delivery)


def test_each_job_of_a_batch_has_its_own_ttl(store: Store, queue: Queue, clock: ManualClock) -> None:
    made = queue.enqueue_many([NewJob(b"1", ttl=10), NewJob(b"2"), NewJob(b"3", ttl=30)])
    clock.advance(20)
    assert ids(queue.claim(limit=3)) == [made[1].id, made[2].id]
    store.sweep()
    assert sorted(e.job_id for e in all_events(store) if e.type == "ttl_passed" and e.job_id) == [made[0].id]


def test_many_jobs_past_their_ttl_are_removed(store: Store, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_many([NewJob(b"x", ttl=10)] * 1500)
    last = queue.enqueue(b"last").id
    clock.advance(11)
    assert claimed(queue).id == last
    sweep_all(store)
    assert queue.counts().removed == 1500
    assert (queue.counts().waiting, queue.counts().leased) == (0, 1)


def test_a_ttl_holds_after_reopening(world: World, clock: ManualClock) -> None:
    job_id = world.queue().enqueue(b"x", ttl=10).id
    clock.advance(10.001)
    world.reopen()
    assert not world.queue().claim()
    world.store.sweep()
    assert event_types(world.queue(), job_id) == ["enqueued", "ttl_passed"]
