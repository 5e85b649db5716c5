"""Limits of a queue's policy: the number of leased jobs (`max_leased`), and the rate of claimed jobs (`rate`)."""

from __future__ import annotations

import time

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument
from tenure.model.rate import Rate
from tenure.model.retry import Backoff, Policy
from tenure.testing.conformance.world import (
    PATIENCE,
    World,
    begin,
    claimed,
    each_of,
    fill,
    ids,
    must_refuse,
    nothing_written,
    still_waiting,
    together,
    waiting,
)

TWO = Policy(max_leased=2, backoff=Backoff.fixed(0))
TEN_A_SECOND = Policy(rate="10/s")
SPACED = Policy(rate=Rate(10, burst=1))
"""One every 100 ms, and never two at once."""


# ── max_leased ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_more_jobs_are_held_than_max_leased(world: World) -> None:
    queue = world.queue(policy=TWO)
    first, second, third = fill(queue, 3)
    claim = queue.claim(limit=10)
    assert ids(claim) == [first, second]
    with nothing_written(world.store):
        assert ids(queue.claim(limit=10)) == []
        assert ids(queue.claim()) == []
    queue.ack(claim[0])
    assert ids(queue.claim(limit=10)) == [third]
    assert queue.counts().leased == 2


@pytest.mark.parametrize("verb", ["ack", "fail", "nack", "release"])
def test_whatever_ends_a_delivery_makes_room(world: World, verb: str) -> None:
    queue = world.queue(policy=TWO)
    fill(queue, 4)
    claim = queue.claim(limit=2)
    getattr(queue, verb)(claim[0])
    assert len(queue.claim(limit=4)) == 1
    assert queue.counts().leased == 2


def test_a_cancelled_job_makes_room(world: World) -> None:
    queue = world.queue(policy=TWO)
    fill(queue, 4)
    queue.cancel(queue.claim(limit=2)[0].id)
    assert len(queue.claim(limit=4)) == 1


def test_an_expired_lease_makes_room_before_it_is_swept(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(max_leased=2, max_attempts=1))
    fill(queue, 4)
    queue.claim(limit=2, lease=10)
    clock.advance(9.999)
    assert len(queue.claim(limit=4)) == 0
    clock.advance(0.001)
    assert len(queue.claim(limit=4)) == 2
    assert queue.counts().dead == 2


def test_a_claim_with_an_id_is_repeated_whatever_the_limit(world: World) -> None:
    queue = world.queue(policy=TWO)
    fill(queue, 4)
    first = queue.claim(limit=3, id="c")
    assert ids(queue.claim(limit=3, id="c")) == ids(first)
    assert len(first) == 2


def test_the_limit_is_each_queues_own(world: World) -> None:
    one, other = world.queue("one", policy=TWO), world.queue("other")
    fill(one, 3)
    fill(other, 3)
    assert len(one.claim(limit=3)) == 2
    claim = world.store.claim([one, other], limit=3)
    assert (claim.queue.name, len(claim)) == (other.name, 3)


def test_a_lower_limit_takes_nothing_away_from_holders(world: World) -> None:
    queue = world.queue()
    fill(queue, 5)
    claim = queue.claim(limit=4)
    queue.configure(TWO)
    assert queue.ack_many(list(claim)[:2]).lost == []
    assert len(queue.claim(limit=5)) == 0
    queue.ack(claim[2])
    assert len(queue.claim(limit=5)) == 1
    queue.ack(claim[3])


def test_who_waits_for_room_is_served_when_a_job_is_let_go(live: World) -> None:
    queue = live.queue(policy=Policy(max_leased=1))
    fill(queue, 2)
    held = claimed(queue)
    waits = waiting(queue)
    assert still_waiting(waits)
    queue.ack(held)
    assert len(waits.result(PATIENCE)) == 1


def test_everyone_who_can_be_served_is_when_several_are_let_go(live: World) -> None:
    queue = live.queue(policy=Policy(max_leased=3))
    fill(queue, 6)
    held = queue.claim(limit=3)
    waits = [waiting(queue) for _ in range(3)]
    assert all(still_waiting(one) for one in waits)
    queue.ack_many(held)
    assert sorted(len(one.result(PATIENCE)) for one in waits) == [1, 1, 1]


