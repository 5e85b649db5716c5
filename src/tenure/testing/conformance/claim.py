"""Claim: one lease over up to `limit` jobs of one queue; each job has one holder."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, LeaseLost
from tenure.model.job import NewJob
from tenure.model.lease import MAX_CLAIM
from tenure.model.retry import Policy
from tenure.testing.conformance.world import World, claimed, fill, ids, nothing_written, seen


def test_a_delivery_says_what_it_is(store: Store) -> None:
    queue = store.queue("emails", tenant="acme")
    added = queue.enqueue(b"hello", priority=5, max_attempts=3, headers={"trace": "1"})
    claim = queue.claim(limit=10, lease=30, worker="w1")
    (delivery,) = claim
    assert (delivery.id, delivery.payload, delivery.priority, delivery.attempt) == (added.id, b"hello", 5, 1)
    assert (delivery.tenant, delivery.queue, delivery.max_attempts) == ("acme", "emails", 3)
    assert delivery.headers == {"trace": "1"}
    job = seen(queue, added.id)
    assert delivery.created_at == job.created_at
    assert (job.state, job.attempt, job.token, job.worker) == ("leased", 1, delivery.token, "w1")
    assert job.lease_id == claim.id == delivery.lease.hex()
    assert claim.until is not None
    assert job.lease_until_ms == round(claim.until.timestamp() * 1000)


def test_a_claim_on_an_empty_queue_is_empty_and_writes_nothing(store: Store, queue: Queue) -> None:
    with nothing_written(store):
        claim = queue.claim(limit=10)
        assert not claim
        assert (len(claim), list(claim), claim.id, claim.until) == (0, [], None, None)
    assert store.queues() == []
    queue.enqueue(b"x", delay=60)
    with nothing_written(store):
        assert not queue.claim()


def test_a_claim_takes_up_to_its_limit(queue: Queue) -> None:
    made = fill(queue, 5)
    assert ids(queue.claim(limit=3)) == made[:3]
    assert ids(queue.claim(limit=3)) == made[3:]
    assert not queue.claim(limit=3)


def test_claims_are_disjoint_and_their_leases_distinct(queue: Queue) -> None:
    made = fill(queue, 60)
    claims = [queue.claim(limit=20, worker="the same") for _ in range(3)]
    assert sorted(job_id for claim in claims for job_id in ids(claim)) == sorted(made)
    assert len({claim.id for claim in claims}) == 3
    for claim in claims:
        assert len({d.lease for d in claim}) == 1


def test_many_leased_jobs_in_front_hide_none_behind(queue: Queue) -> None:
    made = fill(queue, 400)
    assert len(queue.claim(limit=399)) == 399
    assert ids(queue.claim()) == made[399:]


def test_the_largest_claim(queue: Queue) -> None:
    assert MAX_CLAIM == 10_000
    fill(queue, 1500)
    assert len(queue.claim(limit=MAX_CLAIM)) == 1500


def test_the_policys_lease_is_the_default(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(lease=7))
    fill(queue, 2)
    first, second = claimed(queue), claimed(queue, lease=60)
    clock.advance(7.001)
    with pytest.raises(LeaseLost):
        queue.ack(first)
    queue.ack(second)
    assert seen(queue, first.id).state in {"leased", "ready"}
    assert claimed(queue).id == first.id


def test_a_lease_may_be_a_timedelta(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"x")
    queue.claim(lease=timedelta(minutes=1))
    clock.advance(59.999)
    assert not queue.claim()
    clock.advance(0.002)
    assert queue.claim()


def test_no_lease_is_short_by_a_millisecond(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 2)
    first = queue.claim(lease=1.5)
    clock.advance(1.499)
    queue.ack(first[0])
    second = queue.claim(lease=0.0001)  # rounded up, never down to nothing
    assert second.until is not None
    assert seen(queue, second[0].id).lease_until_ms == seen(queue, second[0].id).visible_at_ms + 1499 + 1
    queue.ack(second[0])


def test_at_its_end_a_lease_is_its_holders_or_the_next_claims(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"x")
    first = claimed(queue, lease=10)
    clock.advance(10)
    if second := queue.claim():
        with pytest.raises(LeaseLost):
            queue.ack(first)
        queue.ack(second[0])
    else:
        queue.ack(first)


def test_any_claim_finds_an_expired_lease(queue: Queue, clock: ManualClock) -> None:
    made = fill(queue, 3)
    queue.claim(limit=3, lease=10, worker="gone")
    clock.advance(10.001)
    again = queue.claim(limit=10, worker="next")
    assert sorted(ids(again)) == sorted(made)
    assert [d.attempt for d in again] == [2, 2, 2]


def test_more_expired_leases_than_one_claim_takes_over(queue: Queue, clock: ManualClock) -> None:
    made = fill(queue, 450)
    for _ in made:
        queue.claim(lease=5)
    clock.advance(6)
    found: list[str] = []
    while claim := queue.claim(limit=1000, lease=600):
        found += ids(claim)
    assert sorted(found) == sorted(made)


@pytest.mark.parametrize("by", ["claim", "sweep"])
@pytest.mark.parametrize(("first", "second"), [(20, 10), (10, 20), (10, 10)])
def test_two_leases_over_the_same_job_expire_at_once(
    store: Store, queue: Queue, clock: ManualClock, by: str, first: float, second: float
) -> None:
    made = fill(queue, 3)
    earlier = queue.claim(limit=3, lease=first)
    queue.release(earlier[0])
    queue.nack(earlier[1], delay=0)
    assert sorted(ids(queue.claim(limit=2, lease=second))) == sorted(made[:2])
    clock.advance(20.001)
    if by == "sweep":
        assert store.sweep().jobs_back == 3
    again = queue.claim(limit=10)
    assert {d.id: d.attempt for d in again} == {made[0]: 2, made[1]: 3, made[2]: 2}


def test_expired_leases_of_other_queues_do_not_keep_a_claim_from_its_own(store: Store, clock: ManualClock) -> None:
    busy, quiet = store.queue("busy"), store.queue("quiet")
    for _ in fill(busy, 450):
        busy.claim(lease=5)
    quiet_id = quiet.enqueue(b"x").id
    quiet.claim(lease=5.5)
    clock.advance(6)
    found: list[str] = []
    for _ in range(5):  # the work of one claim is bounded, so a few may be needed
        found += ids(quiet.claim())
        if found:
            break
    assert found == [quiet_id]


def test_tokens_grow_with_every_delivery(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(b"x", max_attempts=100).id
    tokens = []
    for turn in range(9):
        delivery = claimed(queue, lease=5)
        assert delivery.id == job_id
        tokens.append(delivery.token)
        if turn % 3 == 0:
            queue.nack(delivery, delay=0)
        elif turn % 3 == 1:
            queue.release(delivery)
        else:
            clock.advance(5.001)
    assert tokens == sorted(set(tokens)), "a token was given twice, or a smaller one later"


# ── max_bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_max_bytes_bounds_what_a_claim_carries(queue: Queue) -> None:
    made = [e.id for e in queue.enqueue_many([bytes(100)] * 5)]
    assert ids(queue.claim(limit=5, max_bytes=250)) == made[:2]
    assert ids(queue.claim(limit=5, max_bytes=100)) == made[2:3]
    assert ids(queue.claim(limit=5, max_bytes=10_000)) == made[3:]


def test_a_job_larger_than_max_bytes_is_delivered_alone(queue: Queue) -> None:
    made = [e.id for e in queue.enqueue_many([bytes(1000), bytes(10)])]
    assert ids(queue.claim(limit=5, max_bytes=50)) == made[:1]
    assert ids(queue.claim(limit=5, max_bytes=50)) == made[1:]


# ── with ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_leaving_a_claim_releases_what_is_not_settled(queue: Queue) -> None:
    made = fill(queue, 3)
    with queue.claim(limit=3) as claim:
        queue.ack(claim[1])
    assert queue.counts().leased == 0
    again = queue.claim(limit=3)
    assert ids(again) == [made[0], made[2]]
    assert [d.attempt for d in again] == [1, 1]


def test_leaving_a_claim_by_an_error_releases_too(queue: Queue) -> None:
    queue.enqueue(b"x")
    with pytest.raises(ZeroDivisionError), queue.claim():
        raise ZeroDivisionError
    assert queue.counts().ready == 1


def test_leaving_a_claim_that_expired_takes_nothing_from_the_next_holder(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"x")
    with queue.claim(lease=5):
        clock.advance(6)
        second = claimed(queue)
    queue.ack(second)


def test_leaving_an_empty_claim_is_nothing(store: Store, queue: Queue) -> None:
    with nothing_written(store), queue.claim() as claim:
        assert not claim


# ── several queues ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_several_queues_take_turns(store: Store) -> None:
    names = ["a", "b", "c"]
    for name in names:
        fill(store.queue(name), 4)
    taken = []
    for _ in range(12):
        claim = store.claim(names, limit=1)
        assert len(claim) == 1
        taken.append(claim[0].queue)
    for turn in range(0, 12, 3):
        assert sorted(taken[turn : turn + 3]) == names
    assert not store.claim(names)


def test_a_claim_of_several_queues_is_from_one(store: Store) -> None:
    a, b = store.queue("a"), store.queue("b", tenant="acme")
    fill(a, 3)
    fill(b, 3)
    claims = [store.claim([a, b], limit=10) for _ in range(2)]
    assert sorted(len({d.name for d in claim}) for claim in claims) == [1, 1]
    assert {claim[0].name for claim in claims} == {a.name, b.name}
    for claim in claims:
        assert claim.queue.ack_many(claim).lost == []


def test_several_queues_skip_the_empty_and_the_paused(store: Store) -> None:
    a, b, c = (store.queue(name) for name in "abc")
    fill(b, 1)
    b.pause()
    made = fill(c, 2)
    assert ids(store.claim([a, b, c])) + ids(store.claim([a, b, c])) == made
    with nothing_written(store):
        assert not store.claim([a, b, c])


def test_several_queues_are_at_least_one(store: Store) -> None:
    with nothing_written(store), pytest.raises(InvalidArgument):
        store.claim([])


# ── idempotent claims ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_repeated_claim_gives_the_same_jobs(store: Store, queue: Queue) -> None:
    fill(queue, 5)
    first = queue.claim(limit=3, lease=30, id="c1")
    with nothing_written(store):
        again = queue.claim(limit=3, lease=30, id="c1")
    assert again.id == first.id
    assert list(again) == list(first)
    assert again.until == first.until
    for delivery in again:
        queue.ack(delivery)


def test_a_repeated_claim_gives_what_is_still_open(queue: Queue) -> None:
    made = fill(queue, 6)
    first = queue.claim(limit=4, id="c1")
    queue.ack(first[0])
    queue.nack(first[1], delay=0)
    queue.cancel(first[2].id)
    assert ids(queue.claim(limit=4, id="c1")) == [made[3]]


def test_a_repeated_claim_does_not_extend(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"x")
    first = queue.claim(lease=30, id="c1")
    clock.advance(20)
    assert queue.claim(lease=30, id="c1").until == first.until
    clock.advance(10.001)
    with pytest.raises(LeaseLost):
        queue.ack(first[0])


def test_a_repeated_claim_is_empty_once_all_is_settled(store: Store, queue: Queue) -> None:
    fill(queue, 5)
    first = queue.claim(limit=3, id="c1")
    queue.ack(first[0])
    queue.fail(first[1])
    queue.release(first[2])
    with nothing_written(store):
        assert not queue.claim(limit=3, id="c1")


@pytest.mark.parametrize("meanwhile", ["nothing", "swept", "taken", "done"])
def test_a_repeated_claim_that_expired_is_lost(store: Store, queue: Queue, clock: ManualClock, meanwhile: str) -> None:
    fill(queue, 2)
    queue.claim(lease=30, id="c1")
    clock.advance(30.001)
    if meanwhile == "swept":
        store.sweep()
    if meanwhile in {"taken", "done"}:
        other = queue.claim(limit=2)
        assert len(other) == 2
        if meanwhile == "done":
            queue.ack_many(other)
    with pytest.raises(LeaseLost):
        queue.claim(lease=30, id="c1")


def test_a_repeated_claim_must_ask_for_the_same(store: Store, queue: Queue) -> None:
    fill(queue, 5)
    queue.claim(limit=2, lease=30, id="c1")
    with nothing_written(store):
        for other in ({"limit": 3, "lease": 30}, {"limit": 2, "lease": 31}, {"limit": 2}):
            with pytest.raises(InvalidArgument):
                queue.claim(id="c1", **other)  # type: ignore[arg-type]


def test_an_empty_claim_is_not_remembered(store: Store, queue: Queue) -> None:
    with nothing_written(store):
        assert not queue.claim(id="c1")
    job_id = queue.enqueue(b"x").id
    assert ids(queue.claim(id="c1")) == [job_id]


def test_a_claims_id_belongs_to_its_queue(store: Store) -> None:
    a, b = store.queue("work", tenant="a"), store.queue("work", tenant="b")
    fill(a, 1)
    made = fill(b, 1)
    a.claim(id="c1")
    assert ids(b.claim(id="c1")) == made


def test_a_claim_is_remembered_for_a_day(store: Store, queue: Queue, clock: ManualClock) -> None:
    queue.enqueue(b"1")
    queue.ack(queue.claim(id="c1")[0])
    queue.enqueue(b"2")
    clock.advance(23 * 3600)
    store.sweep()
    assert not queue.claim(id="c1")
    clock.advance(2 * 3600)
    store.sweep()
    assert queue.claim(id="c1")


def test_a_repeated_claim_is_known_after_reopening(world: World) -> None:
    made = fill(world.queue(), 4)
    first = world.queue().claim(limit=2, id="c1")
    world.reopen()
    again = world.queue().claim(limit=2, id="c1")
    assert list(again) == list(first)
    assert ids(again) == made[:2]


def test_a_claim_without_an_id_is_never_repeated(queue: Queue) -> None:
    made = fill(queue, 2)
    assert ids(queue.claim()) + ids(queue.claim()) == made


def test_jobs_of_one_batch_may_differ(queue: Queue) -> None:
    queue.enqueue_many([NewJob(b"1", max_attempts=1), NewJob(b"2", max_attempts=2, headers={"n": "2"})])
    first, second = queue.claim(limit=2)
    assert (first.max_attempts, first.headers) == (1, {})
    assert (second.max_attempts, second.headers) == (2, {"n": "2"})
