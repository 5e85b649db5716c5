"""Enqueue: jobs are stored unchanged, a batch atomically, and queues and tenants are independent."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.errors import InvalidArgument, LeaseLost, QueueFull, TooLarge
from tenure.model.job import MAX_PAYLOAD, NewJob
from tenure.model.retry import Policy
from tenure.testing.conformance.world import (
    World,
    all_events,
    claim_all,
    claimed,
    event_types,
    fill,
    footprint,
    ids,
    nothing_written,
    seen,
)


def test_enqueue_keeps_everything_it_was_given(queue: Queue) -> None:
    added = queue.enqueue(b"hello", priority=5, key="order-17", max_attempts=3, headers={"trace": "abc", "ü": "é"})
    assert not added.duplicate
    job = seen(queue, added.id)
    assert (job.id, job.tenant, job.queue) == (added.id, "default", "work")
    assert (job.state, job.payload, job.priority, job.key) == ("ready", b"hello", 5, "order-17")
    assert (job.attempt, job.max_attempts, job.replays) == (0, 3, 0)
    assert job.headers == {"trace": "abc", "ü": "é"}
    assert job.visible_at_ms == job.created_at_ms
    assert (job.ended_at, job.reason, job.error, job.result, job.progress) == (None, None, None, None, None)
    assert (job.lease_id, job.lease_until_ms, job.worker) == (None, None, None)
    delivery = claimed(queue)
    assert (delivery.payload, delivery.headers, delivery.key) == (b"hello", {"trace": "abc", "ü": "é"}, "order-17")


def test_ids_are_uuids_of_version_7_that_grow(queue: Queue) -> None:
    made = [queue.enqueue(b"").id for _ in range(20)] + fill(queue, 20)
    assert len(set(made)) == 40
    assert made == sorted(made)
    for job_id in made:
        assert len(job_id) == 32
        assert uuid.UUID(job_id).version == 7
        assert uuid.UUID(job_id).hex == job_id


def test_get_takes_an_id_with_dashes_or_without(queue: Queue) -> None:
    job_id = queue.enqueue(b"x").id
    assert queue.get(str(uuid.UUID(job_id))) == queue.get(job_id) == queue.get(job_id.upper())


def test_the_default_max_attempts_is_the_policys(world: World) -> None:
    queue = world.queue(policy=Policy(max_attempts=7))
    job_id = queue.enqueue(b"x").id
    assert seen(queue, job_id).max_attempts == 7
    assert claimed(queue).max_attempts == 7


def test_enqueue_many_answers_in_order(queue: Queue) -> None:
    added = queue.enqueue_many([b"a", NewJob(b"b", priority=3), b"c", NewJob(b"d", delay=60)])
    assert [seen(queue, e.id).payload for e in added] == [b"a", b"b", b"c", b"d"]
    assert [seen(queue, e.id).state for e in added] == ["ready", "ready", "ready", "scheduled"]
    assert seen(queue, added[1].id).priority == 3


def test_enqueue_many_of_nothing_writes_nothing(store: Store, queue: Queue) -> None:
    with nothing_written(store):
        assert queue.enqueue_many([]) == []


def test_enqueue_takes_a_new_job_too(queue: Queue) -> None:
    added = queue.enqueue(NewJob(b"x", priority=4, headers={"a": "b"}))
    job = seen(queue, added.id)
    assert (job.payload, job.priority, job.headers) == (b"x", 4, {"a": "b"})


def test_a_large_batch_is_kept_whole_and_in_order(store: Store, queue: Queue) -> None:
    made = fill(queue, 2500)
    assert len(set(made)) == 2500
    assert queue.counts().ready == queue.counts().enqueued == 2500
    told = [e.job_id for e in all_events(store) if e.type == "enqueued"]
    assert told == made
    assert ids(claim_all(queue, 2500)) == made


def test_a_bad_job_in_a_batch_keeps_the_whole_batch_out(store: Store, queue: Queue) -> None:
    bad: list[bytes | NewJob] = [NewJob(b"x", priority=10), NewJob(b"x", delay=-1), "text"]  # type: ignore[list-item]
    for job in bad:
        with nothing_written(store), pytest.raises(InvalidArgument):
            queue.enqueue_many([b"good", job, b"good"])
    with nothing_written(store), pytest.raises(TooLarge):
        queue.enqueue_many([b"good", bytes(MAX_PAYLOAD + 1)])


@pytest.mark.parametrize(
    "size", [0, 1, 2**16 - 1, 2**16, 2**16 + 1, 2**17, 2**17 + 1, 2**20, MAX_PAYLOAD], ids=lambda n: f"{n}B"
)
def test_payloads_of_any_size_are_kept(world: World, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    queue = world.queue()
    job_id = queue.enqueue(payload).id
    assert seen(queue, job_id).payload == payload
    if world.harness.persistent:
        world.reopen()
        queue = world.queue()
    delivery = claimed(queue)
    assert delivery.payload == payload
    queue.ack(delivery)
    assert queue.get(job_id) is None


def test_a_payload_over_the_limit_is_refused_and_nothing_written(store: Store, queue: Queue) -> None:
    with nothing_written(store), pytest.raises(TooLarge) as refused:
        queue.enqueue(bytes(MAX_PAYLOAD + 1))
    assert (refused.value.size, refused.value.limit) == (MAX_PAYLOAD + 1, MAX_PAYLOAD)


def test_payloads_are_copied(queue: Queue) -> None:
    payload, headers = bytearray(b"before"), {"a": "before"}
    job_id = queue.enqueue(payload, headers=headers).id  # type: ignore[arg-type]
    payload[:] = b"after!"
    headers["a"] = "after"
    assert seen(queue, job_id).payload == b"before"
    assert seen(queue, job_id).headers == {"a": "before"}


def test_durations_may_be_timedeltas(queue: Queue) -> None:
    job = seen(queue, queue.enqueue(b"x", delay=timedelta(minutes=2)).id)
    assert job.visible_at_ms - job.created_at_ms == 120_000


def test_a_queue_is_made_by_its_first_job(store: Store) -> None:
    queue = store.queue("new-one", tenant="acme")
    assert store.queues() == []
    queue.enqueue(b"x")
    assert [(q.tenant, q.queue) for q in store.queues()] == [("acme", "new-one")]
    assert [e.type for e in all_events(store)] == ["queue_created", "enqueued"]


def test_queues_and_tenants_are_apart(store: Store) -> None:
    # If tenant and queue were joined by a separator, some of these pairs would be equal.
    pairs = [("a", "b"), ("b", "a"), ("a", "b.c"), ("a.b", "c"), ("a-b", "c"), ("a", "b-c"), ("ab", "c"), ("a", "bc")]
    queues = [store.queue(queue, tenant=tenant) for tenant, queue in pairs]
    made = [queue.enqueue(b"%d" % n, key="same").id for n, queue in enumerate(queues)]
    assert len(set(made)) == len(pairs)
    for n, queue in enumerate(queues):
        assert [queue.get(job_id) is not None for job_id in made] == [m == n for m in range(len(pairs))]
        assert not queue.cancel(made[n - 1])
        assert queue.timeline(made[n - 1]) == []
        assert ids(queue.claim(limit=100)) == [made[n]]


def test_a_receipt_settles_in_its_own_queue_only(store: Store) -> None:
    mine, other = store.queue("work", tenant="acme"), store.queue("work", tenant="umbrella")
    mine.enqueue(b"x")
    other.enqueue(b"x")
    delivery = claimed(mine)
    with nothing_written(store):
        with pytest.raises(LeaseLost):
            other.ack(delivery.receipt)
        with pytest.raises(InvalidArgument):
            other.ack(delivery)
        with pytest.raises(LeaseLost):
            other.extend(delivery.receipt, 60)
    mine.ack(delivery.receipt)


def test_queues_lists_a_tenants_own(store: Store) -> None:
    for tenant in ("acme", "umbrella"):
        for name in ("one", "two"):
            store.queue(name, tenant=tenant).enqueue(b"x")
    assert [(q.tenant, q.queue) for q in store.queues("acme")] == [("acme", "one"), ("acme", "two")]
    assert len(store.queues()) == 4
    assert store.queues("nobody") == []
    assert len({q.number for q in store.queues()}) == 4


# ── max_waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_full_queue_refuses_and_writes_nothing(world: World) -> None:
    queue = world.queue(policy=Policy(max_waiting=3))
    queue.enqueue(b"1", delay=60)
    fill(queue, 2)
    with nothing_written(world.store), pytest.raises(QueueFull) as full:
        queue.enqueue(b"4")
    assert (full.value.waiting, full.value.limit) == (3, 3)
    claimed(queue)
    queue.enqueue(b"4")  # a leased job does not wait
    with pytest.raises(QueueFull):
        queue.enqueue(b"5")


def test_a_batch_that_does_not_fit_is_refused_whole(world: World) -> None:
    queue = world.queue(policy=Policy(max_waiting=3))
    fill(queue, 2)
    with nothing_written(world.store), pytest.raises(QueueFull):
        fill(queue, 2)
    fill(queue, 1)


def test_a_job_comes_back_to_a_full_queue(world: World) -> None:
    queue = world.queue(policy=Policy(max_waiting=1))
    queue.enqueue(b"1")
    first = claimed(queue)
    queue.enqueue(b"2")
    queue.nack(first, delay=0)
    assert queue.counts().ready == 2
    with pytest.raises(QueueFull):
        queue.enqueue(b"3")


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_everything_is_there_after_reopening(world: World) -> None:
    queue = world.queue(policy=Policy(max_attempts=2, retention=3600))
    waiting, leased, done, dead, later = (*fill(queue, 4), queue.enqueue(b"later", delay=3600).id)
    by_id = {d.id: d for d in queue.claim(limit=4, lease=300)}
    queue.release(by_id[waiting])
    queue.ack(by_id[done], result=b"result")
    queue.fail(by_id[dead], error="broken")
    queue.progress(by_id[leased], 0.5, "half")
    before = footprint(world.store), [queue.get(i) for i in (waiting, leased, done, dead, later)]
    world.reopen()
    queue = world.queue()
    assert (footprint(world.store), [queue.get(i) for i in (waiting, leased, done, dead, later)]) == before
    queue.ack(by_id[leased])
    assert event_types(queue, leased) == ["enqueued", "claimed", "done"]
