"""Quotas: limits of a tenant's waiting jobs, stored bytes and enqueue rate, over all its queues and verbs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, QuotaExceeded, RateLimited, TenureError
from tenure.model.job import NewJob
from tenure.model.quota import Quota
from tenure.model.rate import Rate
from tenure.model.retry import Backoff, Policy
from tenure.testing.conformance.world import (
    PATIENCE,
    PROMPT,
    World,
    begin,
    claimed,
    each_of,
    fill,
    must_refuse,
    nothing_written,
    sweep_all,
    together,
)
from tenure.testing.harness import backend_of

LARGE = b"x" * 200_000  # in parts


@pytest.fixture
def holding(world: World) -> World:
    """A store that supports quotas."""
    if not world.store.traits.quotas:
        pytest.skip("this store holds no quotas")
    return world


def used(store: Store, tenant: str = "acme") -> tuple[int, int]:
    """A tenant's waiting jobs and stored bytes, by the store's counters."""
    found = store.quotas(tenant)
    assert len(found) == 1
    return found[0].waiting, found[0].bytes


def counted(store: Store, tenant: str = "acme") -> tuple[int, int]:
    """A tenant's waiting jobs and stored bytes, recounted from lists."""
    jobs = weight = 0
    for info in store.queues(tenant):
        queue = store.queue(info.queue, tenant=tenant)
        for state in ("ready", "scheduled", "leased", "done", "dead"):
            page = queue.list(state, limit=1000)
            jobs += len(page.jobs) if state in ("ready", "scheduled") else 0
            weight += sum(len(job.payload) + len(job.result or b"") for job in page.jobs)
    return jobs, weight


def test_a_store_without_quotas_says_so(world: World) -> None:
    if world.store.traits.quotas:
        assert world.store.quotas() == []
        return
    with pytest.raises(InvalidArgument):
        world.store.set_quota("acme", Quota(max_waiting=1))
    assert world.store.quotas() == []


def test_no_more_jobs_wait_than_the_quota_lets_over_all_queues(holding: World) -> None:
    store = holding.store
    store.set_quota("acme", Quota(max_waiting=5))
    one, two = holding.queue("one", "acme"), holding.queue("two", "acme")
    fill(one, 3)
    fill(two, 1)
    with nothing_written(store), pytest.raises(QuotaExceeded) as refused:
        two.enqueue_many([b"x", b"y"])
    assert (refused.value.tenant, refused.value.used, refused.value.limit) == ("acme", 4, 5)
    two.enqueue(b"x")
    with nothing_written(store), pytest.raises(QuotaExceeded):
        one.enqueue(b"y")
    fill(holding.queue("one", "other"), 9)
    fill(holding.queue("one"), 9)
    claimed(one)
    one.enqueue(b"y")
    assert used(store) == counted(store) == (5, 6)


def test_no_more_bytes_wait_than_the_quota_lets(holding: World) -> None:
    store = holding.store
    store.set_quota("acme", Quota(max_bytes=300_000))
    queue = holding.queue("work", "acme")
    queue.enqueue(LARGE)
    with nothing_written(store), pytest.raises(QuotaExceeded):
        queue.enqueue(LARGE)
    queue.enqueue_many([b"y" * 50_000, b"z" * 50_000])
    with pytest.raises(QuotaExceeded):
        queue.enqueue(b"!")
    queue.enqueue(b"")
    assert used(store) == counted(store) == (4, 300_000)
    held = queue.claim(max_bytes=1)
    with nothing_written(store), pytest.raises(QuotaExceeded):
        queue.enqueue(b"!")  # a leased job is stored as before
    queue.ack(held[0])
    queue.enqueue(b"!" * 200_000)
    assert used(store) == counted(store) == (4, 300_000)


