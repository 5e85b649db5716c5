"""Steps and signals: values stored under a job once, and deliveries that wait without a lease."""

from __future__ import annotations

import pytest

from tenure.api.queue import Queue
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, LeaseLost, NotFound, TooLarge
from tenure.model.group import GroupPolicy
from tenure.model.lease import Delivery
from tenure.model.retry import Policy
from tenure.model.step import MAX_STEP_BYTES, MAX_STEPS_BYTES
from tenure.testing.conformance.world import KEEPING, PATIENCE, World, begin, event_types, seen


def one(queue: Queue, payload: bytes = b"job") -> Delivery:
    queue.enqueue(payload)
    (delivery,) = queue.claim()
    return delivery


def stored_steps(queue: Queue, job: Delivery | str) -> list[tuple[str, str, bytes]]:
    return [(step.kind, step.name, step.value) for step in queue.steps(job)]


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_step_is_found_by_the_next_delivery(queue: Queue) -> None:
    first = one(queue)
    assert queue.steps(first) == []
    assert queue.record_step(first, "charge", b"receipt 1") == b"receipt 1"
    assert queue.record_step(first, "mail", b"") == b""
    queue.nack(first, delay=0)
    (second,) = queue.claim()
    assert stored_steps(queue, second) == [("step", "charge", b"receipt 1"), ("step", "mail", b"")]
    assert stored_steps(queue, second.id) == stored_steps(queue, second)


def test_a_step_is_stored_once(queue: Queue) -> None:
    delivery = one(queue)
    assert queue.record_step(delivery, "charge", b"first") == b"first"
    assert queue.record_step(delivery, "charge", b"second") == b"first"
    assert stored_steps(queue, delivery) == [("step", "charge", b"first")]


def test_only_the_holder_of_the_lease_records_steps(queue: Queue, clock: ManualClock) -> None:
    first = one(queue)
    clock.advance(31)
    with pytest.raises(LeaseLost):
        queue.record_step(first, "charge", b"stale")
    (second,) = queue.claim()
    with pytest.raises(LeaseLost):
        queue.record_step(first, "charge", b"stale")
    queue.record_step(second, "charge", b"mine")
    queue.ack(second)
    with pytest.raises(LeaseLost):
        queue.record_step(second, "late", b"")
    assert queue.steps(second.id) == []


def test_steps_go_with_their_job(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=KEEPING)
    kept, cancelled, died = (one(queue) for _ in range(3))
    for delivery in (kept, cancelled, died):
        queue.record_step(delivery, "a", b"1")
        queue.signal(delivery.id, "go", b"2")
    queue.ack(kept, result=b"done")
    queue.cancel(cancelled.id)
    queue.fail(died)
    assert len(queue.steps(kept.id)) == len(queue.steps(died.id)) == 2
    assert queue.steps(cancelled.id) == []
    queue.replay([died.id])
    (again,) = queue.claim()
    assert stored_steps(queue, again) == [("step", "a", b"1"), ("signal", "go", b"2")]
    queue.ack(again)
    queue.purge("done")
    assert queue.steps(kept.id) == queue.steps(died.id) == []


