"""claim(wait=…): a waiting claim is woken by every event that can serve it, and holds nothing until then."""

from __future__ import annotations

import threading
import time

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import StoreClosed
from tenure.model.lease import ClaimRequest
from tenure.testing.conformance.world import (
    MOMENT,
    PATIENCE,
    PROMPT,
    World,
    begin,
    eventually,
    fill,
    ids,
    kill,
    nothing_written,
    result_when_due,
    still_waiting,
    waiting,
)


def test_no_wait_means_now(live: World) -> None:
    started = time.monotonic()
    assert not live.queue().claim()
    assert not live.queue().claim(wait=0)
    assert time.monotonic() - started < 20


def test_a_wait_ends_in_time(live: World) -> None:
    started = time.monotonic()
    assert not live.queue().claim(wait=0.3)
    assert 0.29 < time.monotonic() - started < 20


def test_a_wait_that_ends_with_nothing_writes_nothing(store: Store, queue: Queue, clock: ManualClock) -> None:
    fill(queue, 1)
    queue.claim(lease=3600)
    with nothing_written(store):
        waiter = waiting(queue, seconds=30)
        assert still_waiting(waiter)
        clock.advance(30)
        assert not result_when_due(waiter, clock, 30)


def test_a_wait_with_jobs_there_is_no_wait(live: World) -> None:
    queue = live.queue()
    fill(queue, 1)
    started = time.monotonic()
    assert len(queue.claim(limit=10, wait=60)) == 1, "a claim waits for its first job, not for its limit"
    assert time.monotonic() - started < 30


def test_an_enqueue_wakes(live: World) -> None:
    queue = live.queue()
    waiter = waiting(queue)
    assert still_waiting(waiter)
    job_id = queue.enqueue(b"x").id
    assert ids(waiter.result(PATIENCE)) == [job_id]


def test_a_first_enqueue_wakes_who_waits_on_a_queue_that_is_not_there(store: Store, queue: Queue) -> None:
    waiter = waiting(queue)
    assert store.queues() == []
    job_id = queue.enqueue(b"x").id
    assert ids(waiter.result(PATIENCE)) == [job_id]


