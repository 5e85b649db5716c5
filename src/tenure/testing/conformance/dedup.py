"""Idempotency keys: within the window, every enqueue with a key returns the first job."""

from __future__ import annotations

from functools import partial

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, KeyConflict
from tenure.model.job import NewJob
from tenure.model.retry import Policy
from tenure.testing.conformance.world import (
    World,
    claimed,
    fill,
    ids,
    nothing_written,
    seen,
    sweep_all,
    together,
)

HOUR = 3600


def test_a_key_seen_before_gives_the_first_jobs_id(queue: Queue) -> None:
    first = queue.enqueue(b"x", key="order-17")
    again = queue.enqueue(b"x", key="order-17", priority=9, delay=5)
    assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
    assert queue.counts().enqueued == 1
    assert (seen(queue, first.id).priority, seen(queue, first.id).state) == (0, "ready")


def test_duplicates_within_one_batch(queue: Queue) -> None:
    added = queue.enqueue_many([NewJob(b"a", key="1"), NewJob(b"b", key="2"), NewJob(b"a", key="1"), b"a", b"a"])
    assert [e.duplicate for e in added] == [False, False, True, False, False]
    assert added[2].id == added[0].id
    assert len({e.id for e in added}) == 4
    assert queue.counts().enqueued == 4


def test_a_batch_sent_again_adds_nothing(queue: Queue) -> None:
    jobs = [NewJob(b"%d" % n, key=f"k{n}") for n in range(50)]
    first = queue.enqueue_many(jobs)
    again = queue.enqueue_many([*jobs, NewJob(b"new", key="new")])
    assert [e.id for e in again[:-1]] == [e.id for e in first]
    assert [e.duplicate for e in again] == [True] * 50 + [False]
    assert queue.counts().enqueued == 51


def test_on_conflict_keep_answers_with_the_first_job(store: Store, queue: Queue) -> None:
    first = queue.enqueue(NewJob(b"x", key="order-17", on_conflict="keep"))
    assert not first.duplicate
    with nothing_written(store):
        again = queue.enqueue(NewJob(b"y", key="order-17", on_conflict="keep"))
    assert (again.id, again.duplicate) == (first.id, True)
    assert seen(queue, first.id).payload == b"x"
    # "keep" applies to one request, not to the job: another request without it is refused.
    with nothing_written(store), pytest.raises(KeyConflict):
        queue.enqueue(b"y", key="order-17")
    assert queue.enqueue(b"x", key="order-17").id == first.id


def test_on_conflict_keep_in_one_batch(store: Store, queue: Queue) -> None:
    held = queue.enqueue(b"held", key="held")
    added = queue.enqueue_many([
        NewJob(b"a", key="new"), NewJob(b"b", key="new", on_conflict="keep"), b"plain",
        NewJob(b"other", key="held", on_conflict="keep"), NewJob(b"held", key="held"),
        NewJob(bytes(100_000), key="held", on_conflict="keep"), NewJob(bytes(100_000), key="held", on_conflict="keep"),
    ])  # fmt: skip
    assert [e.duplicate for e in added] == [False, True, False, True, True, True, True]
    assert added[1].id == added[0].id
    assert {e.id for e in added[3:]} == {held.id}
    assert seen(queue, added[0].id).payload == b"a"
    assert queue.counts().enqueued == 3
    with nothing_written(store), pytest.raises(KeyConflict) as conflict:
        queue.enqueue_many([NewJob(b"c", key="new", on_conflict="keep"), NewJob(b"c", key="new")])
    assert conflict.value.index == 1


def test_on_conflict_keep_after_the_window_is_a_new_job(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(dedup_window=HOUR))
    first = queue.enqueue(NewJob(b"x", key="k", on_conflict="keep"))
    queue.ack(claimed(queue))
    assert queue.enqueue(NewJob(b"y", key="k", on_conflict="keep")).id == first.id
    clock.advance(HOUR + 1)
    fresh = queue.enqueue(NewJob(b"y", key="k", on_conflict="keep"))
    assert (fresh.duplicate, seen(queue, fresh.id).payload) == (False, b"y")


def test_on_conflict_keep_among_racing_producers(live: World) -> None:
    queue = live.queue()
    jobs = [NewJob(b"%d" % n, key="only", on_conflict="keep") for n in range(8)]
    added = together([partial(queue.enqueue, job) for job in jobs])
    assert len({e.id for e in added}) == 1
    assert sum(not e.duplicate for e in added) == 1


@pytest.mark.parametrize("given", ["", "replace", None, True])
def test_on_conflict_is_error_or_keep(store: Store, queue: Queue, given: object) -> None:
    with nothing_written(store), pytest.raises(InvalidArgument, match="on_conflict"):
        queue.enqueue(NewJob(b"x", key="k", on_conflict=given))  # type: ignore[arg-type]  # that is the point


def test_the_same_key_with_another_payload_is_a_conflict(store: Store, queue: Queue) -> None:
    first = queue.enqueue(b"x", key="order-17")
    with nothing_written(store), pytest.raises(KeyConflict) as conflict:
        queue.enqueue(b"y", key="order-17")
    assert (conflict.value.index, conflict.value.key, conflict.value.existing) == (0, "order-17", first.id)
    with nothing_written(store), pytest.raises(KeyConflict) as conflict:
        queue.enqueue_many([b"good", NewJob(b"new", key="new"), NewJob(b"y", key="order-17")])
    assert conflict.value.index == 2
    assert not queue.enqueue(b"other", key="new").duplicate