def test_results_and_ended_jobs_are_counted(holding: World) -> None:
    """At e286b7d a job left the quota when it was claimed: its result, and the job itself, were not counted."""
    store = holding.store
    store.set_quota("acme", Quota(max_bytes=1000))
    queue = holding.queue("work", "acme", policy=Policy(retention=3600, max_attempts=1))
    queue.enqueue_many([b"x" * 300, b"y" * 300])
    queue.ack(claimed(queue), result=b"r" * 300)
    queue.fail(claimed(queue), "no")
    assert used(store) == counted(store) == (0, 900)
    with nothing_written(store), pytest.raises(QuotaExceeded):
        queue.enqueue(b"z" * 101)
    assert queue.purge("dead") == 1
    assert used(store) == counted(store) == (0, 600)
    queue.enqueue(b"z" * 400)


def test_a_replay_and_a_restore_stop_at_the_quota(holding: World) -> None:
    store = holding.store
    queue = holding.queue("work", "acme", policy=Policy(max_attempts=1))
    fill(queue, 3)
    for delivery in queue.claim(limit=3):
        queue.fail(delivery, "no")
    store.set_quota("acme", Quota(max_waiting=2, max_bytes=100))
    with nothing_written(store), pytest.raises(QuotaExceeded):
        queue.replay()
    assert queue.replay(limit=2).count == 2
    assert used(store) == counted(store)


def test_a_duplicate_takes_nothing_of_the_quota(holding: World) -> None:
    holding.store.set_quota("acme", Quota(max_waiting=1))
    queue = holding.queue("work", "acme")
    first = queue.enqueue(b"x", key="k")
    assert queue.enqueue(b"x", key="k").id == first.id
    assert used(holding.store) == (1, 1)


def test_what_waits_is_counted_through_every_verb(holding: World, clock: ManualClock) -> None:
    store = holding.store
    store.set_quota("acme", Quota(max_waiting=1000, max_bytes=10**9))
    queue = holding.queue("work", "acme", policy=Policy(max_attempts=2, backoff=Backoff.fixed(5), max_leased=20))

    def right() -> None:
        assert used(store) == counted(store)

    sizes = [b"", b"a" * 10, LARGE, b"b" * 70_000]
    queue.enqueue_many([NewJob(sizes[n % 4], key=f"k{n}", priority=n % 3, delay=n % 2) for n in range(16)])
    queue.enqueue(b"mortal", ttl=3)
    queue.enqueue_many([b"c" * n for n in range(20)])
    right()
    deliveries = list(queue.claim(limit=8, lease=60))
    right()
    queue.ack(deliveries[0])
    queue.nack(deliveries[1])
    queue.fail(deliveries[2], "no")
    queue.release(deliveries[3])
    queue.cancel(deliveries[4].id)
    right()
    clock.advance(61)
    right()
    sweep_all(store)
    right()
    queue.cancel(queue.list("ready").jobs[0].id)
    right()
    queue.claim(limit=20, lease=1)
    clock.advance(2)
    queue.claim(limit=1, lease=1000)
    right()
    while claim := queue.claim(limit=20):
        for delivery in claim:
            queue.fail(delivery, "again")
    right()
    assert queue.replay().count > 0
    right()
    queue.pause()
    queue.configure(PROMPT)
    queue.resume()
    queue.enqueue_many([b"d" * 100] * 3)
    right()
    assert queue.purge("ready") > 0
    right()
    assert used(store) == (queue.counts().waiting, counted(store)[1])


def test_what_waits_already_counts_from_the_first(holding: World) -> None:
    queue = holding.queue("work", "acme")
    queue.enqueue_many([b"x" * n for n in range(2500)])
    queue.enqueue(LARGE)
    claimed(queue)
    holding.store.set_quota("acme", Quota(max_waiting=2501))
    assert used(holding.store) == (2500, sum(range(2500)) + 200_000)
    queue.enqueue(b"")
    with pytest.raises(QuotaExceeded):
        queue.enqueue(b"")


def test_jobs_that_are_blocked_already_count_from_the_first(holding: World) -> None:
    queue = holding.queue("work", "acme")
    parent = queue.enqueue(b"parent")
    queue.enqueue(NewJob(b"child", after=[parent]))
    holding.store.set_quota("acme", Quota(max_waiting=3))
    assert used(holding.store) == (2, 11)
    assert holding.store.check().clean
    queue.ack(claimed(queue))
    assert used(holding.store) == (1, 5)


