"""Time: leases and delays are exact although the calendar steps and machines restart."""

from __future__ import annotations

import logging

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import LeaseLost
from tenure.testing.conformance.world import World, all_events, claimed, fill, seen

HOUR = 3600
a_step = pytest.mark.parametrize(
    "step", [-HOUR, HOUR, -30 * 86_400], ids=["an hour back", "an hour on", "a month back"]
)


@a_step
def test_a_live_lease_ends_when_it_would_have(queue: Queue, clock: ManualClock, step: float) -> None:
    fill(queue, 2)
    kept, lost = claimed(queue, lease=30), claimed(queue, lease=30)
    clock.advance(10)
    clock.step(step)
    clock.advance(19.999)
    assert not queue.claim()
    queue.ack(kept)
    clock.advance(0.002)
    with pytest.raises(LeaseLost):
        queue.ack(lost)
    assert claimed(queue).id == lost.id


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_step_is_logged(
    store: Store, queue: Queue, clock: ManualClock, step: float, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(b"x")
    store.sweep()
    clock.advance(60)
    with caplog.at_level(logging.WARNING, logger="tenure"):
        store.sweep()
        assert not caplog.records, "time that passes is no step"
        clock.step(step)
        store.sweep()
        store.sweep()
    told = [record.getMessage() for record in caplog.records if "clock" in record.getMessage()]
    assert len(told) == 1, "a step is logged once"


@a_step
@pytest.mark.parametrize("swept", [False, True])
def test_no_lease_revives(store: Store, queue: Queue, clock: ManualClock, step: float, swept: bool) -> None:
    queue.enqueue(b"x")
    claim = queue.claim(lease=30)
    clock.advance(30.001)
    if swept:
        store.sweep()
    clock.step(step)
    for verb in (lambda: queue.ack(claim[0]), lambda: queue.extend(claim, 60), lambda: queue.release(claim[0])):
        with pytest.raises(LeaseLost):
            verb()
    assert claimed(queue).id == claim[0].id


@a_step
def test_a_delayed_job_is_neither_early_nor_late(queue: Queue, clock: ManualClock, step: float) -> None:
    job_id = queue.enqueue(b"x", delay=60).id
    clock.advance(20)
    clock.step(step)
    clock.advance(39.999)
    assert not queue.claim()
    clock.advance(0.001)
    assert claimed(queue).id == job_id


@a_step
def test_a_job_scheduled_after_the_step_is_neither_early_nor_late(
    queue: Queue, clock: ManualClock, step: float
) -> None:
    queue.enqueue(b"before")
    clock.step(step)
    queue.ack(claimed(queue))
    relative = queue.enqueue(b"relative", delay=60).id
    absolute = queue.enqueue(b"absolute", at=clock.wall_ms() / 1000 + 90).id  # by the calendar as it is now
    clock.advance(59.999)
    assert not queue.claim()
    clock.advance(0.001)
    delivery = claimed(queue)
    assert delivery.id == relative
    queue.ack(delivery)
    clock.advance(29.999)
    assert not queue.claim()
    clock.advance(0.001)
    assert claimed(queue).id == absolute


@a_step
@pytest.mark.parametrize("reopened", [False, True])
def test_no_id_repeats_and_no_time_goes_back(world: World, clock: ManualClock, step: float, reopened: bool) -> None:
    made = fill(world.queue(), 50)
    created = [seen(world.queue(), made[-1]).created_at]
    for _ in range(3):
        clock.step(step)
        clock.advance(0.001)
        if reopened:
            world.reopen()
        made += fill(world.queue(), 50)
        created.append(seen(world.queue(), made[-1]).created_at)
    assert len(set(made)) == 200
    assert made == sorted(made)
    assert created == sorted(created)
    events = all_events(world.store)
    assert [e.time_ms for e in events] == sorted(e.time_ms for e in events)
    assert [e.number for e in events] == list(range(1, len(events) + 1))


@pytest.mark.parametrize("rebooted", [False, True])
def test_after_a_step_back_and_reopening_no_lease_revives_and_nothing_is_early(
    world: World, clock: ManualClock, rebooted: bool
) -> None:
    queue = world.queue()
    expired, live = fill(queue, 2)
    claim = queue.claim(lease=10)
    clock.advance(11)
    queue.enqueue(b"a write, so that the store knows how late it is")
    kept = queue.claim(limit=3, lease=600)
    assert live in {d.id for d in kept}
    delayed = queue.enqueue(b"later", delay=30).id
    clock.advance(1)
    clock.step(-HOUR)
    if rebooted:
        clock.reboot()
    world.reopen()
    queue = world.queue()
    with pytest.raises(LeaseLost):
        queue.ack(claim[0])
    assert claim[0].id == expired
    clock.advance(28.999)
    assert not queue.claim()
    # The second between the last write and the end is lost in a restart: the job is late by it, never early.
    clock.advance(1.001 if rebooted else 0.001)
    assert claimed(queue).id == delayed
    assert len(queue.ack_many(kept).done) == 3


def test_time_passes_while_the_store_is_closed(world: World, clock: ManualClock) -> None:
    queue = world.queue()
    fill(queue, 1)
    claim = queue.claim(lease=30)
    job_id = queue.enqueue(b"later", delay=60).id
    world.close()
    clock.advance(29)
    world.reopen()
    assert not world.queue().claim()
    world.close()
    clock.advance(1.001)
    world.reopen()
    with pytest.raises(LeaseLost):
        world.queue().ack(claim[0])
    assert claimed(world.queue()).id == claim[0].id
    clock.advance(29.999)
    assert claimed(world.queue()).id == job_id


def test_a_lease_outlives_a_restart_of_the_machine(world: World, clock: ManualClock) -> None:
    fill(world.queue(), 2)
    claim = world.queue().claim(limit=2, lease=30)
    world.close()
    clock.advance(10)
    clock.reboot()
    world.reopen()
    clock.advance(19.999)
    assert not world.queue().claim()
    world.queue().ack(claim[0])
    clock.advance(0.002)
    with pytest.raises(LeaseLost):
        world.queue().ack(claim[1])
    assert claimed(world.queue()).id == claim[1].id


def test_the_calendar_far_in_the_future_and_back(world: World, clock: ManualClock) -> None:
    """A machine with a dead battery, then NTP: the store's time must not go back from 2099 to 2027."""
    queue = world.queue()
    fill(queue, 2)
    clock.step(72 * 365 * 86_400)
    clock.reboot()
    world.reopen()
    world.queue().enqueue(b"from 2099")
    clock.step(-72 * 365 * 86_400)
    clock.reboot()
    world.reopen()
    queue = world.queue()
    claim = queue.claim(limit=3, lease=30)
    assert len(claim) == 3
    clock.advance(29.999)
    queue.ack(claim[0])
    clock.advance(0.002)
    assert queue.ack_many(claim).done == []
    assert len(queue.claim(limit=3)) == 2
