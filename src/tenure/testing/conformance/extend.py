"""Extend: the lease of the whole claim gets longer, never shorter; an expired lease stays expired."""

from __future__ import annotations

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, LeaseLost
from tenure.model.retry import Policy
from tenure.testing.conformance.world import World, claimed, fill, ids, nothing_written, seen


def test_extend_keeps_the_whole_claim(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 3)
    claim = queue.claim(limit=3, lease=10)
    clock.advance(9)
    extended = queue.extend(claim, 30)
    assert extended.lost == []
    assert claim.until is not None
    assert (extended.until - claim.until).total_seconds() == 29
    assert seen(queue, claim[0].id).lease_until_ms == extended.until_ms
    clock.advance(29.999)
    assert not queue.claim()
    assert len(queue.ack_many(claim).done) == 3


def test_an_extended_lease_ends_too(queue: Queue, clock: ManualClock) -> None:
    made = fill(queue, 2)
    claim = queue.claim(limit=2, lease=10)
    queue.extend(claim, 60)
    clock.advance(60.001)
    with pytest.raises(LeaseLost):
        queue.ack(claim[0])
    assert sorted(ids(queue.claim(limit=2))) == sorted(made)


def test_extend_never_shortens(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"x")
    claim = queue.claim(lease=60)
    extended = queue.extend(claim, 1)
    assert extended.until == claim.until
    clock.advance(59.999)
    queue.ack(claim[0])


@pytest.mark.parametrize("by", ["claim", "delivery", "receipt"])
def test_extend_takes_a_claim_a_delivery_or_a_receipt(queue: Queue, clock: ManualClock, by: str) -> None:
    fill(queue, 2)
    claim = queue.claim(limit=2, lease=10)
    queue.extend({"claim": claim, "delivery": claim[0], "receipt": claim[0].receipt}[by], 100)  # type: ignore[arg-type]
    clock.advance(99)
    assert len(queue.ack_many(claim).done) == 2


def test_extend_by_the_policys_lease(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(lease=40))
    queue.enqueue(b"x")
    claim = queue.claim(lease=10)
    queue.extend(claim)
    clock.advance(39.999)
    queue.ack(claim[0])


def test_extend_again_and_again(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"x")
    claim = queue.claim(lease=10)
    for _ in range(20):
        clock.advance(9)
        queue.extend(claim, 10)
        assert not queue.claim()
    queue.ack(claim[0])


@pytest.mark.parametrize("meanwhile", ["nothing", "swept", "claimed"])
def test_extend_does_not_revive(store: Store, queue: Queue, clock: ManualClock, meanwhile: str) -> None:
    job_id = queue.enqueue(b"x").id
    claim = queue.claim(lease=10)
    clock.advance(10.001)
    if meanwhile == "swept":
        store.sweep()
    if meanwhile == "claimed":
        queue.claim()
    with nothing_written(store), pytest.raises(LeaseLost):
        queue.extend(claim, 60)
    if meanwhile != "claimed":
        assert ids(queue.claim()) == [job_id]


def test_extend_tells_which_jobs_were_cancelled(queue: Queue) -> None:
    made = fill(queue, 4)
    claim = queue.claim(limit=4, lease=10)
    queue.ack(claim[0])
    queue.cancel(made[1])
    queue.cancel(made[3])
    assert sorted(queue.extend(claim, 60).lost) == sorted([made[1], made[3]]), (
        "jobs that the claim settled are not lost"
    )
    queue.ack(claim[2])


def test_extend_of_a_claim_with_nothing_open_is_lost(store: Store, queue: Queue) -> None:
    fill(queue, 2)
    settled = queue.claim()
    queue.ack(settled[0])
    cancelled = queue.claim()
    queue.cancel(cancelled[0].id)
    with nothing_written(store):
        for claim in (settled, cancelled):
            with pytest.raises(LeaseLost):
                queue.extend(claim, 60)


def test_an_empty_claim_cannot_be_extended(store: Store, queue: Queue) -> None:
    with nothing_written(store), pytest.raises(InvalidArgument):
        queue.extend(queue.claim(), 60)


def test_a_lease_extended_before_its_end_is_not_swept_at_its_old_end(
    store: Store, queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue(b"x")
    delivery = claimed(queue, lease=10)
    queue.extend(delivery, 100)
    clock.advance(50)
    assert store.sweep().leases == 0
    queue.ack(delivery)
    clock.advance(100)
    assert store.sweep().leases == 0