def test_who_waits_for_room_is_served_when_a_job_is_cancelled(live: World) -> None:
    queue = live.queue(policy=Policy(max_leased=1))
    fill(queue, 2)
    held = claimed(queue)
    waits = waiting(queue)
    queue.cancel(held.id)
    assert len(waits.result(PATIENCE)) == 1


def test_who_waits_for_room_is_served_when_the_holders_lease_ends(live: World) -> None:
    queue = live.queue(policy=Policy(max_leased=1, max_attempts=1))
    fill(queue, 2)
    claimed(queue, lease=0.3)
    assert len(waiting(queue).result(PATIENCE)) == 1


def test_who_waits_for_room_is_served_when_the_limit_is_raised(live: World) -> None:
    queue = live.queue(policy=Policy(max_leased=1))
    fill(queue, 2)
    claimed(queue)
    waits = waiting(queue)
    assert still_waiting(waits)
    queue.configure(Policy(max_leased=2))
    assert len(waits.result(PATIENCE)) == 1


def test_the_limit_holds_for_many_who_claim_at_once(live: World) -> None:
    """Threads share a counter of the jobs they hold: it never exceeds the limit, and every job is done once."""
    queue = live.queue(policy=Policy(max_leased=3))
    fill(queue, 60)
    held: list[int] = []
    most: list[int] = []
    done: list[str] = []

    def work() -> None:
        while claim := queue.claim(limit=2, wait=0.2):
            held.append(len(claim))
            most.append(sum(held))
            done.extend(ids(claim))
            held.append(-len(claim))
            queue.ack_many(claim)

    together([work] * 6)
    assert max(most) <= 3
    assert len(done) == len(set(done)) == 60


# ── rate ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rate_hands_out_its_burst_and_then_by_time(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=TEN_A_SECOND)
    jobs = fill(queue, 40)
    assert ids(queue.claim(limit=25)) == jobs[:10]
    with nothing_written(world.store):
        assert ids(queue.claim(limit=25)) == []
    clock.advance(0.099)
    assert ids(queue.claim(limit=25)) == []
    clock.advance(0.001)
    assert ids(queue.claim(limit=25)) == jobs[10:11]
    clock.advance(0.5)
    assert ids(queue.claim(limit=2)) == jobs[11:13]
    assert ids(queue.claim(limit=25)) == jobs[13:16]
    clock.advance(60)
    assert len(queue.claim(limit=25)) == 10, "no more than the burst is saved up"


def test_over_any_time_no_more_than_rate_and_burst(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(rate=Rate(7, per=2, burst=3)))
    fill(queue, 200)
    taken = 0
    for step in range(300):
        taken += len(queue.claim(limit=1 + step % 4))
        assert taken <= 3 + 7 * step * 0.05 / 2
        clock.advance(0.05)
    assert taken >= 3 + 7 * 299 * 0.05 / 2 - 1, "and no less, where there is work"


def test_a_rate_of_one_at_a_time_spaces_jobs(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=SPACED)
    fill(queue, 3)
    assert len(queue.claim(limit=3)) == 1
    clock.advance(0.1)
    assert len(queue.claim(limit=3)) == 1


def test_a_slow_rate_is_counted_over_hours(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(rate="1/h"))
    fill(queue, 3)
    assert len(queue.claim(limit=3)) == 1
    clock.advance(3599.9)
    assert len(queue.claim(limit=3)) == 0
    clock.advance(0.2)
    assert len(queue.claim(limit=3)) == 1


def test_the_rate_survives_a_restart(world: World) -> None:
    queue = world.queue(policy=Policy(rate="5/h"))
    fill(queue, 10)
    assert len(queue.claim(limit=10)) == 5
    world.reopen()
    assert len(world.queue().claim(limit=10)) == 0


