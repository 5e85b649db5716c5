"""Policies: they are stored and shown; one call sets several queues' policies atomically."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.errors import InvalidArgument
from tenure.model.rate import Rate
from tenure.model.retry import Backoff, Policy
from tenure.testing.conformance.world import World, all_events, each_of, must_refuse, nothing_written

BESPOKE = Policy(
    max_attempts=7,
    lease=12.5,
    backoff=Backoff.linear(3, cap=60, jitter="equal"),
    backoff_on_expiry=True,
    retention=60,
    result_retention=120,
    dedup_window=600,
    max_waiting=1000,
    max_leased=50,
    rate=Rate(30, per=60, burst=5),
)


def test_a_queue_has_the_default_policy_until_it_is_given_one(store: Store, queue: Queue) -> None:
    with nothing_written(store):
        assert queue.policy() == Policy()
    queue.enqueue(b"x")
    assert queue.policy() == Policy()
    assert [q.policy for q in store.queues()] == [Policy()]


def test_a_policy_is_kept(world: World) -> None:
    queue = world.queue(policy=BESPOKE)
    assert queue.policy() == BESPOKE
    assert [q.policy for q in world.store.queues()] == [BESPOKE]
    if world.harness.persistent:
        world.reopen()
        assert world.queue().policy() == BESPOKE


def test_a_policy_given_to_a_queue_that_is_not_there_makes_it(store: Store, queue: Queue) -> None:
    queue.configure(BESPOKE)
    assert [(q.queue, q.counts.enqueued) for q in store.queues()] == [("work", 0)]
    assert [e.type for e in all_events(store)] == ["queue_created", "queue_configured"]


def test_durations_of_a_policy_may_be_timedeltas(queue: Queue) -> None:
    queue.configure(Policy(lease=timedelta(minutes=1), retention=timedelta(days=1)))  # type: ignore[arg-type]
    assert (queue.policy().lease, queue.policy().retention) == (60, 86_400)


def test_no_lease_of_a_policy_is_shorter_than_a_millisecond(world: World) -> None:
    queue = world.queue(policy=Policy(lease=0.0001))
    queue.enqueue(b"x")
    claim = queue.claim()
    queue.extend(claim)
    queue.ack(claim[0])


def test_apply_gives_several_queues_theirs(store: Store) -> None:
    store.apply({"a": BESPOKE, "b": Policy(lease=5)}, tenant="acme")
    assert store.queue("a", tenant="acme").policy() == BESPOKE
    assert store.queue("b", tenant="acme").policy() == Policy(lease=5)
    assert store.queue("a").policy() == Policy()


def test_apply_with_one_bad_policy_changes_none(store: Store) -> None:
    with nothing_written(store), pytest.raises(InvalidArgument):
        store.apply({"a": BESPOKE, "b": Policy(lease=0)})


def test_a_bad_policy_is_refused(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x")
    nan = float("nan")
    bad = [
        Policy(max_attempts=0), Policy(max_attempts=-1), Policy(max_attempts=2**40), Policy(max_attempts=1.5),  # type: ignore[arg-type]
        Policy(lease=0), Policy(lease=-1), Policy(lease=nan), Policy(lease=float("inf")), Policy(lease=2.0**63),
        Policy(retention=-1), Policy(retention=nan), Policy(result_retention=-1), Policy(result_retention=2.0**63),
        Policy(dedup_window=-1), Policy(dedup_window=nan), Policy(max_waiting=0), Policy(max_waiting=-5),
        Policy(backoff="soon"), Policy(backoff=Backoff(base=-1)), Policy(backoff=Backoff(cap=nan)),  # type: ignore[arg-type]
        Policy(backoff=Backoff(factor=0)), Policy(backoff=Backoff(jitter="some")), Policy(lease="30"),  # type: ignore[arg-type]
        Policy(backoff_on_expiry=1), Policy(backoff=Backoff(kind="odd")),  # type: ignore[arg-type]
        {"lease": 30}, None, 30,
    ]  # fmt: skip
    must_refuse(store, InvalidArgument, each_of(queue.configure, bad))
    assert queue.policy() == Policy()