def test_a_conflict_within_one_batch(store: Store, queue: Queue) -> None:
    with nothing_written(store), pytest.raises(KeyConflict) as conflict:
        queue.enqueue_many([NewJob(b"x", key="k"), b"between", NewJob(b"y", key="k")])
    assert (conflict.value.index, conflict.value.key) == (2, "k")
    assert not queue.enqueue(b"y", key="k").duplicate


def test_keys_of_other_tenants_and_queues_are_independent(store: Store) -> None:
    places = [("a", "x"), ("b", "x"), ("a", "y"), ("b", "y")]
    added = [store.queue(q, tenant=t).enqueue(f"{t}{q}".encode(), key="same") for t, q in places]
    assert [e.duplicate for e in added] == [False] * 4
    assert len({e.id for e in added}) == 4


def test_a_key_is_held_while_its_job_waits(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(dedup_window=HOUR))
    job_id = queue.enqueue(b"x", key="k").id
    clock.advance(10 * HOUR)
    sweep_all(world.store)
    assert (queue.enqueue(b"x", key="k").id, queue.enqueue(b"x", key="k").duplicate) == (job_id, True)
    delivery = claimed(queue, lease=20 * HOUR)
    clock.advance(10 * HOUR)
    sweep_all(world.store)
    assert queue.enqueue(b"x", key="k").duplicate
    queue.ack(delivery)


@pytest.mark.parametrize("end", ["done", "done with result", "dead"])
def test_a_key_is_held_for_its_window_though_its_job_has_ended(world: World, clock: ManualClock, end: str) -> None:
    queue = world.queue(policy=Policy(dedup_window=HOUR))
    job_id = queue.enqueue(b"x", key="k").id
    delivery = claimed(queue)
    if end == "dead":
        queue.fail(delivery)
    else:
        queue.ack(delivery, result=b"result" if "result" in end else None)
    clock.advance(HOUR - 1)
    sweep_all(world.store)
    again = queue.enqueue(b"x", key="k")
    assert (again.id, again.duplicate) == (job_id, True)
    with pytest.raises(KeyConflict):
        queue.enqueue(b"y", key="k")


@pytest.mark.parametrize("end", ["done", "done with result", "dead"])
def test_a_key_is_free_once_its_job_has_ended_and_its_window_passed(world: World, clock: ManualClock, end: str) -> None:
    queue = world.queue(policy=Policy(dedup_window=HOUR))
    job_id = queue.enqueue(b"x", key="k").id
    delivery = claimed(queue)
    if end == "dead":
        queue.fail(delivery)
    else:
        queue.ack(delivery, result=b"result" if "result" in end else None)
    clock.advance(HOUR + 1)
    sweep_all(world.store)
    again = queue.enqueue(b"another payload", key="k")
    assert not again.duplicate
    assert again.id != job_id
    assert queue.enqueue(b"another payload", key="k").id == again.id


def test_a_key_whose_window_passed_first_is_free_once_its_job_ends(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(dedup_window=HOUR))
    queue.enqueue(b"x", key="k")
    clock.advance(HOUR + 1)
    sweep_all(world.store)
    queue.ack(claimed(queue))
    sweep_all(world.store)
    assert not queue.enqueue(b"y", key="k").duplicate


def test_without_a_window_a_key_is_free_once_its_job_ends(world: World) -> None:
    queue = world.queue(policy=Policy(dedup_window=0))
    queue.enqueue(b"x", key="k")
    assert queue.enqueue(b"x", key="k").duplicate
    queue.ack(claimed(queue))
    sweep_all(world.store)
    assert not queue.enqueue(b"y", key="k").duplicate


def test_a_key_is_known_after_reopening(world: World) -> None:
    job_id = world.queue().enqueue(b"x", key="k").id
    world.reopen()
    again = world.queue().enqueue(b"x", key="k")
    assert (again.id, again.duplicate) == (job_id, True)


def test_racing_producers_make_one_job(live: World) -> None:
    queue = live.queue()
    jobs = [NewJob(b"%d" % n, key=f"k{n}") for n in range(25)]

    def produce() -> list[tuple[str, bool]]:
        single = [queue.enqueue(job) for job in jobs]
        return [(e.id, e.duplicate) for e in single + queue.enqueue_many(jobs)]

    answers = together([produce] * 8)
    assert queue.counts().enqueued == 25
    for n in range(25):
        told = [answer[at] for answer in answers for at in (n, n + 25)]
        assert len({job_id for job_id, _ in told}) == 1
        assert sum(not duplicate for _, duplicate in told) == 1


def test_a_retried_job_still_holds_its_key(queue: Queue) -> None:
    job_id = queue.enqueue(b"x", key="k").id
    queue.nack(claimed(queue), delay=0)
    assert queue.enqueue(b"x", key="k").id == job_id
    assert claimed(queue).key == "k"


def test_jobs_without_a_key_are_never_duplicates(queue: Queue) -> None:
    assert len(set(fill(queue, 3) + [queue.enqueue(b"0").id for _ in range(3)])) == 6
    assert len(ids(queue.claim(limit=10))) == 6


def test_a_key_leads_to_its_job(store: Store, queue: Queue, clock: ManualClock) -> None:
    queue.configure(Policy(dedup_window=60, max_attempts=1))
    assert queue.find("k/ü 1") is None
    job_id = queue.enqueue(b"x", key="k/ü 1").id
    assert queue.find("k/ü 1") == job_id
    assert store.queue("other").find("k/ü 1") is None
    queue.ack(claimed(queue))
    assert queue.find("k/ü 1") == job_id  # its job is gone, and the window has not passed
    clock.advance(61)
    assert queue.find("k/ü 1") is None
    for wrong in ("", "k" * 513, 5):
        with pytest.raises(InvalidArgument):
            queue.find(wrong)  # type: ignore[arg-type]  # a number is what is tried
