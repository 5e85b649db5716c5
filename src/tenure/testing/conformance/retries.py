"""Retries: exactly `max_attempts` deliveries, whatever ends each, and one event for the death."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.model.retry import Backoff, Policy
from tenure.testing.conformance.world import PROMPT, World, all_events, claimed, event_types, job_events, seen

ENDS = ("nacked", "expired", "killed")


def test_three_attempts_are_three_deliveries_by_any_mix(world: World, clock: ManualClock) -> None:
    mixes = list(itertools.product(ENDS, repeat=3))
    names = {mix: ".".join(mix) for mix in mixes}
    made = {mix: world.queue(names[mix], policy=PROMPT).enqueue(b"x", max_attempts=3).id for mix in mixes}
    for turn in range(3):
        for mix in mixes:
            queue = world.queue(names[mix])
            delivery = claimed(queue, lease=10)
            assert (delivery.id, delivery.attempt) == (made[mix], turn + 1), mix
            if mix[turn] == "nacked":
                queue.nack(delivery, error="boom", delay=0)
        if world.harness.persistent:
            world.reopen()  # the workers are gone, with the leases they held
        clock.advance(10.001)
    for mix in mixes:
        queue = world.queue(names[mix])
        assert not queue.claim(), mix
        job = seen(queue, made[mix])
        assert (job.state, job.reason, job.attempt) == ("dead", "max_attempts", 3), mix
        told = [event.type for event in all_events(world.store) if event.job_id == made[mix]]
        assert told == event_types(queue, made[mix])
        assert told.count("claimed") == 3, mix
        assert told.count("died") == 1, mix
        assert told[-1] == "died", mix
        if mix[-1] == "nacked":
            assert job.error == "boom"


@pytest.mark.parametrize("by", ["claim", "sweep"])
def test_expiry_at_the_last_attempt_is_dead_with_one_event(
    store: Store, queue: Queue, clock: ManualClock, by: str
) -> None:
    job_id = queue.enqueue(b"x", max_attempts=1).id
    claimed(queue, lease=10)
    clock.advance(10.001)
    if by == "sweep":
        assert store.sweep().jobs_dead == 1
    assert not queue.claim()
    job = seen(queue, job_id)
    assert (job.state, job.reason, job.attempt) == ("dead", "max_attempts", 1)
    assert event_types(queue, job_id) == ["enqueued", "claimed", "died"]
    assert [event.reason for event in all_events(store) if event.type == "died"] == ["max_attempts"]


def test_a_nack_at_the_last_attempt_is_dead_whatever_its_delay(queue: Queue) -> None:
    job_id = queue.enqueue(b"x", max_attempts=1).id
    queue.nack(claimed(queue), error="boom", delay=0)
    job = seen(queue, job_id)
    assert (job.state, job.reason, job.error) == ("dead", "max_attempts", "boom")
    assert not queue.claim()
    assert event_types(queue, job_id) == ["enqueued", "claimed", "died"]


def test_a_release_is_not_an_attempt(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=PROMPT)
    job_id = queue.enqueue(b"x", max_attempts=2).id
    for _ in range(5):
        queue.release(claimed(queue))
    queue.nack(claimed(queue))
    for _ in range(5):
        delivery = claimed(queue, lease=10)
        assert delivery.attempt == 2
        queue.release(delivery)
    claimed(queue, lease=10)
    clock.advance(10.001)
    assert not queue.claim()
    assert seen(queue, job_id).state == "dead"


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Backoff.fixed(10), [10, 10, 10, 10]),
        (Backoff.linear(10, cap=35), [10, 20, 30, 35]),
        (Backoff.exponential(base=5, factor=2, cap=30, jitter="none"), [5, 10, 20, 30]),
        (Backoff.patient(), [60, 300, 1500, 1500]),
        (Backoff.fixed(0), [0, 0, 0, 0]),
    ],
    ids=["fixed", "linear", "exponential", "patient", "none"],
)
def test_a_nacked_job_waits_as_the_policy_says(
    world: World, clock: ManualClock, backoff: Backoff, waits: list[int]
) -> None:
    queue = world.queue(policy=Policy(backoff=backoff, max_attempts=10))
    job_id = queue.enqueue(b"x").id
    for attempt, wait in enumerate(waits, 1):
        delivery = claimed(queue)
        assert delivery.attempt == attempt
        queue.nack(delivery, error=f"try {attempt}")
        job = seen(queue, job_id)
        assert (job.state, job.error) == ("scheduled" if wait else "ready", f"try {attempt}")
        if wait:
            clock.advance(wait - 0.001)
            assert not queue.claim(), f"after attempt {attempt} it came early"
            clock.advance(0.001)


@pytest.mark.parametrize(("jitter", "low", "high"), [("full", 0, 10), ("equal", 5, 10), ("none", 10, 10)])
def test_jitter_stays_within_its_bounds(world: World, clock: ManualClock, jitter: str, low: float, high: float) -> None:
    queue = world.queue(policy=Policy(backoff=Backoff.fixed(10, jitter=jitter)))  # type: ignore[arg-type]
    made = [queue.enqueue(b"x").id for _ in range(40)]
    now_ms = seen(queue, made[0]).created_at_ms
    for delivery in queue.claim(limit=40):
        queue.nack(delivery)
    waits = [seen(queue, job_id).visible_at_ms - now_ms for job_id in made]
    assert low * 1000 <= min(waits)
    assert max(waits) <= high * 1000
    if jitter != "none":
        assert len(set(waits)) > 10, "jitter that does not scatter is none"


@pytest.mark.parametrize("delay", [0, 0.25, 7, timedelta(minutes=1)])
def test_a_given_delay_wins_over_the_policys(world: World, clock: ManualClock, delay: float | timedelta) -> None:
    queue = world.queue(policy=Policy(backoff=Backoff.fixed(30)))
    job_id = queue.enqueue(b"x").id
    now_ms = seen(queue, job_id).created_at_ms
    queue.nack(claimed(queue), delay=delay)
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    assert seen(queue, job_id).visible_at_ms - now_ms == seconds * 1000
    clock.advance(seconds)
    assert claimed(queue).id == job_id


def test_an_expired_job_is_ready_at_once(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(backoff=Backoff.fixed(60)))
    job_id = queue.enqueue(b"x").id
    claimed(queue, lease=10)
    clock.advance(10.001)
    assert claimed(queue).id == job_id
    assert event_types(queue, job_id) == ["enqueued", "claimed", "expired", "claimed"]


@pytest.mark.parametrize("found_by", ["claim", "sweep"])
def test_an_expired_job_waits_where_the_policy_says_so(world: World, clock: ManualClock, found_by: str) -> None:
    queue = world.queue(policy=Policy(backoff=Backoff.fixed(60), backoff_on_expiry=True))
    job_id = queue.enqueue(b"x").id
    claimed(queue, lease=10)
    clock.advance(10.001)
    if found_by == "sweep":
        world.store.sweep()
    assert not queue.claim()
    assert seen(queue, job_id).state == "scheduled"
    clock.advance(59.9)
    assert not queue.claim()
    clock.advance(0.2)
    assert claimed(queue).id == job_id


def test_a_jobs_own_max_attempts_wins(world: World) -> None:
    queue = world.queue(policy=Policy(max_attempts=5, backoff=Backoff.fixed(0)))
    once = queue.enqueue(b"x", max_attempts=1).id
    queue.nack(claimed(queue))
    assert seen(queue, once).state == "dead"


def test_a_new_policy_does_not_change_the_attempts_of_jobs_that_are_there(world: World) -> None:
    queue = world.queue(policy=Policy(max_attempts=2, backoff=Backoff.fixed(0)))
    job_id = queue.enqueue(b"x").id
    queue.configure(Policy(max_attempts=9, backoff=Backoff.fixed(0)))
    for _ in range(2):
        queue.nack(claimed(queue))
    assert seen(queue, job_id).state == "dead"
    assert seen(queue, queue.enqueue(b"y").id).max_attempts == 9


def test_the_last_error_is_the_one_kept(world: World) -> None:
    queue = world.queue(policy=PROMPT)
    job_id = queue.enqueue(b"x", max_attempts=3).id
    for n in range(3):
        queue.nack(claimed(queue), error=f"error {n}")
    assert seen(queue, job_id).error == "error 2"
    assert [e.text for e in job_events(queue, job_id) if e.type in {"retried", "died"}] == [
        "error 0",
        "error 1",
        "error 2",
    ]
