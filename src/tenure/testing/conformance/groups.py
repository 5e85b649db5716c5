"""Groups inside a queue: order by priority, then fair turns of groups, then time; limits of each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument
from tenure.model.group import GroupPolicy
from tenure.model.job import NewJob
from tenure.model.retry import Backoff, Policy
from tenure.testing.conformance.world import PATIENCE, World, begin


@pytest.fixture
def grouped(world: World) -> Queue:
    return world.queue("grouped")


def _jobs(group: str | None, count: int = 1, **options: object) -> list[NewJob]:
    return [NewJob(f"{group}{n}".encode(), group=group, **options) for n in range(count)]  # type: ignore[arg-type]  # as the test chose


def _served(queue: Queue, count: int = 1000) -> list[str]:
    """The group of each job (its payload without the number), claimed and acked one after another."""
    served: list[str] = []
    while len(served) < count and (claim := queue.claim()):
        served.append(claim[0].payload.decode().rstrip("0123456789"))
        queue.ack(claim[0])
    return served


def _payloads(claim: Iterable[object]) -> list[str]:
    return [delivery.payload.decode() for delivery in claim]  # type: ignore[attr-defined]


def test_a_queue_without_jobs_has_no_groups(grouped: Queue) -> None:
    assert len(grouped.groups()) == 0


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "-x", "x" * 129, 7])
def test_a_group_has_a_name_as_a_tenant_has(store: Store, queue: Queue, name: object) -> None:
    with pytest.raises(InvalidArgument, match="group"):
        queue.enqueue(NewJob(b"x", group=name))  # type: ignore[arg-type]  # that is the point
    assert queue.counts().enqueued == 0


@pytest.mark.parametrize(
    "policy",
    [
        GroupPolicy(max_leased=0), GroupPolicy(max_leased=True), GroupPolicy(weight=0), GroupPolicy(weight=float("nan")),
        GroupPolicy(weight=1e9), GroupPolicy(weight="2"), GroupPolicy(rate=5),  # type: ignore[arg-type]  # that is the point
    ],
)  # fmt: skip
def test_a_group_policy_is_checked(grouped: Queue, policy: GroupPolicy) -> None:
    for given in (Policy(group=policy), Policy(groups={"a": policy})):
        with pytest.raises(InvalidArgument):
            grouped.configure(given)
    with pytest.raises(InvalidArgument):
        grouped.configure(Policy(groups={"no name": GroupPolicy()}))


# ── order ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_groups_take_turns_and_jobs_without_one_are_one_more(grouped: Queue) -> None:
    grouped.enqueue_many([*_jobs("big", 12), *_jobs("small", 2), *_jobs(None, 4)])
    served = _served(grouped)
    assert Counter(served) == {"big": 12, "small": 2, "None": 4}
    assert Counter(served[:6]) == {"big": 2, "small": 2, "None": 2}
    assert served[-8:] == ["big"] * 8


def test_within_a_group_time_decides(grouped: Queue, clock: ManualClock) -> None:
    for n in range(3):
        grouped.enqueue(b"%d" % n, group="a")
        clock.advance(0.01)
    grouped.enqueue(b"later", group="a", delay=5)
    assert _payloads(grouped.claim(10)) == ["0", "1", "2"]
    clock.advance(5)
    assert _payloads(grouped.claim(10)) == ["later"]


def test_priority_comes_before_fairness(grouped: Queue) -> None:
    grouped.enqueue_many([*_jobs("low", 3), *_jobs("high", 3, priority=9), *_jobs("both", 1, priority=9)])
    grouped.enqueue_many(_jobs("both", 1))
    served = _served(grouped)
    assert Counter(served[:4]) == {"high": 3, "both": 1}
    assert Counter(served[4:]) == {"low": 3, "both": 1}


def test_a_batch_is_fair_within_itself(grouped: Queue) -> None:
    for group in ("a", "b", "c"):
        grouped.enqueue_many(_jobs(group, 20))
    claim = grouped.claim(30)
    assert Counter(payload[0] for payload in _payloads(claim)) == {"a": 10, "b": 10, "c": 10}
    assert [p for p in _payloads(claim) if p[0] == "a"] == [f"a{n}" for n in range(10)]


def test_a_batch_takes_all_there_is(grouped: Queue) -> None:
    grouped.enqueue_many([*_jobs("a", 1), *_jobs("b", 70), *_jobs(None, 5)])
    assert len(grouped.claim(100)) == 76
    assert not grouped.claim(1)


def test_weights_are_shares(grouped: Queue) -> None:
    weights = {"one": 1, "two": 2, "four": 4}
    grouped.configure(Policy(groups={name: GroupPolicy(weight=weight) for name, weight in weights.items()}))
    for group in weights:
        grouped.enqueue_many(_jobs(group, 40))
    served = Counter(_served(grouped, 70))
    assert all(abs(served[group] - 10 * weight) <= 1 for group, weight in weights.items()), served


def test_a_group_that_was_idle_saves_up_nothing(grouped: Queue, clock: ManualClock) -> None:
    grouped.enqueue_many([*_jobs("busy", 60), *_jobs("idle", 1)])
    assert Counter(_served(grouped, 21)) == {"busy": 20, "idle": 1}
    clock.advance(3600)
    grouped.enqueue_many(_jobs("idle", 20))
    served = _served(grouped, 20)
    assert abs(served.count("idle") - 10) <= 1


@pytest.mark.parametrize("single", ["a", "m", "single", "z"])  # the order of names, or of their digests, has no say
def test_a_group_that_always_has_one_job_gets_exactly_its_share(grouped: Queue, single: str) -> None:
    grouped.enqueue_many([*_jobs("b", 30), *_jobs("c", 30), *_jobs(single, 1)])
    served: Counter[str] = Counter()
    for _ in range(30):
        (group,) = _served(grouped, 1)
        served[group] += 1
        if group == single:
            grouped.enqueue_many(_jobs(single, 1))
    assert max(served.values()) - min(served.values()) <= 2, served


def test_jobs_that_were_there_before_the_first_group_take_part(grouped: Queue) -> None:
    grouped.enqueue_many([b"before%d" % n for n in range(6)])
    grouped.enqueue_many(_jobs("g", 3))
    served = _served(grouped)
    assert Counter(served) == {"before": 6, "g": 3}
    assert "g" in served[:3]


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_max_leased_holds_for_each_group(grouped: Queue) -> None:
    grouped.configure(Policy(group=GroupPolicy(max_leased=2), groups={"one": GroupPolicy(max_leased=1)}))
    grouped.enqueue_many([*_jobs("a", 5), *_jobs("one", 5), *_jobs(None, 3)])
    held = list(grouped.claim(100))
    assert Counter(d.payload.decode().rstrip("0123456789") for d in held) == {"a": 2, "one": 1, "None": 3}
    assert not grouped.claim(100)
    full = {group.group: group for group in grouped.groups()}
    assert (full["a"].leased, full["a"].waiting, full["a"].at_limit) == (2, 3, True)
    grouped.ack(next(d for d in held if d.payload == b"a0"))
    assert _payloads(grouped.claim(100)) == ["a2"]


@pytest.mark.parametrize("verb", ["ack", "nack", "fail", "release", "cancel", "expire"])
def test_whatever_ends_a_lease_makes_room_in_its_group(grouped: Queue, clock: ManualClock, verb: str) -> None:
    grouped.configure(Policy(group=GroupPolicy(max_leased=1), lease=10, backoff=Backoff.fixed(60)))
    grouped.enqueue_many(_jobs("g", 2))
    (held,) = grouped.claim(5)
    assert not grouped.claim(5)
    if verb == "cancel":
        assert grouped.cancel(held.id)
    elif verb == "expire":
        clock.advance(11)
    else:
        getattr(grouped, verb)(held)
    expected = [b"g0"] if verb == "release" else [b"g1"]
    assert [d.payload for d in grouped.claim(5)] == expected


def test_jobs_that_come_while_a_group_is_at_its_limit_wait_for_room(grouped: Queue) -> None:
    grouped.configure(Policy(group=GroupPolicy(max_leased=1)))
    grouped.enqueue_many(_jobs("g", 1))
    (held,) = grouped.claim()
    grouped.enqueue_many([*_jobs("g", 1, priority=5), *_jobs("other", 1)])
    assert _payloads(grouped.claim(5)) == ["other0"]
    grouped.ack(held)
    assert _payloads(grouped.claim(5)) == ["g0"]


def test_a_limit_counts_the_jobs_of_all_priorities(grouped: Queue) -> None:
    grouped.configure(Policy(group=GroupPolicy(max_leased=1)))
    grouped.enqueue_many([*_jobs("g", 2, priority=9), *_jobs("g", 2), *_jobs("g", 2, priority=4)])
    seen = []
    while claim := grouped.claim(10):
        assert len(claim) == 1
        seen.append(claim[0].priority)
        grouped.ack(claim[0])
    assert seen == [9, 9, 4, 4, 0, 0]


def test_a_rate_holds_for_each_group(grouped: Queue, clock: ManualClock) -> None:
    grouped.configure(Policy(group=GroupPolicy(rate="2/s")))
    grouped.enqueue_many([*_jobs("a", 5), *_jobs("b", 1)])
    assert sorted(_payloads(grouped.claim(10))) == ["a0", "a1", "b0"]
    assert not grouped.claim(10)
    grouped.enqueue_many(_jobs("a", 1))
    assert not grouped.claim(10)
    clock.advance(0.5)
    assert _payloads(grouped.claim(10)) == ["a2"]
    clock.advance(10)
    assert _payloads(grouped.claim(10)) == ["a3", "a4"]


def test_a_policy_that_allows_more_is_felt_at_once(grouped: Queue) -> None:
    grouped.configure(Policy(group=GroupPolicy(max_leased=1)))
    grouped.enqueue_many(_jobs("g", 4))
    assert len(grouped.claim(5)) == 1
    grouped.configure(Policy(group=GroupPolicy(max_leased=3)))
    assert len(grouped.claim(5)) == 2
    grouped.configure(Policy())
    assert len(grouped.claim(5)) == 1


def test_a_policy_with_another_rate_is_felt_at_once(grouped: Queue, clock: ManualClock) -> None:
    """Also by groups that wait for the moment at which the old rate lets them go on."""
    grouped.configure(Policy(group=GroupPolicy(rate="1/h")))
    grouped.enqueue_many([*_jobs("g", 6), *_jobs("later", 1, delay=60)])
    assert len(grouped.claim(10, lease=600)) == 1
    grouped.configure(Policy(group=GroupPolicy(rate="2/h")))
    assert len(grouped.claim(10, lease=600)) == 2
    grouped.configure(Policy(group=GroupPolicy(weight=2)))
    assert len(grouped.claim(10, lease=600)) == 3
    assert not grouped.claim(10, lease=600)
    clock.advance(60)
    assert _payloads(grouped.claim(10, lease=600)) == ["later0"]


def test_a_group_whose_weight_is_raised_owes_nothing_for_the_time_before(grouped: Queue) -> None:
    grouped.configure(Policy(groups={"light": GroupPolicy(weight=0.001)}))
    grouped.enqueue_many([*_jobs("other", 40), *_jobs("light", 40)])
    grouped.configure(Policy(groups={"light": GroupPolicy(weight=0.002)}))
    assert Counter(_served(grouped, 10))["other"] >= 9
    grouped.configure(Policy())
    served = Counter(_served(grouped, 20))
    assert abs(served["light"] - 10) <= 1, served


def test_a_changed_policy_reaches_every_group(grouped: Queue) -> None:
    """Also if there are many groups: in several bounded steps."""
    grouped.configure(Policy(group=GroupPolicy(max_leased=1)))
    grouped.enqueue_many([NewJob(b"%d" % n, group=f"g{n:03}") for n in range(450) for _ in range(2)])
    held = sum(len(grouped.claim(225, lease=600)) for _ in range(3))
    assert held == 450
    grouped.configure(Policy(group=GroupPolicy(max_leased=2)))
    assert sum(len(grouped.claim(450, lease=600)) for _ in range(2)) == 450
    assert {group.leased for group in grouped.groups(1000)} == {2}


# ── what happens to jobs ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_is_due_is_not_put_off_by_one_that_comes_later(grouped: Queue, clock: ManualClock) -> None:
    """No claim has met the first one since it is due."""
    grouped.enqueue(b"first", group="g", delay=10)
    assert not grouped.claim()
    clock.advance(11)
    grouped.enqueue(b"later", group="g", delay=30)
    assert _payloads(grouped.claim()) == ["first"]


def test_a_job_shows_its_group(grouped: Queue, store: Store) -> None:
    made = grouped.enqueue(NewJob(b"x", group="customer-17", key="k", headers={"a": "b"}))
    plain = grouped.enqueue(b"y")
    found = grouped.get(made.id)
    assert found is not None
    assert (found.group, found.key, found.headers, found.payload) == ("customer-17", "k", {"a": "b"}, b"x")
    assert grouped.get(plain.id).group is None  # type: ignore[union-attr]
    assert store.get(made.id) == found
    claim = grouped.claim(2, id="seen")
    assert {d.id: d.group for d in claim} == {made.id: "customer-17", plain.id: None}
    assert {d.id: d.group for d in grouped.claim(2, id="seen")} == {made.id: "customer-17", plain.id: None}


def test_large_payloads_have_groups(grouped: Queue) -> None:
    grouped.enqueue(NewJob(b"x" * 200_000, group="g"))
    assert grouped.claim()[0].payload == b"x" * 200_000


def test_lists_and_counts_show_jobs_with_and_without_a_group(grouped: Queue, clock: ManualClock, store: Store) -> None:
    made = []
    for n, group in enumerate(["b", None, "a", None, "b"]):
        made.append(grouped.enqueue(b"%d" % n, group=group).id)
        clock.advance(0.01)
    urgent = grouped.enqueue(b"urgent", group="z", priority=9).id
    later = [grouped.enqueue(b"later", group=group, delay=delay).id for group, delay in (("a", 50), (None, 20))]
    counts = grouped.counts()
    assert (counts.ready, counts.scheduled, counts.leased) == (6, 2, 0)
    assert [job.id for job in grouped.list("ready")] == [urgent, *made]
    pages, cursor = [], None
    while True:
        page = grouped.list("ready", limit=2, cursor=cursor)
        pages += [job.id for job in page]
        if (cursor := page.cursor) is None:
            break
    assert pages == [urgent, *made]
    assert [job.id for job in grouped.list("scheduled")] == later[::-1]
    assert [job.id for job in store.upcoming()] == later[::-1]


def test_groups_are_listed_with_their_counts(grouped: Queue, clock: ManualClock) -> None:
    for n in range(7):
        grouped.enqueue_many(_jobs(f"g{n}", n + 1))
        clock.advance(1)
    grouped.enqueue_many([*_jobs("late", 1, delay=60), *_jobs(None, 3)])
    (held,) = grouped.claim(1)
    found, cursor = [], None
    while True:
        page = grouped.groups(limit=3, cursor=cursor)
        found += list(page)
        if (cursor := page.cursor) is None:
            break
    by_name = {group.group: group for group in found}
    assert len(by_name) == len(found)
    assert sum(group.waiting + group.leased for group in found) == 29
    assert sum(group.leased for group in found) == 1
    assert by_name["late"].oldest_at_ms is None
    assert by_name["g6"].oldest_at_ms - by_name["g5"].oldest_at_ms == 1000
    grouped.ack(held)
    with pytest.raises(InvalidArgument):
        grouped.groups(cursor="nonsense")


def test_a_group_without_jobs_is_forgotten(grouped: Queue, clock: ManualClock) -> None:
    grouped.configure(Policy(groups={"limited": GroupPolicy(rate="1/s")}))
    grouped.enqueue_many([*_jobs("a", 2), *_jobs("limited", 1)])
    assert len(_served(grouped)) == 3
    assert len(grouped.groups()) == 0
    clock.advance(60)
    assert not grouped.claim()


def test_a_failed_job_comes_back_to_its_group(grouped: Queue, clock: ManualClock) -> None:
    grouped.configure(Policy(max_attempts=2, backoff=Backoff.fixed(5)))
    grouped.enqueue_many([*_jobs("g", 1), *_jobs("other", 1)])
    first = {d.payload: d for d in grouped.claim(2)}
    grouped.nack(first[b"g0"], "no")
    assert not grouped.claim()
    clock.advance(5)
    (again,) = grouped.claim()
    grouped.nack(again, "never")
    (dead,) = grouped.list("dead")
    assert dead.group == "g"
    assert [group.group for group in grouped.groups()] == ["other"]
    assert grouped.replay().count == 1
    assert _payloads(grouped.claim()) == ["g0"]


def test_cancelled_purged_and_lapsed_jobs_leave_their_group(grouped: Queue, clock: ManualClock) -> None:
    kept = grouped.enqueue_many(_jobs("g", 2))
    assert grouped.cancel(kept[0].id)
    grouped.enqueue_many([*_jobs("short", 3, ttl=5), *_jobs("late", 2, delay=100)])
    assert grouped.purge("scheduled") == 2
    clock.advance(6)
    assert _payloads(grouped.claim(10)) == ["g1"]
    assert {group.group for group in grouped.groups()} == {"g"}
    grouped.enqueue_many(_jobs("p", 3))
    assert grouped.purge("ready") == 3
    assert not grouped.claim()


def test_a_duplicate_adds_nothing_to_its_group(grouped: Queue) -> None:
    first = grouped.enqueue(NewJob(b"x", group="g", key="k"))
    assert grouped.enqueue(NewJob(b"x", group="h", key="k")).id == first.id
    assert [(group.group, group.waiting) for group in grouped.groups()] == [("g", 1)]


def test_a_deleted_queue_has_no_groups(grouped: Queue, store: Store) -> None:
    grouped.configure(Policy(group=GroupPolicy(max_leased=1)))
    grouped.enqueue_many([*_jobs("g", 3), *_jobs("h", 1, delay=60)])
    assert store.delete_queue("grouped", force=True)
    assert not grouped.claim()
    assert len(grouped.groups()) == 0
    grouped.enqueue_many([b"x", *_jobs("g", 2)])
    assert len(grouped.claim(10)) == 3


def test_restored_jobs_keep_their_group(world: World, store: Store) -> None:
    source, target = world.queue("source"), world.queue("target")
    source.enqueue_many([*_jobs("a", 2), *_jobs("b", 1, delay=60), b"plain"])
    jobs = [*source.list("ready"), *source.list("scheduled")]
    target.restore(jobs)
    assert {(group.group, group.waiting) for group in target.groups()} == {("a", 2), ("b", 1)}
    assert sorted(_payloads(target.claim(10))) == ["a0", "a1", "plain"]


def test_a_paused_queue_gives_no_group_a_turn(grouped: Queue) -> None:
    grouped.enqueue_many(_jobs("g", 2))
    grouped.pause()
    assert not grouped.claim()
    grouped.resume()
    assert len(grouped.claim(5)) == 2


def test_the_queues_own_limit_holds_as_well(grouped: Queue) -> None:
    grouped.configure(Policy(max_leased=3, group=GroupPolicy(max_leased=2)))
    for group in ("a", "b", "c"):
        grouped.enqueue_many(_jobs(group, 3))
    held = list(grouped.claim(10))
    assert len(held) == 3
    assert max(Counter(d.payload[:1] for d in held).values()) <= 2
    assert not grouped.claim()
    grouped.ack_many(held)
    assert len(grouped.claim(10)) == 3


def test_a_claim_takes_no_more_bytes_than_it_may(grouped: Queue) -> None:
    grouped.enqueue_many([NewJob(b"x" * 100, group=group) for group in ("a", "b", "c", "a")])
    assert len(grouped.claim(10, max_bytes=250)) == 2
    assert len(grouped.claim(10)) == 2


# ── waiting, and any queue ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_claim_waits_for_room_in_a_group(live: World) -> None:
    queue = live.queue("q")
    queue.configure(Policy(group=GroupPolicy(max_leased=1)))
    queue.enqueue_many(_jobs("g", 2))
    (held,) = queue.claim()
    waiting = begin(lambda: queue.claim(wait=PATIENCE))
    queue.ack(held)
    assert _payloads(waiting.result()) == ["g1"]


def test_a_claim_waits_for_a_scheduled_job_of_a_group(live: World) -> None:
    queue = live.queue("q")
    queue.enqueue(b"soon", group="g", delay=0.2)
    assert _payloads(queue.claim(wait=PATIENCE)) == ["soon"]


def test_claims_from_any_queue_know_groups(grouped: Queue, store: Store, clock: ManualClock) -> None:
    if not store.traits.any_queue:
        pytest.skip("this store claims from queues that are named")
    grouped.configure(Policy(group=GroupPolicy(max_leased=1)))
    grouped.enqueue_many([*_jobs("g", 2), *_jobs("late", 1, delay=60)])
    (held,) = store.claim_any()
    assert not store.claim_any()
    assert store.check().clean
    store.queue("other").enqueue(b"other")
    assert _payloads(store.claim_any(lease=300)) == ["other"]
    assert not store.claim_any()
    grouped.ack(held)
    assert _payloads(store.claim_any(lease=300)) == ["g1"]
    assert not store.claim_any()
    clock.advance(60)
    assert _payloads(store.claim_any()) == ["late0"]


def test_claims_from_any_queue_find_one_whose_only_group_was_at_its_limit(grouped: Queue, store: Store) -> None:
    if not store.traits.any_queue:
        pytest.skip("this store claims from queues that are named")
    grouped.configure(Policy(group=GroupPolicy(max_leased=1)))
    grouped.enqueue_many(_jobs("g", 3))
    (held,) = store.claim_any()
    assert not store.claim_any()
    assert store.check().clean
    grouped.ack(held)
    assert len(store.claim_any()) == 1
    assert not store.claim_any()
    grouped.configure(Policy())
    assert len(store.claim_any()) == 1
