"""Races between threads: whatever the order, each job is in one pair of hands and settled once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tenure.errors import LeaseLost, QueueFull
from tenure.model.lease import Delivery
from tenure.model.retry import Backoff, Policy
from tenure.testing.conformance.world import KEEPING, PATIENCE, World, begin, claimed, fill, ids, together


def test_eight_threads_deliver_each_job_once(live: World) -> None:
    total = live.harness.race_jobs
    queue = live.queue()
    made: list[str] = []
    for start in range(0, total, 1000):
        made += fill(queue, min(1000, total - start))

    def work() -> tuple[list[str], list[str | None]]:
        found: list[str] = []
        leases: list[str | None] = []
        while claim := queue.claim(limit=25, lease=300):
            found += ids(claim)
            leases.append(claim.id)
            assert queue.ack_many(claim).lost == []
        return found, leases

    answers = together([work] * 8)
    delivered = [job_id for found, _ in answers for job_id in found]
    assert len(delivered) == total
    assert set(delivered) == set(made)
    leases = [lease for _, more in answers for lease in more]
    assert len(set(leases)) == len(leases)
    report = live.store.check()
    assert (report.jobs, report.leases) == (0, 0)


def test_claims_at_once_are_disjoint(live: World) -> None:
    queue = live.queue()
    made = fill(queue, 64)
    claims = together([lambda: queue.claim(limit=8)] * 8)
    assert [len(claim) for claim in claims] == [8] * 8
    assert sorted(job_id for claim in claims for job_id in ids(claim)) == sorted(made)
    assert len({claim.id for claim in claims}) == 8


def test_claims_at_once_with_one_id_are_one_claim(live: World) -> None:
    queue = live.queue()
    fill(queue, 50)
    for turn in range(5):
        claims = together([partial(queue.claim, limit=5, id=f"c{turn}")] * 8)
        assert len({claim.id for claim in claims}) == 1
        assert len({tuple(ids(claim)) for claim in claims}) == 1
    assert queue.counts().leased == 25


def _won(action: Callable[[], object]) -> bool:
    """Whether a settling verb took effect."""
    try:
        return action() is not False
    except LeaseLost:
        return False


def test_of_many_settling_one_delivery_one_does(live: World) -> None:
    queue = live.queue(policy=KEEPING)
    for _ in range(15):
        queue.enqueue(b"x", max_attempts=1)
        delivery = claimed(queue)
        receipt = delivery.receipt
        verbs: list[Callable[[], object]] = [
            partial(queue.ack, delivery),
            partial(queue.nack, delivery),
            partial(queue.fail, receipt),
            partial(queue.ack, receipt, b"r"),
        ]
        assert sum(together([partial(_won, verb) for verb in verbs * 2])) == 1
    counts = queue.counts()
    assert counts.done + counts.dead == 15


def test_a_cancel_and_an_ack_do_not_both_succeed(live: World) -> None:
    queue = live.queue(policy=KEEPING)
    cancelled = acked = 0
    for _ in range(25):
        queue.enqueue(b"x")
        delivery = claimed(queue)
        results = together(
            [partial(_won, partial(queue.cancel, delivery.id)), partial(_won, partial(queue.ack, delivery))]
        )
        assert sum(results) == 1
        cancelled += results[0]
        acked += results[1]
    counts = queue.counts()
    assert (counts.removed, counts.done) == (cancelled, acked)


def test_at_the_end_of_a_lease_its_holder_or_the_next_one_wins(live: World) -> None:
    queue = live.queue(policy=Policy(retention=3600, max_attempts=1000))
    for turn in range(10):
        job_id = queue.enqueue(b"x").id
        receipt = claimed(queue, lease=0.02).receipt
        pause = 0.016 + 0.0006 * turn

        def ack_late(receipt: str = receipt, pause: float = pause) -> list[str]:
            time.sleep(pause)
            return ["acked"] if _won(lambda: queue.ack(receipt)) else []

        def take_over() -> list[str]:
            return ids(queue.claim(lease=60, wait=0.08))

        acked, *taken = together([ack_late, take_over, take_over])
        won = [job for claim in taken for job in claim]
        assert won == ([] if acked else [job_id])
        for job in won:
            queue.cancel(job)


def test_a_queues_limit_holds_against_racing_producers(live: World) -> None:
    queue = live.queue(policy=Policy(max_waiting=50))

    def produce() -> int:
        accepted = 0
        for _ in range(20):
            try:
                queue.enqueue(b"x")
                accepted += 1
            except QueueFull:
                pass
        return accepted

    assert sum(together([produce] * 8)) == 50
    assert queue.counts().waiting == 50


def test_waiting_workers_and_racing_producers(live: World) -> None:
    queue = live.queue()
    total = 400
    delivered: list[str] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if len(delivered) >= total:
                    return
            claim = queue.claim(limit=5, lease=60, wait=0.25)
            settled = queue.ack_many(claim)
            assert not settled.lost
            with lock:
                delivered.extend(settled.done)

    workers = [begin(work) for _ in range(6)]

    def produce() -> list[str]:
        made = []
        for n in range(total // 8):
            made.append(queue.enqueue(b"x", delay=0.01 if n % 5 == 0 else 0).id)
            made += fill(queue, 1)
        return made

    made = [job_id for answer in together([produce] * 4) for job_id in answer]
    for worker in workers:
        worker.result(PATIENCE * 2)
    assert sorted(delivered) == sorted(made)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_every_verb(live: World, seed: int) -> None:
    """Threads that do anything to anything: no delivery is given twice, no job settled twice, and all adds up."""
    queue = live.queue(policy=Policy(max_attempts=4, backoff=Backoff.fixed(0.01), retention=3600))
    until = time.monotonic() + 1.2
    deliveries: list[tuple[str, int]] = []
    finals: list[str] = []  # jobs ended by a verb that was told it succeeded

    def settle(rng: random.Random, delivery: Delivery) -> None:
        verb = rng.randrange(10)
        if verb == 0:
            time.sleep(0.01)
        if verb <= 4 and _won(lambda: queue.ack(delivery)):
            finals.append(delivery.id)
        elif verb == 5:
            _won(lambda: queue.nack(delivery, "storm"))
        elif verb == 6:
            _won(lambda: queue.release(delivery))
        elif verb == 7 and queue.cancel(delivery.id):
            finals.append(delivery.id)
        elif verb == 8:
            _won(lambda: queue.extend(delivery, 0.05))

    def work(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        while time.monotonic() < until:
            queue.enqueue_many([b"x"] * rng.randrange(1, 4))
            claim = queue.claim(limit=rng.randrange(1, 6), lease=rng.choice([0.005, 0.02, 30]))
            deliveries.extend((d.id, d.token) for d in claim)
            for delivery in claim:
                settle(rng, delivery)
            if rng.random() < 0.1:
                live.store.sweep()

    together([partial(work, n) for n in range(6)])
    twice = [key for key, n in Counter(deliveries).items() if n > 1]
    assert not twice, f"delivered twice under one token: {twice[:3]}"
    ended_twice = [job_id for job_id, n in Counter(finals).items() if n > 1]
    assert not ended_twice, f"ended twice: {ended_twice[:3]}"
    counts = queue.counts()
    assert counts.done + counts.removed == len(finals)
