"""Damage: a changed stored value gives an error that names the job, never a wrong answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tenure.api.queue import Queue
from tenure.clock import ManualClock
from tenure.errors import Corrupt, LeaseLost
from tenure.testing.conformance.world import World, assert_sound, claimed, fill, ids, seen
from tenure.testing.harness import Harness, Part

Damage = Callable[[str], None]
a_part = pytest.mark.parametrize("part", ["payload", "state"])


@pytest.fixture
def broken(harness: Harness) -> Iterator[World]:
    """A world whose store the test damages: it is closed at the end without a check."""
    world = World(harness, ManualClock() if harness.manual_clock else None, quick=True)
    yield world
    world.store.close()
    harness.destroy()


def _damage(world: World, queue: Queue, job_id: str, part: Part) -> None:
    if not world.harness.damage(world.store, queue, job_id, part):
        pytest.skip("the harness cannot damage this store")


@a_part
def test_a_look_at_a_damaged_job_is_an_error_that_names_it(broken: World, part: Part) -> None:
    queue = broken.queue()
    made = fill(queue, 3)
    _damage(broken, queue, made[1], part)
    with pytest.raises(Corrupt) as corrupt:
        queue.get(made[1])
    assert corrupt.value.job_id == made[1]
    with pytest.raises(Corrupt) as corrupt:
        queue.list("ready")
    assert corrupt.value.job_id == made[1]
    assert seen(queue, made[0]).payload == b"0"


@a_part
def test_a_claim_goes_on_past_a_damaged_job(broken: World, part: Part) -> None:
    queue = broken.queue()
    made = fill(queue, 5)
    _damage(broken, queue, made[0], part)
    _damage(broken, queue, made[3], part)
    claim = queue.claim(limit=5)
    assert ids(claim) == [made[1], made[2], made[4]]
    assert queue.ack_many(claim).lost == []
    made.append(queue.enqueue(b"after").id)
    assert ids(queue.claim(limit=1)) == made[-1:]


@a_part
@pytest.mark.parametrize("limit", [1, 10])
def test_a_claim_with_only_damaged_jobs_left_is_an_error_that_names_one(broken: World, part: Part, limit: int) -> None:
    queue = broken.queue()
    made = fill(queue, 2)
    for job_id in made:
        _damage(broken, queue, job_id, part)
    for _ in range(2):
        with pytest.raises(Corrupt) as corrupt:
            queue.claim(limit=limit)
        assert corrupt.value.job_id in made
    assert queue.counts().leased == 0


@a_part
def test_many_damaged_jobs_in_front_do_not_stop_the_queue(broken: World, part: Part) -> None:
    queue = broken.queue()
    made = fill(queue, 60)
    for job_id in made[:50]:
        _damage(broken, queue, job_id, part)
    assert ids(queue.claim(limit=10)) == made[50:]


@a_part
def test_check_reports_the_damaged_job(broken: World, part: Part) -> None:
    queue = broken.queue()
    made = fill(queue, 4)
    _damage(broken, queue, made[2], part)
    report = broken.store.check()
    assert not report.clean
    assert not report.ok
    assert made[2] in {finding.job_id for finding in report.findings}
    assert {finding.job_id for finding in report.findings} <= {made[2], None}


@a_part
def test_repair_says_what_it_did_and_leaves_the_rest(broken: World, part: Part) -> None:
    queue = broken.queue()
    made = fill(queue, 4)
    held = claimed(queue, lease=600)
    _damage(broken, queue, made[2], part)
    report = broken.store.check(repair=True)
    assert not report.clean
    for finding in report.findings:
        assert finding.repair, f"nothing was done about {finding}"
    assert_sound(broken.store)
    queue.ack(held)
    assert [i for i in ids(queue.claim(limit=5)) if i != made[2]] == [made[1], made[3]]


@a_part
def test_repair_of_a_damaged_job_under_a_lease(broken: World, part: Part) -> None:
    queue = broken.queue()
    made = fill(queue, 3)
    claim = queue.claim(limit=3, lease=600)
    _damage(broken, queue, made[1], part)
    report = broken.store.check(repair=True)
    assert made[1] in {finding.job_id for finding in report.findings}
    assert report.ok
    assert_sound(broken.store)
    assert queue.ack_many([claim[0], claim[2]]).lost == []
    assert_sound(broken.store)


def test_settling_a_damaged_job_is_an_error_not_a_lost_lease(broken: World) -> None:
    queue = broken.queue()
    made = fill(queue, 2)
    claim = queue.claim(limit=2)
    _damage(broken, queue, made[0], "state")
    with pytest.raises(Corrupt) as corrupt:
        queue.ack(claim[0])
    assert corrupt.value.job_id == made[0]
    assert not isinstance(corrupt.value, LeaseLost)
    queue.ack(claim[1])


def test_a_batch_tells_damaged_jobs_from_lost_ones(broken: World) -> None:
    queue = broken.queue()
    made = fill(queue, 4)
    claim = queue.claim(limit=4)
    queue.cancel(made[2])
    _damage(broken, queue, made[1], "state")
    settled = queue.ack_many(claim)
    assert (settled.done, settled.damaged, settled.lost) == ([made[0], made[3]], [made[1]], [made[2]])


def test_an_expired_lease_with_a_damaged_job_gives_back_the_others(broken: World) -> None:
    if broken.clock is None:
        pytest.skip("this store takes no manual clock")
    queue = broken.queue()
    made = fill(queue, 3)
    queue.claim(limit=3, lease=10)
    _damage(broken, queue, made[1], "state")
    other = fill(queue, 1)
    broken.clock.advance(11)
    found: list[str] = []
    for _ in range(3):
        try:
            found += ids(queue.claim(limit=10, lease=600))
        except Corrupt:
            break
    assert sorted(found) == sorted([made[0], made[2], *other])


def test_damage_in_one_queue_is_no_matter_in_another(broken: World) -> None:
    queue, other = broken.queue(), broken.queue("other", tenant="acme")
    (bad,) = fill(queue, 1)
    made = fill(other, 2)
    _damage(broken, queue, bad, "state")
    _damage(broken, queue, bad, "payload")
    assert ids(other.claim(limit=2)) == made
    assert [q.counts.leased for q in broken.store.queues("acme")] == [2]
