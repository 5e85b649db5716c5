"""The sweep: it does what is due and reports it; claims and settles are correct without it."""

from __future__ import annotations

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.model.job import NewJob
from tenure.model.retry import Policy
from tenure.testing.conformance.world import World, claimed, eventually, fill, kill, nothing_written, seen


def test_a_sweep_with_nothing_due_writes_nothing(store: Store, queue: Queue) -> None:
    with nothing_written(store):
        assert store.sweep().total == 0
    fill(queue, 3)
    queue.enqueue(b"later", delay=60, ttl=600, key="k")
    queue.claim(lease=60, id="c1")
    kill(store.queue("other"), 1)
    with nothing_written(store):
        swept = store.sweep()
        assert (swept.total, swept.more) == (0, False)


def test_a_sweep_says_what_it_did(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(retention=20, dedup_window=20))
    queue.enqueue(b"done", key="k")
    queue.ack(claimed(queue))
    queue.enqueue_many([NewJob(b"1", max_attempts=1), NewJob(b"2"), NewJob(b"3")])
    queue.claim(limit=2, lease=10)
    queue.claim(limit=1, lease=15)
    queue.enqueue(b"short", ttl=10)
    clock.advance(10.001)
    swept = world.store.sweep()
    assert (swept.leases, swept.jobs_back, swept.jobs_dead, swept.ttl_passed, swept.retired) == (1, 1, 1, 1, 0)
    clock.advance(20)
    swept = world.store.sweep()
    assert (swept.leases, swept.jobs_back, swept.retired, swept.keys_forgotten) == (1, 1, 1, 1)
    assert (queue.counts().ready, queue.counts().dead, queue.counts().removed) == (2, 1, 2)


def test_sweeping_twice_is_sweeping_once(store: Store, queue: Queue, clock: ManualClock) -> None:
    fill(queue, 3)
    queue.claim(limit=3, lease=10)
    clock.advance(11)
    assert store.sweep().jobs_back == 3
    with nothing_written(store):
        assert store.sweep().total == 0


def test_a_pass_is_bounded_and_says_if_more_is_left(store: Store, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_many([NewJob(b"x", ttl=10)] * 6000)
    clock.advance(11)
    passes = 0
    while store.sweep().more:
        passes += 1
        assert passes < 1000
    assert queue.counts().removed == 6000


def test_the_sweeper_in_the_background(live: World) -> None:
    live.store.close()
    live.store = live._open(sweep=True)
    queue = live.queue(policy=Policy(retention=0.3))
    back = queue.enqueue(b"back").id
    claimed(queue, lease=0.2, worker="gone")
    dead = queue.enqueue(b"dead", max_attempts=1, priority=9).id
    claimed(queue, lease=0.2, worker="gone")
    done = queue.enqueue(b"done", priority=9).id
    queue.ack(claimed(queue))
    short = queue.enqueue(b"short", ttl=0.2).id
    assert eventually(lambda: seen(queue, back).state == "ready")
    assert eventually(lambda: seen(queue, dead).state == "dead")
    assert eventually(lambda: queue.get(done) is None)
    assert eventually(lambda: queue.get(short) is None)
