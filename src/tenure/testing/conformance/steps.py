"""Steps and signals: values stored under a job once, and deliveries that wait without a lease (DESIGN section 11)."""

from __future__ import annotations

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, LeaseLost, NotFound, TooLarge
from tenure.model.group import GroupPolicy
from tenure.model.lease import Delivery
from tenure.model.retry import Policy
from tenure.model.step import MAX_STEP_BYTES, MAX_STEPS_BYTES
from tenure.testing.conformance.world import KEEPING, PATIENCE, World, begin, happened, seen


@pytest.fixture
def stepping(queue: Queue, store: Store) -> Queue:
    """A queue of a store that keeps steps."""
    if not store.traits.steps:
        pytest.skip("this store keeps no steps")
    return queue


def one(queue: Queue, payload: bytes = b"job") -> Delivery:
    queue.enqueue(payload)
    (delivery,) = queue.claim()
    return delivery


def told(queue: Queue, job: Delivery | str) -> list[tuple[str, str, bytes]]:
    return [(step.kind, step.name, step.value) for step in queue.steps(job)]


def test_a_store_without_steps_says_so(queue: Queue, store: Store) -> None:
    if store.traits.steps:
        pytest.skip("this store keeps steps")
    delivery = one(queue)
    for verb in (
        lambda: queue.record_step(delivery, "a", b"1"),
        lambda: queue.signal(delivery.id, "a"),
        lambda: queue.snooze(delivery, 5, until_signal="a"),
    ):
        with pytest.raises(InvalidArgument, match=r"traits\.steps"):
            verb()
    assert queue.steps(delivery) == []
    queue.ack(delivery)


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_step_is_found_by_the_next_delivery(stepping: Queue) -> None:
    queue = stepping
    first = one(queue)
    assert queue.steps(first) == []
    assert queue.record_step(first, "charge", b"receipt 1") == b"receipt 1"
    assert queue.record_step(first, "mail", b"") == b""
    queue.nack(first, delay=0)
    (second,) = queue.claim()
    assert told(queue, second) == [("step", "charge", b"receipt 1"), ("step", "mail", b"")]
    assert told(queue, second.id) == told(queue, second)


def test_a_step_is_stored_once(stepping: Queue) -> None:
    delivery = one(stepping)
    assert stepping.record_step(delivery, "charge", b"first") == b"first"
    assert stepping.record_step(delivery, "charge", b"second") == b"first"
    assert told(stepping, delivery) == [("step", "charge", b"first")]


def test_only_the_holder_of_the_lease_records_steps(stepping: Queue, clock: ManualClock) -> None:
    first = one(stepping)
    clock.advance(31)
    with pytest.raises(LeaseLost):
        stepping.record_step(first, "charge", b"stale")
    (second,) = stepping.claim()
    with pytest.raises(LeaseLost):
        stepping.record_step(first, "charge", b"stale")
    stepping.record_step(second, "charge", b"mine")
    stepping.ack(second)
    with pytest.raises(LeaseLost):
        stepping.record_step(second, "late", b"")
    assert stepping.steps(second.id) == []


def test_steps_go_with_their_job(world: World, clock: ManualClock) -> None:
    if not world.store.traits.steps:
        pytest.skip("this store keeps no steps")
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
    assert told(queue, again) == [("step", "a", b"1"), ("signal", "go", b"2")]
    queue.ack(again)
    queue.purge("done")
    assert queue.steps(kept.id) == queue.steps(died.id) == []


def test_steps_are_bounded(stepping: Queue) -> None:
    delivery = one(stepping)
    with pytest.raises(TooLarge):
        stepping.record_step(delivery, "large", bytes(MAX_STEP_BYTES + 1))
    for place in range(MAX_STEPS_BYTES // MAX_STEP_BYTES):
        stepping.record_step(delivery, f"{place}", bytes(MAX_STEP_BYTES))
    with pytest.raises(TooLarge):
        stepping.record_step(delivery, "more", b"1")
    with pytest.raises(TooLarge):
        stepping.signal(delivery.id, "more", b"1")
    for wrong in ("x" * 5_000, 5):
        with pytest.raises(InvalidArgument):
            stepping.record_step(delivery, wrong, b"")  # type: ignore[arg-type]  # what is refused
        with pytest.raises(InvalidArgument):
            stepping.signal(delivery.id, wrong, b"")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            stepping.snooze(delivery, 5, until_signal=wrong)  # type: ignore[arg-type]
    stepping.ack(delivery)


def test_jobs_that_were_enqueued_together_have_steps_of_their_own(stepping: Queue) -> None:
    stepping.enqueue_many([b"a", b"b", b"c"])
    first, second, third = stepping.claim(limit=3)
    stepping.record_step(second, "charge", b"2")
    assert [told(stepping, each) for each in (first, second, third)] == [[], [("step", "charge", b"2")], []]
    stepping.ack_many([first, second, third])


# ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_waits_for_a_signal_without_a_lease(stepping: Queue, clock: ManualClock) -> None:
    queue = stepping
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
    assert told(queue, again) == [("signal", "other", b""), ("signal", "approval", b"yes")]
    assert happened(queue, delivery.id) == ["enqueued", "claimed", "released", "signalled", "claimed"]
    queue.ack(again)


def test_a_signal_that_came_before_is_not_missed(stepping: Queue) -> None:
    delivery = one(stepping)
    assert stepping.signal(delivery.id, "approval", b"yes") is True
    stepping.snooze(delivery, 3600, until_signal="approval")
    (again,) = stepping.claim()
    assert again.attempt == 1
    stepping.ack(again)


def test_a_signal_is_kept_once(stepping: Queue) -> None:
    job = stepping.enqueue(b"job")
    assert stepping.signal(job.id, "approval", b"yes") is True
    assert stepping.signal(job.id, "approval", b"no") is False
    assert told(stepping, job.id) == [("signal", "approval", b"yes")]


def test_a_wait_for_a_signal_ends_with_its_delay(stepping: Queue, clock: ManualClock) -> None:
    delivery = one(stepping)
    stepping.snooze(delivery, 60, until_signal="approval")
    clock.advance(61)
    (again,) = stepping.claim()
    # It no longer waits: a signal does not shorten what it waits for now.
    stepping.nack(again, delay=600)
    stepping.signal(delivery.id, "approval")
    assert list(stepping.claim()) == []
    clock.advance(601)
    (last,) = stepping.claim()
    assert told(stepping, last) == [("signal", "approval", b"")]
    stepping.ack(last)


def test_a_signal_needs_a_job_that_is_not_done(stepping: Queue) -> None:
    stepping.configure(Policy(retention=60))
    with pytest.raises(NotFound):
        stepping.signal("ab" * 16, "approval")
    delivery = one(stepping)
    stepping.ack(delivery)
    with pytest.raises(NotFound):
        stepping.signal(delivery.id, "approval")


def test_a_signal_wakes_a_job_of_a_group(world: World) -> None:
    if not (world.store.traits.steps):
        pytest.skip("this store keeps no steps")
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


def test_a_signal_wakes_a_claim_that_waits(stepping: Queue) -> None:
    delivery = one(stepping)
    stepping.snooze(delivery, 3600, until_signal="go")
    waiter = begin(lambda: list(stepping.claim(wait=60)))
    stepping.signal(delivery.id, "go")
    (again,) = waiter.result(PATIENCE)
    assert again.id == delivery.id
    stepping.ack(again)