def test_a_new_rate_starts_full(world: World) -> None:
    queue = world.queue(policy=Policy(rate="2/h"))
    fill(queue, 20)
    assert len(queue.claim(limit=20)) == 2
    queue.configure(Policy(rate="3/h"))
    assert len(queue.claim(limit=20)) == 3
    queue.configure(Policy(rate="3/h", lease=7))
    assert len(queue.claim(limit=20)) == 0, "another change of the policy leaves the rate as it is"
    queue.configure(Policy())
    assert len(queue.claim(limit=20)) == 15


def test_both_limits_hold_together(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(rate=Rate(10, burst=4), max_leased=3))
    fill(queue, 20)
    claim = queue.claim(limit=20)
    assert len(claim) == 3
    queue.ack_many(claim)
    assert len(queue.claim(limit=20)) == 1
    clock.advance(10)
    assert len(queue.claim(limit=20)) == 2


def test_a_repeated_claim_takes_nothing_of_the_rate(world: World) -> None:
    queue = world.queue(policy=Policy(rate="4/h"))
    fill(queue, 10)
    first = queue.claim(limit=2, id="c")
    assert ids(queue.claim(limit=2, id="c")) == ids(first)
    assert len(queue.claim(limit=10)) == 2


def test_who_waits_is_served_when_the_rate_allows(live: World) -> None:
    queue = live.queue(policy=Policy(rate=Rate(4, burst=1)))
    fill(queue, 3)
    started = time.monotonic()
    taken = [len(queue.claim(limit=3, wait=PATIENCE)) for _ in range(3)]
    assert taken == [1, 1, 1]
    assert time.monotonic() - started >= 0.49


def test_the_rate_holds_for_many_who_wait_at_once(live: World) -> None:
    queue = live.queue(policy=Policy(rate=Rate(40, burst=2)))
    fill(queue, 14)
    started = time.monotonic()
    waits = [begin(lambda: queue.claim(wait=PATIENCE)) for _ in range(14)]
    assert [len(one.result(PATIENCE)) for one in waits] == [1] * 14
    assert time.monotonic() - started >= 12 / 40 - 0.01


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_limits_are_stored_and_shown(world: World) -> None:
    policy = Policy(max_leased=7, rate=Rate(5, per=60, burst=2))
    queue = world.queue(policy=policy)
    assert queue.policy() == policy
    if world.harness.persistent:
        world.reopen()
        assert world.queue().policy() == policy


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/s", Rate(100)), ("10/m", Rate(10, per=60)), ("5/30s", Rate(5, per=30)), ("0.5/s", Rate(0.5)),
        ("1000/h", Rate(1000, per=3600)), (" 20 / 2 d ", Rate(20, per=172_800)),
    ],
)  # fmt: skip
def test_a_rate_may_be_given_as_text(queue: Queue, text: str, rate: Rate) -> None:
    queue.configure(Policy(rate=text))
    assert queue.policy().rate == rate


def test_a_bad_limit_is_refused(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x")
    nan = float("nan")
    bad = [
        lambda: Policy(max_leased=0), lambda: Policy(max_leased=-1), lambda: Policy(max_leased=1.5),  # type: ignore[arg-type]
        lambda: Policy(rate="fast"), lambda: Policy(rate="0/s"), lambda: Policy(rate="5"), lambda: Policy(rate="5/y"),
        lambda: Policy(rate=5), lambda: Policy(rate=Rate(0)), lambda: Policy(rate=Rate(-1)), lambda: Policy(rate=Rate(nan)),  # type: ignore[arg-type]
        lambda: Policy(rate=Rate(1, per=0)), lambda: Policy(rate=Rate(1, per=nan)), lambda: Policy(rate=Rate(1, burst=0)),
        lambda: Policy(rate=Rate(1, burst=10**12)), lambda: Policy(rate=Rate(1e9, per=1e-3)),
        lambda: Policy(rate=Rate(1, per=1e9)), lambda: Policy(rate=Rate("5")),  # type: ignore[arg-type]
    ]  # fmt: skip
    must_refuse(store, InvalidArgument, each_of(lambda make: queue.configure(make()), bad))
