"""Restored jobs: what is refused, what counts for a quota, and keys, parents and results whose time has passed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import tenure
from tenure import ManualClock, NewJob, Policy, Quota, Store
from tenure.errors import InvalidArgument, QuotaExceeded, TooLarge
from tenure.model.attachments import Attached
from tenure.model.job import Job
from tenure.model.step import Step
from tenure.storage import keyspace
from tenure.testing.conformance.world import assert_sound
from tests.queueing.stored_rows import rows, write


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with tenure.open("memory:", clock=clock, sweep=False) as opened:
        yield opened
        assert_sound(opened)


def got(store: Store, job_id: str, queue: str = "work") -> Job:
    job = store.queue(queue).get(job_id)
    assert job is not None
    return job


def test_a_restored_job_counts_for_its_tenants_quota(store: Store) -> None:
    source = store.queue("work")
    jobs = [got(store, e.id) for e in source.enqueue_many([b"x" * 100] * 3)]
    store.set_quota("acme", Quota(max_waiting=2, max_bytes=1000))
    target = store.queue("work", tenant="acme")
    with pytest.raises(QuotaExceeded):
        target.restore(jobs)
    assert target.restore(jobs[:2]).added == [job.id for job in jobs[:2]]
    (usage,) = store.quotas("acme")
    assert (usage.waiting, usage.bytes) == (2, 200)


def test_a_job_that_must_hold_a_taken_key_is_refused_and_leaves_it(store: Store) -> None:
    job = got(store, store.queue("old").enqueue(b"x", key="order-17").id, "old")
    other = store.queue("work").enqueue(b"y", key="order-17")
    refused = store.queue("work").restore([job]).refused
    assert "order-17" in refused[job.id]
    assert store.queue("work").enqueue(b"y", key="order-17").id == other.id


def test_a_refused_job_of_a_key_does_not_hold_it(store: Store, clock: ManualClock) -> None:
    """A blocked job is refused for its parent, after its key was found free."""
    source = store.queue("old")
    parent, child = source.enqueue_many([NewJob(b"p", name="p"), NewJob(b"c", after=["#p"], key="k")])
    attached = {child.id: Attached(parents=source.parents(child.id))}
    refused = store.queue("work").restore([got(store, child.id, "old")], attached).refused
    assert child.id not in refused  # its parent is in queue "old" of this store
    with tenure.open("memory:", clock=clock, sweep=False) as other:
        queue = other.queue("work")
        assert parent.id in queue.restore([got(store, child.id, "old")], attached).refused[child.id]
        assert not queue.enqueue(b"c", key="k").duplicate
        assert_sound(other)


@pytest.mark.parametrize("ended", [False, True], ids=["waiting", "done"])
def test_a_key_whose_window_has_passed_is_held_only_by_a_job_that_has_not_ended(
    store: Store, clock: ManualClock, ended: bool
) -> None:
    source = store.queue("old")
    source.configure(Policy(retention=10 * 86_400))
    job_id = source.enqueue(b"x", key="k").id
    if ended:
        source.ack(source.claim()[0])
    clock.advance(2 * 86_400)  # the window is a day
    target = store.queue("work")
    assert target.restore([got(store, job_id, "old")]).added == [job_id]
    assert len(rows(store, keyspace.DEDUP)) == (1 if ended else 2)
    assert target.enqueue(b"x", key="k").duplicate is not ended


def test_a_done_job_past_its_retention_is_kept_by_the_new_queues_policy(store: Store, clock: ManualClock) -> None:
    source = store.queue("old")
    source.configure(Policy(retention=60, result_retention=60))
    source.enqueue(b"x")
    (delivery,) = source.claim()
    source.ack(delivery, b"result")
    job = got(store, delivery.id, "old")
    clock.advance(1000)
    store.queue("work").configure(Policy(retention=0, result_retention=500))
    assert store.queue("work").restore([job]).added
    store.queue("plain").configure(Policy(retention=0, result_retention=500))
    plain = msgspec.structs.replace(job, result=None)
    assert store.queue("plain").restore([plain]).added
    store.sweep()
    assert store.queue("old").get(job.id) is None
    clock.advance(501)
    store.sweep()
    assert store.queue("work").get(job.id) is None
    assert store.queue("plain").get(job.id) is not None  # a day, if the policy keeps nothing


def test_a_blocked_job_whose_parents_have_ended_elsewhere_is_restored_ready(store: Store, clock: ManualClock) -> None:
    source = store.queue("old")
    _, child = source.enqueue_many([NewJob(b"p", name="p"), NewJob(b"c", after=["#p"])])
    ended = [msgspec.structs.replace(parent, state="done", queue="") for parent in source.parents(child.id)]
    with tenure.open("memory:", clock=clock, sweep=False) as other:
        queue = other.queue("work")
        assert queue.restore([got(store, child.id, "old")], {child.id: Attached(parents=ended)}).added == [child.id]
        assert [d.id for d in queue.claim()] == [child.id]
        assert_sound(other)


def test_a_blocked_job_of_a_dead_parent_is_refused_unless_it_runs_all_the_same(
    store: Store, clock: ManualClock
) -> None:
    source = store.queue("old")
    parent, cancelled, waits = source.enqueue_many(
        [NewJob(b"p", name="p"), NewJob(b"c", after=["#p"]), NewJob(b"w", after=["#p"], on_parent_dead="wait")]
    )
    attached = {e.id: Attached(parents=source.parents(e.id)) for e in (cancelled, waits)}
    jobs = [got(store, e.id, "old") for e in (parent, cancelled, waits)]
    with tenure.open("memory:", clock=clock, sweep=False) as other:
        queue = other.queue("old")
        queue.restore(jobs[:1])
        queue.fail(queue.claim()[0], "broken")
        restored = queue.restore(jobs[1:], attached)
        assert "which is dead" in restored.refused[cancelled.id]
        assert restored.added == [waits.id]
        assert queue.counts().blocked == 1
        runs = msgspec.structs.replace(jobs[1], on_parent_dead="run")
        assert queue.restore([runs], attached).added == [cancelled.id]
        assert [d.id for d in queue.claim(5)] == [cancelled.id]
        assert_sound(other)


def test_a_job_whose_payload_is_lost_differs_from_its_image(store: Store) -> None:
    job = got(store, store.queue("work").enqueue(b"x").id)
    number = store.queues()[0].number
    at = keyspace.of_queue(number, bytes.fromhex(job.id))
    write(store, lambda tx: tx.delete(keyspace.JOBS, at))
    assert "differs" in store.queue("work").restore([job]).refused[job.id]
    store.check(repair=True)
    assert store.queue("work").restore([job]).added == [job.id]


def step(name: str, kind: Any = "step", value: bytes = b"v") -> Step:
    return Step(name=name, kind=kind, value=value, stored_at_ms=1)


@pytest.mark.parametrize(
    ("change", "attached"),
    [
        ({"on_parent_dead": "explode"}, Attached(steps=[step("a")])),
        ({}, Attached(steps=[step("a", "wish")])),
        ({}, Attached(steps=[step("a"), step("a")])),
        ({}, Attached(steps=[step(f"s{n}") for n in range(20_000)])),
    ],
    ids=["policy", "kind", "twice", "too many"],
)
def test_attachments_are_checked(store: Store, change: dict[str, Any], attached: Attached) -> None:
    job = msgspec.structs.replace(got(store, store.queue("work").enqueue(b"x").id), **change)
    with pytest.raises((InvalidArgument, TooLarge)):
        store.queue("other").restore([job], {job.id: attached})
    assert {queue.queue for queue in store.queues()} == {"work"}