def test_steps_are_bounded(queue: Queue) -> None:
    delivery = one(queue)
    with pytest.raises(TooLarge):
        queue.record_step(delivery, "large", bytes(MAX_STEP_BYTES + 1))
    for place in range(MAX_STEPS_BYTES // MAX_STEP_BYTES):
        queue.record_step(delivery, f"{place}", bytes(MAX_STEP_BYTES))
    with pytest.raises(TooLarge):
        queue.record_step(delivery, "more", b"1")
    with pytest.raises(TooLarge):
        queue.signal(delivery.id, "more", b"1")
    for wrong in ("x" * 5_000, 5):
        with pytest.raises(InvalidArgument):
            queue.record_step(delivery, wrong, b"")  # type: ignore[arg-type]  # what is refused
        with pytest.raises(InvalidArgument):
            queue.signal(delivery.id, wrong, b"")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            queue.snooze(delivery, 5, until_signal=wrong)  # type: ignore[arg-type]
    queue.ack(delivery)


def test_jobs_that_were_enqueued_together_have_steps_of_their_own(queue: Queue) -> None:
    queue.enqueue_many([b"a", b"b", b"c"])
    first, second, third = queue.claim(limit=3)
    queue.record_step(second, "charge", b"2")
    assert [stored_steps(queue, each) for each in (first, second, third)] == [[], [("step", "charge", b"2")], []]
    queue.ack_many([first, second, third])


# ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_waits_for_a_signal_without_a_lease(queue: Queue, clock: ManualClock) -> None:
    delivery = one(queue)
    queue.snooze(delivery, 3600, until_signal="approval")
    job = seen(queue, delivery.id)
    assert (job.state, job.attempt) == ("scheduled", 0)
    assert list(queue.claim()) == []
    clock.advance(5)
    assert queue.signal(delivery.id, "other") is True
    assert list(queue.claim()) == []
    assert queue.signal(delivery.id, "approval", b"yes") is True
    (again,) = queue.claim()
    assert (again.id, again.attempt) == (delivery.id, 1)
    assert stored_steps(queue, again) == [("signal", "other", b""), ("signal", "approval", b"yes")]
    assert event_types(queue, delivery.id) == ["enqueued", "claimed", "released", "signalled", "claimed"]
    queue.ack(again)


def test_a_signal_that_came_before_is_not_missed(queue: Queue) -> None:
    delivery = one(queue)
    assert queue.signal(delivery.id, "approval", b"yes") is True
    queue.snooze(delivery, 3600, until_signal="approval")
    (again,) = queue.claim()
    assert again.attempt == 1
    queue.ack(again)


def test_a_signal_is_kept_once(queue: Queue) -> None:
    job = queue.enqueue(b"job")
    assert queue.signal(job.id, "approval", b"yes") is True
    assert queue.signal(job.id, "approval", b"no") is False
    assert stored_steps(queue, job.id) == [("signal", "approval", b"yes")]


def test_a_wait_for_a_signal_ends_with_its_delay(queue: Queue, clock: ManualClock) -> None:
    delivery = one(queue)
    queue.snooze(delivery, 60, until_signal="approval")
    clock.advance(61)
    (again,) = queue.claim()
    # It no longer waits for the signal: one that comes now does not shorten its new delay.
    queue.nack(again, delay=600)
    queue.signal(delivery.id, "approval")
    assert list(queue.claim()) == []
    clock.advance(601)
    (last,) = queue.claim()
    assert stored_steps(queue, last) == [("signal", "approval", b"")]
    queue.ack(last)


def test_a_signal_needs_a_job_that_is_not_done(queue: Queue) -> None:
    queue.configure(Policy(retention=60))
    with pytest.raises(NotFound):
        queue.signal("ab" * 16, "approval")
    delivery = one(queue)
    queue.ack(delivery)
    with pytest.raises(NotFound):
        queue.signal(delivery.id, "approval")


def test_a_signal_wakes_a_job_of_a_group(world: World) -> None:
    queue = world.queue(policy=Policy(group=GroupPolicy(max_leased=1)))
    queue.enqueue(b"job", group="g", priority=3)
    (delivery,) = queue.claim()
    queue.snooze(delivery, 3600, until_signal="go")
    assert list(queue.claim()) == []
    queue.signal(delivery.id, "go")
    (again,) = queue.claim()
    assert again.id == delivery.id
    queue.ack(again)
    assert list(queue.groups()) == []


def test_a_signal_wakes_a_claim_that_waits(queue: Queue) -> None:
    delivery = one(queue)
    queue.snooze(delivery, 3600, until_signal="go")
    waiter = begin(lambda: list(queue.claim(wait=60)))
    queue.signal(delivery.id, "go")
    (again,) = waiter.result(PATIENCE)
    assert again.id == delivery.id
    queue.ack(again)