def test_a_quota_set_while_others_write_counts_them_all(live: World) -> None:
    if not live.store.traits.quotas:
        pytest.skip("this store holds no quotas")
    queue = live.queue("work", "acme")
    fill(queue, 3000)
    over: list[bool] = []

    def write() -> None:
        turn = 0
        while not over or turn < 20:
            queue.enqueue_many([b"x" * (turn % 7)] * 3)
            queue.ack_many(queue.claim(limit=2))
            for delivery in queue.claim(limit=1):
                queue.release(delivery)
            turn += 1

    def decide() -> None:
        for _ in range(5):
            live.store.set_quota("acme", Quota(max_waiting=10**6))
            live.store.set_quota("acme", None)
        live.store.set_quota("acme", Quota(max_waiting=10**6))
        over.append(True)

    together([write, write, decide])
    assert used(live.store)[0] == queue.counts().waiting


def test_a_quota_may_be_changed_and_lifted(holding: World) -> None:
    store = holding.store
    queue = holding.queue("work", "acme")
    store.set_quota("acme", Quota(max_waiting=1))
    queue.enqueue(b"x")
    store.set_quota("acme", Quota(max_waiting=2, max_bytes=100, rate="5/s"))
    assert [(q.tenant, q.quota) for q in store.quotas()] == [("acme", Quota(2, 100, Rate(5)))]
    queue.enqueue(b"x")
    with pytest.raises(QuotaExceeded):
        queue.enqueue(b"x")
    store.set_quota("acme", None)
    store.set_quota("acme", None)
    assert store.quotas() == []
    fill(queue, 50)
    store.set_quota("acme", Quota(max_waiting=60))
    assert used(store)[0] == 52


def test_a_lower_quota_takes_nothing_away(holding: World) -> None:
    queue = holding.queue("work", "acme")
    fill(queue, 10)
    holding.store.set_quota("acme", Quota(max_waiting=3))
    assert queue.counts().waiting == 10
    with pytest.raises(QuotaExceeded):
        queue.enqueue(b"x")


def test_a_quota_survives_a_restart(holding: World) -> None:
    holding.store.set_quota("acme", Quota(max_waiting=2, max_bytes=10))
    fill(holding.queue("work", "acme"), 2)
    holding.reopen()
    assert used(holding.store) == (2, 2)
    with pytest.raises(QuotaExceeded):
        holding.queue("work", "acme").enqueue(b"x")


def test_a_deleted_queue_is_counted_once_it_is_created_again(holding: World) -> None:
    queue = holding.queue("work", "acme")
    fill(queue, 1)
    holding.store.delete_queue("work", "acme", force=True)
    holding.store.set_quota("acme", Quota(max_waiting=2))
    assert holding.store.check().clean
    fill(queue, 2)
    assert used(holding.store)[0] == 2
    with pytest.raises(QuotaExceeded):
        queue.enqueue(b"x")


def test_the_quota_is_exact_for_many_who_enqueue_at_once(live: World) -> None:
    if not live.store.traits.quotas:
        pytest.skip("this store holds no quotas")
    live.store.set_quota("acme", Quota(max_waiting=100))

    def add(number: int) -> Callable[[], int]:
        def run() -> int:
            added = 0
            for _ in range(30):
                try:
                    added += len(live.queue(f"q{number % 3}", "acme").enqueue_many([b"x", b"y"]))
                except QuotaExceeded:
                    continue
            return added

        return run

    assert sum(together([add(number) for number in range(6)])) == 100
    assert used(live.store) == (100, 100)


