"""Cancel and pause."""

from __future__ import annotations

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import AlreadySettled, LeaseLost
from tenure.testing.conformance.settle import HOLDING
from tenure.testing.conformance.world import (
    KEEPING,
    PATIENCE,
    World,
    all_events,
    claimed,
    event_types,
    fill,
    ids,
    kill,
    nothing_written,
    seen,
    still_waiting,
    waiting,
)


@pytest.mark.parametrize("delay", [0, 60])
def test_cancel_removes_a_waiting_job(store: Store, queue: Queue, clock: ManualClock, delay: float) -> None:
    job_id = queue.enqueue(b"x", delay=delay).id
    assert queue.cancel(job_id)
    assert queue.get(job_id) is None
    assert event_types(queue, job_id) == ["enqueued", "cancelled"]
    clock.advance(61)
    assert not queue.claim()
    assert store.check().jobs == 0
    assert (queue.counts().waiting, queue.counts().removed) == (0, 1)


@pytest.mark.parametrize("verb", [name for name in HOLDING if name != "extend"])
def test_the_holder_of_a_cancelled_job_finds_out(store: Store, queue: Queue, verb: str) -> None:
    fill(queue, 2)
    claim = queue.claim(limit=2)
    assert queue.cancel(claim[0].id)
    with nothing_written(store), pytest.raises(LeaseLost) as lost:
        HOLDING[verb](queue, claim[0])
    assert not isinstance(lost.value, AlreadySettled)
    assert queue.extend(claim, 60).lost == [claim[0].id]
    queue.ack(claim[1])
    assert event_types(queue, claim[0].id) == ["enqueued", "claimed", "cancelled"]


def test_cancelling_the_last_job_of_a_lease_ends_the_lease(store: Store, queue: Queue, clock: ManualClock) -> None:
    fill(queue, 2)
    claim = queue.claim(limit=2, lease=10)
    queue.ack(claim[0])
    assert queue.cancel(claim[1].id)
    assert store.check().leases == 0
    clock.advance(11)
    assert store.sweep().leases == 0


def test_cancel_of_an_ended_or_unknown_job_is_false(world: World) -> None:
    queue = world.queue(policy=KEEPING)
    done = queue.enqueue(b"x").id
    queue.ack(claimed(queue))
    (dead,) = kill(queue, 1)
    gone = queue.enqueue(b"x").id
    queue.cancel(gone)
    with nothing_written(world.store):
        for job_id in (done, dead, gone, "0" * 32):
            assert queue.cancel(job_id) is False
        assert world.store.queue("nowhere").cancel(done) is False
    assert (seen(queue, done).state, seen(queue, dead).state) == ("done", "dead")


def test_cancel_of_an_expired_delivery_removes_the_job(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(b"x").id
    claimed(queue, lease=10)
    clock.advance(11)
    assert queue.cancel(job_id)
    assert not queue.claim()
    assert queue.get(job_id) is None


def test_a_large_job_is_cancelled_whole(store: Store, queue: Queue) -> None:
    job_id = queue.enqueue(bytes(500_000), key="k", headers={"a": "b"}).id
    delivery = claimed(queue)
    queue.progress(delivery, 0.5, "note")
    assert queue.cancel(job_id)
    assert store.check().jobs == 0


# ── pause ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_paused_queue_gives_nothing(store: Store, queue: Queue) -> None:
    made = fill(queue, 3)
    queue.pause()
    with nothing_written(store):
        assert not queue.claim(limit=3)
    assert [q.paused for q in store.queues()] == [True]
    made.append(queue.enqueue(b"more").id)
    queue.resume()
    assert ids(queue.claim(limit=4)) == made
    assert [q.paused for q in store.queues()] == [False]


def test_a_lease_lives_on_in_a_paused_queue(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 3)
    claim = queue.claim(limit=3, lease=10)
    queue.pause()
    queue.extend(claim, 30)
    clock.advance(20)
    queue.ack(claim[0])
    queue.nack(claim[1], delay=0)
    assert queue.counts().ready == 1
    assert not queue.claim()
    clock.advance(11)
    with pytest.raises(LeaseLost):
        queue.ack(claim[2])
    queue.resume()
    assert sorted(ids(queue.claim(limit=3))) == sorted([claim[1].id, claim[2].id])


def test_pausing_writes_one_event(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x")
    queue.pause()
    queue.pause()
    queue.resume()
    queue.resume()
    told = [e.type for e in all_events(store) if e.type in {"queue_paused", "queue_resumed"}]
    assert told == ["queue_paused", "queue_resumed"]


def test_a_waiter_on_a_paused_queue_waits_on(queue: Queue) -> None:
    queue.enqueue(b"x")
    queue.pause()
    waiter = waiting(queue, seconds=600)
    queue.enqueue(b"y")
    assert still_waiting(waiter)
    queue.resume()
    assert len(waiter.result(PATIENCE)) == 1


def test_a_queue_may_be_paused_before_it_has_jobs(world: World) -> None:
    queue = world.queue()
    queue.pause()
    queue.enqueue(b"x")
    assert not queue.claim()
    if world.harness.persistent:
        world.reopen()
        queue = world.queue()
        assert not queue.claim()
    queue.resume()
    assert queue.claim()


def test_other_queues_go_on(store: Store) -> None:
    a, b = store.queue("a"), store.queue("b")
    fill(a, 1)
    fill(b, 1)
    a.pause()
    assert not a.claim()
    assert b.claim()
