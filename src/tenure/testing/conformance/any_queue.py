"""claim_any: tenants take turns, and the queues of each tenant take turns; empty queues cost nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, LeaseLost
from tenure.model.group import GroupPolicy
from tenure.model.job import NewJob
from tenure.model.retry import Policy
from tenure.testing.conformance.world import PATIENCE, World, begin


@pytest.fixture
def anywhere(world: World) -> Store:
    """A store that supports `claim_any`."""
    if not world.store.traits.any_queue:
        pytest.skip("this store claims from queues that are named")
    return world.store


def test_a_store_that_cannot_claim_from_any_queue_says_so(world: World) -> None:
    if world.store.traits.any_queue:
        assert not world.store.claim_any()
    else:
        with pytest.raises(InvalidArgument):
            world.store.claim_any()


def _claim_all(store: Store, **which: object) -> list[tuple[str, str]]:
    """The queue of each job, claimed one after another until there is none."""
    served: list[tuple[str, str]] = []
    while True:
        claim = store.claim_any(**which)  # type: ignore[arg-type]  # as the caller chose
        if not claim:
            return served
        served.append(claim.queue.name)
        claim.queue.ack(claim[0])


def test_a_small_tenant_is_served_within_twice_its_share(anywhere: Store) -> None:
    anywhere.queue("all", "big").enqueue_many([b"x"] * 100)
    for n in range(10):
        anywhere.queue("one", f"small{n}").enqueue(b"x")
    served = _claim_all(anywhere)
    places = [at for at, (tenant, _) in enumerate(served) if tenant != "big"]
    assert len(places) == 10
    assert max(places) < 2 * 11
    assert len(served) == 110


def test_the_queues_of_a_tenant_take_turns(anywhere: Store) -> None:
    for queue, count in (("a", 6), ("b", 3), ("c", 1)):
        anywhere.queue(queue).enqueue_many([b"%d" % n for n in range(count)])
    served = [queue for _, queue in _claim_all(anywhere)]
    assert sorted(served[:3]) == ["a", "b", "c"]
    assert Counter(served[:6]) == {"a": 3, "b": 2, "c": 1}
    assert served[-3:] == ["a", "a", "a"]


def test_a_batch_counts_as_its_jobs(anywhere: Store) -> None:
    anywhere.queue("batch", "greedy").enqueue_many([b"x"] * 40)
    anywhere.queue("single", "modest").enqueue_many([b"x"] * 40)
    assert len(anywhere.claim_any(10, tenants=["greedy"])) == 10
    turns = [anywhere.claim_any().queue.name.tenant for _ in range(12)]
    assert turns[:9] == ["modest"] * 9, "one tenant got ten jobs at once: the other's turns come first"


def test_a_claim_from_any_queue_is_a_claim_of_its_queue(anywhere: Store) -> None:
    queue = anywhere.queue("emails", "acme")
    queue.enqueue_many([b"1", b"2", b"3"])
    claim = anywhere.claim_any(limit=2, lease=30, worker="w")
    assert claim.queue.name == queue.name
    assert [d.payload for d in claim] == [b"1", b"2"]
    assert queue.get(claim[0].id).worker == "w"  # type: ignore[union-attr]
    queue.ack_many(claim)
    with anywhere.claim_any() as held:
        assert held[0].payload == b"3"
    assert queue.counts().ready == 1, "an unsettled delivery is released"


def test_which_queues_may_serve_is_the_callers_choice(anywhere: Store) -> None:
    for tenant in ("acme", "globex", "initech"):
        for queue in ("a", "b"):
            anywhere.queue(queue, tenant).enqueue(b"x")
    assert set(_claim_all(anywhere, tenants=["acme"], queues=["b"])) == {("acme", "b")}
    assert set(_claim_all(anywhere, queues=["a"])) == {("acme", "a"), ("globex", "a"), ("initech", "a")}
    assert set(_claim_all(anywhere, tenants=["globex", "nobody"])) == {("globex", "b")}
    assert _claim_all(anywhere) == [("initech", "b")]
    for wrong in ({"tenants": "acme"}, {"queues": ["No Name"]}, {"weights": {"acme": 0}}, {"limit": 0}):
        with pytest.raises(InvalidArgument):
            anywhere.claim_any(**wrong)


def test_weights_share_the_turns_under_saturation(anywhere: Store) -> None:
    for tenant in ("one", "two", "four"):
        anywhere.queue("q", tenant).enqueue_many([b"x"] * 500)
    weights = {"one": 1, "two": 2, "four": 4}
    served = Counter(anywhere.claim_any(weights=weights).queue.name.tenant for _ in range(700))
    for tenant, weight in weights.items():
        assert abs(served[tenant] - 100 * weight) <= 5


def test_an_idle_tenant_saves_up_no_turns(anywhere: Store, clock: ManualClock) -> None:
    busy, idle = anywhere.queue("q", "busy"), anywhere.queue("q", "idle")
    busy.enqueue_many([b"x"] * 200)
    idle.enqueue(b"x")
    for _ in range(51):
        assert anywhere.claim_any()
    clock.advance(3600)
    idle.enqueue_many([b"x"] * 100)
    served = Counter(anywhere.claim_any(lease=36000).queue.name.tenant for _ in range(40))
    assert abs(served["idle"] - 20) <= 2


def test_paused_limited_and_later_queues_are_passed_and_come_back(anywhere: Store, clock: ManualClock) -> None:
    paused, limited = anywhere.queue("paused"), anywhere.queue("limited")
    rated, later = anywhere.queue("rated"), anywhere.queue("later")
    limited.configure(Policy(max_leased=1))
    rated.configure(Policy(rate="1/s"))
    for queue in (paused, limited, rated):
        queue.enqueue_many([b"x"] * 2)
    later.enqueue(b"x", delay=60)
    paused.pause()
    first = [anywhere.claim_any(lease=3600) for _ in range(2)]
    assert {claim.queue.name.queue for claim in first} == {"limited", "rated"}
    assert not anywhere.claim_any()
    paused.resume()
    assert anywhere.claim_any(lease=3600).queue.name == paused.name
    held = next(claim for claim in first if claim.queue.name == limited.name)
    limited.ack(held[0])
    assert {anywhere.claim_any(lease=3600).queue.name.queue for _ in range(2)} == {"limited", "paused"}
    assert not anywhere.claim_any()
    clock.advance(1.5)
    assert anywhere.claim_any(lease=3600).queue.name == rated.name
    assert not anywhere.claim_any()
    clock.advance(60)
    assert anywhere.claim_any(lease=3600).queue.name == later.name
    assert not anywhere.claim_any()
    limited.configure(Policy(max_leased=2))
    limited.enqueue(b"x")
    assert anywhere.claim_any().queue.name == limited.name


@pytest.mark.parametrize("reopened", [False, True])
def test_a_queue_at_its_limit_comes_back_when_its_leases_expire(
    world: World, anywhere: Store, clock: ManualClock, reopened: bool
) -> None:
    """Its jobs become ready, and it is no longer held up, in one transaction."""
    queue = anywhere.queue("limited")
    queue.configure(Policy(max_leased=1))
    queue.enqueue_many([b"1", b"2"])
    assert len(anywhere.claim_any(lease=5)) == 1
    assert not anywhere.claim_any()
    store = world.reopen() if reopened else anywhere
    clock.advance(30)
    assert len(store.claim_any(lease=5)) == 1
    assert not store.claim_any()
    clock.advance(30)
    store.sweep()
    assert len(store.claim_any(lease=5)) == 1


def test_a_queue_whose_job_is_due_is_not_put_off_by_a_later_job(anywhere: Store, clock: ManualClock) -> None:
    """No claim has met the first one since it is due."""
    queue = anywhere.queue("q")
    queue.enqueue(b"first", delay=10)
    assert not anywhere.claim_any()
    clock.advance(11)
    queue.enqueue(b"later", delay=30)
    assert anywhere.claim_any()[0].payload == b"first"


def test_a_limit_that_is_lifted_is_felt_at_once(anywhere: Store) -> None:
    """By claims from any queue, which had passed the queue for as long as the old limit holds."""
    queue = anywhere.queue("q")
    queue.configure(Policy(rate="1/h"))
    queue.enqueue_many([b"x"] * 5)
    assert len(anywhere.claim_any(lease=600)) == 1
    assert not anywhere.claim_any()
    queue.configure(Policy(rate="1/m", max_leased=2))
    assert len(anywhere.claim_any(lease=600)) == 1
    assert not anywhere.claim_any()
    queue.configure(Policy(max_leased=3))
    assert len(anywhere.claim_any(lease=600)) == 1
    assert not anywhere.claim_any()
    queue.configure(Policy())
    assert len(anywhere.claim_any(lease=600)) == 1


def test_a_queue_that_comes_back_has_its_share_though_it_was_served_alone_before(anywhere: Store) -> None:
    """All others came while it was paused, and the order of turns had begun anew."""
    paused, other = anywhere.queue("paused"), anywhere.queue("other")
    paused.enqueue_many([b"x"] * 100)
    for _ in range(60):
        assert anywhere.claim_any(lease=3600)
    paused.pause()
    assert not anywhere.claim_any(lease=3600)
    other.enqueue_many([b"y"] * 100)
    assert anywhere.claim_any(lease=3600).queue.name == other.name
    paused.resume()
    served = Counter(anywhere.claim_any(lease=3600).queue.name.queue for _ in range(40))
    assert abs(served["paused"] - 20) <= 1


def test_expired_leases_released_and_replayed_jobs_come_back(anywhere: Store, clock: ManualClock) -> None:
    queue = anywhere.queue("q")
    queue.configure(Policy(max_attempts=2))
    queue.enqueue(b"x")
    assert anywhere.claim_any(lease=10)
    assert not anywhere.claim_any()
    clock.advance(11)
    again = anywhere.claim_any(lease=10)
    assert again[0].attempt == 2
    queue.release(again[0])
    again = anywhere.claim_any(lease=10)
    queue.fail(again[0], error="no")
    assert not anywhere.claim_any()
    assert queue.replay().count == 1
    assert anywhere.claim_any()[0].payload == b"x"


def test_jobs_past_their_ttl_are_not_given_out(anywhere: Store, clock: ManualClock) -> None:
    queue = anywhere.queue("q")
    queue.enqueue_many([NewJob(b"short", ttl=5), NewJob(b"long")])
    clock.advance(6)
    assert anywhere.claim_any()[0].payload == b"long"
    assert not anywhere.claim_any()


def test_a_deleted_queue_is_passed(anywhere: Store) -> None:
    anywhere.queue("gone").enqueue(b"x")
    anywhere.delete_queue("gone", force=True)
    assert not anywhere.claim_any()
    anywhere.queue("gone").enqueue(b"y")
    assert anywhere.claim_any()[0].payload == b"y"


def test_a_queue_that_was_deleted_while_it_was_paused_is_served_when_it_is_created_again(anywhere: Store) -> None:
    queue = anywhere.queue("again")
    queue.enqueue(b"x")
    queue.pause()
    assert not anywhere.claim_any()  # it is held back from here on
    assert anywhere.delete_queue("again", force=True)
    queue.enqueue(b"y")
    assert anywhere.check().clean
    assert anywhere.claim_any()[0].payload == b"y"


def test_a_queue_whose_groups_are_at_their_limit_is_sound_and_comes_back(anywhere: Store) -> None:
    queue = anywhere.queue("q")
    queue.configure(Policy(group=GroupPolicy(max_leased=1)))
    queue.enqueue_many([NewJob(b"1", group="g"), NewJob(b"2", group="g")])
    first = anywhere.claim_any()
    assert not anywhere.claim_any()
    assert anywhere.check().clean
    queue.ack(first[0])
    assert anywhere.claim_any()[0].payload == b"2"


def test_a_repeated_claim_from_any_queue_is_given_the_same_jobs(anywhere: Store, clock: ManualClock) -> None:
    anywhere.queue("a").enqueue(b"1")
    anywhere.queue("b").enqueue(b"2")
    first = anywhere.claim_any(id="mine", lease=30)
    again = anywhere.claim_any(id="mine", lease=30)
    assert (again.queue.name, again.id, [d.id for d in again]) == (first.queue.name, first.id, [d.id for d in first])
    with pytest.raises(InvalidArgument):
        anywhere.claim_any(2, id="mine", lease=30)
    first.queue.ack(first[0])
    assert len(anywhere.claim_any(id="mine", lease=30)) == 0
    assert anywhere.claim_any(id="other", lease=30).queue.name != first.queue.name
    clock.advance(31)
    with pytest.raises(LeaseLost):
        anywhere.claim_any(id="other", lease=30)


def test_a_claim_from_any_queue_waits_for_a_job(live: World) -> None:
    store = live.store
    if not store.traits.any_queue:
        pytest.skip("this store claims from queues that are named")
    waiter = begin(lambda: store.claim_any(wait=60))
    store.queue("late", "acme").enqueue(b"x")
    assert waiter.result(PATIENCE).queue.name == ("acme", "late")
    waiter = begin(lambda: store.claim_any(wait=60))
    store.queue("later", "acme").enqueue(b"y", delay=0.3)
    assert waiter.result(PATIENCE)[0].payload == b"y"


def test_every_job_is_given_out_once_to_many_claimers(live: World) -> None:
    store = live.store
    if not store.traits.any_queue:
        pytest.skip("this store claims from queues that are named")
    for n in range(12):
        store.queue(f"q{n % 3}", f"t{n % 4}").enqueue_many([b"%d" % n] * 20)

    def work() -> list[str]:
        seen = []
        while claim := store.claim_any(limit=3):
            seen += [d.id for d in claim]
            claim.queue.ack_many(claim)
        return seen

    workers = [begin(work) for _ in range(6)]
    seen = [job for worker in workers for job in worker.result(PATIENCE)]
    assert len(seen) == len(set(seen)) == 240