# ── rates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_more_jobs_are_added_than_the_rate_lets(holding: World, clock: ManualClock) -> None:
    store = holding.store
    store.set_quota("acme", Quota(rate="10/s"))
    one, two = holding.queue("one", "acme"), holding.queue("two", "acme")
    fill(one, 6)
    fill(two, 4)
    with nothing_written(store), pytest.raises(RateLimited) as refused:
        fill(one, 3)
    assert refused.value.retry_after == pytest.approx(0.3)
    clock.advance(refused.value.retry_after)
    fill(one, 3)
    with pytest.raises(RateLimited):
        one.enqueue(b"x")
    holding.queue("one").enqueue(b"another tenant's")


def test_a_batch_larger_than_the_bucket_goes_when_it_is_full_and_is_paid_off(
    holding: World, clock: ManualClock
) -> None:
    holding.store.set_quota("acme", Quota(rate="10/s"))
    queue = holding.queue("work", "acme")
    fill(queue, 50)
    clock.advance(4)
    with pytest.raises(RateLimited) as refused:
        queue.enqueue(b"x")
    assert refused.value.retry_after == pytest.approx(0.1)
    clock.advance(0.1)
    queue.enqueue(b"x")


def test_requests_are_drawn_from_their_own_bucket(holding: World, clock: ManualClock) -> None:
    backend = backend_of(holding.store)
    assert backend.draw("acme", 7) == 7
    holding.store.set_quota("acme", Quota(requests="10/s"))
    assert backend.draw("acme", 4) == 4
    assert backend.draw("acme", 20) == 6
    with pytest.raises(RateLimited) as refused:
        backend.draw("acme", 20)
    assert refused.value.retry_after == pytest.approx(0.1)
    clock.advance(0.25)
    assert backend.draw("acme", 20) == 2
    fill(holding.queue("work", "acme"), 50)


# ── arguments, and once ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_refusal_by_quota_is_an_answer_that_stays(holding: World) -> None:
    from tenure.model.names import QueueName
    from tenure.model.request import JobRequest

    holding.store.set_quota("acme", Quota(max_waiting=1))
    queue = holding.queue("work", "acme")
    queue.enqueue(b"x")

    def ask() -> object:
        try:
            return backend_of(holding.store).once(b"r").enqueue(QueueName("acme", "work"), [JobRequest(b"y")])
        except TenureError as error:
            return type(error), str(error), vars(error)

    first = ask()
    assert isinstance(first, tuple)
    assert first[0] is QuotaExceeded
    queue.ack(claimed(queue))
    assert ask() == first


def test_a_repeated_set_quota_does_not_undo_a_later_one(holding: World) -> None:
    backend = backend_of(holding.store)
    fill(holding.queue("work", "acme"), 3)
    backend.once(b"r").set_quota("acme", Quota(max_waiting=5))
    holding.store.set_quota("acme", Quota(max_waiting=7))
    backend.once(b"r").set_quota("acme", Quota(max_waiting=5))
    assert holding.store.quotas()[0].quota == Quota(max_waiting=7)


def test_a_bad_quota_is_refused(holding: World, queue: Queue) -> None:
    store = holding.store
    queue.enqueue(b"x")
    bad: list[Callable[[], object]] = [
        lambda: Quota(max_waiting=0), lambda: Quota(max_bytes=-1), lambda: Quota(max_waiting=1.5),  # type: ignore[arg-type]
        lambda: Quota(rate="fast"), lambda: Quota(rate=5), lambda: Quota(requests=Rate(0)), lambda: {"max_waiting": 1},  # type: ignore[arg-type]
    ]  # fmt: skip
    must_refuse(store, InvalidArgument, each_of(lambda make: store.set_quota("acme", make()), bad))
    must_refuse(store, InvalidArgument, [lambda: store.set_quota("no/name", Quota(max_waiting=1))])
    assert store.quotas() == []


def test_a_waiting_claim_is_served_under_a_quota(live: World) -> None:
    if not live.store.traits.quotas:
        pytest.skip("this store holds no quotas")
    live.store.set_quota("acme", Quota(max_waiting=3))
    queue = live.queue("work", "acme")
    waits = begin(lambda: queue.claim(wait=PATIENCE))
    queue.enqueue(b"x")
    assert len(waits.result(PATIENCE)) == 1