def test_a_job_becoming_due_wakes(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(b"x", delay=10).id
    waiter = waiting(queue)
    clock.advance(9.999)
    assert still_waiting(waiter), "it was served a millisecond early"
    clock.advance(0.001)
    assert ids(waiter.result(PATIENCE)) == [job_id]


def test_a_job_becoming_due_wakes_by_the_machines_clock(live: World) -> None:
    queue = live.queue()
    started = time.monotonic()
    job_id = queue.enqueue(b"x", delay=0.4).id
    assert ids(queue.claim(wait=PATIENCE)) == [job_id]
    assert 0.39 < time.monotonic() - started < PATIENCE / 2


@pytest.mark.parametrize("how", ["released", "nacked", "nacked later", "expired", "resumed", "replayed", "left"])
def test_a_job_coming_back_wakes(world: World, clock: ManualClock, how: str) -> None:
    queue = world.queue(policy=PROMPT)
    if how == "replayed":
        (job_id,) = kill(queue, 1)
    else:
        job_id = queue.enqueue(b"x").id
    if how == "resumed":
        queue.pause()
    claim = queue.claim(lease=20)
    waiter = waiting(queue, seconds=600)
    assert still_waiting(waiter)
    if how == "released":
        queue.release(claim[0])
    elif how == "nacked":
        queue.nack(claim[0])
    elif how == "nacked later":
        queue.nack(claim[0], delay=50)
        clock.advance(49.999)
        assert still_waiting(waiter)
        clock.advance(0.001)
    elif how == "expired":
        clock.advance(20.001)
    elif how == "resumed":
        queue.resume()
    elif how == "replayed":
        queue.replay()
    elif how == "left":
        with claim:
            pass
    assert ids(waiter.result(PATIENCE)) == [job_id]


def test_every_waiter_that_can_be_served_wakes(queue: Queue) -> None:
    waiters = [waiting(queue) for _ in range(4)]
    made = fill(queue, 4)
    served = [ids(waiter.result(PATIENCE)) for waiter in waiters]
    assert sorted(job_id for claim in served for job_id in claim) == sorted(made)
    assert [len(claim) for claim in served] == [1, 1, 1, 1]


def test_every_waiter_wakes_when_several_jobs_become_due_at_once(queue: Queue, clock: ManualClock) -> None:
    made = [queue.enqueue(b"x", delay=10).id for _ in range(4)]
    waiters = [waiting(queue) for _ in range(4)]
    clock.advance(10)
    assert sorted(job_id for waiter in waiters for job_id in ids(waiter.result(PATIENCE))) == sorted(made)


def test_a_waiter_that_loses_the_race_waits_on(queue: Queue, clock: ManualClock) -> None:
    waiters = [waiting(queue, seconds=100) for _ in range(2)]
    queue.enqueue(b"1")
    assert eventually(lambda: any(waiter.done() for waiter in waiters))
    time.sleep(MOMENT)
    assert sum(waiter.done() for waiter in waiters) == 1
    queue.enqueue(b"2")
    assert sorted(len(waiter.result(PATIENCE)) for waiter in waiters) == [1, 1]


def test_waiters_of_one_queue_are_not_served_from_another(store: Store) -> None:
    a, b = store.queue("a"), store.queue("b")
    waiter = waiting(a)
    b.enqueue(b"x")
    assert still_waiting(waiter)
    made = fill(a, 1)
    assert ids(waiter.result(PATIENCE)) == made
    assert b.counts().ready == 1


def test_an_earlier_job_added_while_waiting_for_a_later_one_is_served_when_due(
    queue: Queue, clock: ManualClock
) -> None:
    later = queue.enqueue(b"later", delay=50).id
    waiter = waiting(queue, seconds=600)
    earlier = queue.enqueue(b"earlier", delay=10).id
    assert still_waiting(waiter)
    clock.advance(9.999)
    assert still_waiting(waiter)
    clock.advance(0.001)
    assert ids(waiter.result(PATIENCE)) == [earlier]
    clock.advance(40)
    assert ids(queue.claim()) == [later]


def test_one_last_look_at_the_deadline(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(b"x", delay=10).id
    waiter = waiting(queue, seconds=10)
    clock.advance(10)
    assert ids(waiter.result(PATIENCE)) == [job_id]


def test_a_lease_ending_at_the_deadline_is_seen(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(b"x").id
    queue.claim(lease=9.999)
    waiter = waiting(queue, seconds=10)
    clock.advance(10)
    assert ids(waiter.result(PATIENCE)) == [job_id]


def test_waiting_on_several_queues(store: Store) -> None:
    names = ["a", "b", "c"]
    waiter = begin(lambda: store.claim(names, wait=60))
    assert still_waiting(waiter)
    job_id = store.queue("c").enqueue(b"x").id
    claim = waiter.result(PATIENCE)
    assert ids(claim) == [job_id]
    claim.queue.ack(claim[0])


def test_waiting_with_an_id(queue: Queue) -> None:
    waiter = begin(lambda: queue.claim(wait=60, id="c1"))
    assert still_waiting(waiter)
    job_id = queue.enqueue(b"x").id
    assert ids(waiter.result(PATIENCE)) == [job_id]
    assert ids(queue.claim(wait=60, id="c1")) == [job_id]


def test_a_caller_gone_while_waiting_leaves_nothing_leased(store: Store, queue: Queue) -> None:
    gone = threading.Event()
    waiter = begin(lambda: store.backend.claim([queue.name], ClaimRequest(limit=1, wait_ms=600_000), gone))
    assert still_waiting(waiter)
    gone.set()
    assert waiter.result(PATIENCE) is None
    job_id = queue.enqueue(b"x").id
    time.sleep(MOMENT)
    assert queue.counts().leased == 0
    assert ids(queue.claim()) == [job_id]


def test_closing_ends_every_wait_and_leaves_nothing_leased(world: World) -> None:
    queue = world.queue()
    queue.enqueue(b"x", delay=3600)
    claim_waiter, job_waiter = waiting(queue, seconds=600), begin(lambda: queue.wait_for("0" * 32, timeout=600))
    page_waiter = begin(lambda: world.store.events(after=world.store.events().cursor, wait=600))
    assert job_waiter.result(PATIENCE) is None, "an unknown job is not waited for"
    time.sleep(MOMENT)
    world.store.close()
    with pytest.raises(StoreClosed):
        claim_waiter.result(PATIENCE)
    with pytest.raises(StoreClosed):
        page_waiter.result(PATIENCE)
    if not world.harness.persistent:
        world.store = world._open()
    else:
        world.reopen()
        assert world.queue().counts().leased == 0
        assert world.queue().counts().scheduled == 1
