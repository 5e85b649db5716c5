"""Steps and signals on Redis: their keys go with the job by every path, and `check` finds and mends what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import Corrupt
from tenure.model.ids import job_id_bytes
from tenure.model.job import NewJob
from tenure.model.retry import Policy
from tenure.testing.conformance.world import assert_sound
from tenure.testing.harness import backend_of

pytestmark = pytest.mark.xdist_group("redis")


def plain(store: Store, name: bytes, command: str, *rest: Any) -> Any:
    """Run a command of the server on a key of the queue `work`."""
    core = store._backend._core  # type: ignore[attr-defined]
    shard = core.shards.find(store.queue("work").name).shards[0]
    return core.commands.plain(shard.base + name, command, shard.base + name, *rest)


def with_steps(queue: Queue, **options: Any) -> str:
    """A job that has a step and two signals, and waits for another; its id."""
    job = queue.enqueue_many([NewJob(b"job", **options)])[0].id
    queue.signal(job, "early", b"1")
    (delivery,) = queue.claim()
    queue.record_step(delivery, "charge", b"receipt")
    queue.snooze(delivery, 3600, until_signal="go")
    return job


def settle(queue: Queue, job: str, how: str) -> None:
    queue.signal(job, "go")
    (delivery,) = queue.claim()
    assert delivery.id == job
    if how == "ack":
        queue.ack(delivery)
    else:
        queue.fail(delivery)


def ack_and_retire(queue: Queue, job: str, store: Store, clock: ManualClock) -> None:
    queue.configure(Policy(retention=60))
    settle(queue, job, "ack")
    assert len(queue.steps(job)) == 3
    clock.advance(61)
    store.sweep()


def fail_and_purge(queue: Queue, job: str, store: Store, clock: ManualClock) -> None:
    settle(queue, job, "fail")
    assert len(queue.steps(job)) == 3
    queue.purge("dead")


def fail_and_discard(queue: Queue, job: str, store: Store, clock: ManualClock) -> None:
    settle(queue, job, "fail")
    (dead,) = queue.list("dead").jobs
    assert backend_of(store).discard(queue.name, "dead", {job_id_bytes(job): dead.token}) == [job_id_bytes(job)]


ENDS: dict[str, Callable[[Queue, str, Store, ManualClock], object]] = {
    "ack": lambda queue, job, store, clock: settle(queue, job, "ack"),
    "retention": ack_and_retire,
    "purge": fail_and_purge,
    "purge of waiting jobs": lambda queue, job, store, clock: queue.purge("scheduled"),
    "discard": fail_and_discard,
    "cancel": lambda queue, job, store, clock: queue.cancel(job),
    "deletion of the queue": lambda queue, job, store, clock: store.delete_queue("work", force=True),
}


@pytest.mark.parametrize("end", ENDS)
def test_steps_go_with_their_job(store: Store, clock: ManualClock, end: str) -> None:
    queue = store.queue("work")
    job = with_steps(queue)
    key = b":steps:" + job_id_bytes(job)
    assert plain(store, key, "HLEN") == 2
    ENDS[end](queue, job, store, clock)
    assert plain(store, key, "EXISTS") == plain(store, b":steps", "EXISTS") == 0
    assert queue.steps(job) == []
    assert_sound(store)


def test_signals_go_with_a_job_whose_ttl_passes(store: Store, clock: ManualClock) -> None:
    queue = store.queue("work")
    job = queue.enqueue(b"job", ttl=60).id
    queue.signal(job, "early")
    clock.advance(61)
    store.sweep()
    assert plain(store, b":steps:" + job_id_bytes(job), "EXISTS") == plain(store, b":steps", "EXISTS") == 0
    assert_sound(store)


#: The key (JOB: the job's id), the command, and what is left of the steps after a repair.
DAMAGE: dict[str, tuple[bytes, list[Any], list[str]]] = {
    "count is missing": (b":steps", ["HDEL", b"JOB"], ["early", "charge"]),
    "count cannot be read": (b":steps", ["HSET", b"JOB", b"nonsense"], ["early", "charge"]),
    "step cannot be read": (b":steps:JOB", ["HSET", b"scharge", b"nonsense"], ["early"]),
    "step is missing": (b":steps:JOB", ["HDEL", b"scharge"], ["early"]),
    "all steps are missing": (b":steps:JOB", ["DEL"], []),
    "state cannot be read": (b":state", ["HSET", b"JOB", b"nonsense"], ["early", "charge"]),
    "count of no job": (b":steps", ["HSET", bytes(16), b"nonsense"], ["early", "charge"]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_mended(store: Store, damage: str) -> None:
    queue = store.queue("work")
    job = with_steps(queue)
    name, (command, *rest), left = DAMAGE[damage]
    raw = job_id_bytes(job)
    plain(store, name.replace(b"JOB", raw), command, *[raw if part == b"JOB" else part for part in rest])
    assert not store.check().clean
    report = store.check(repair=True)
    assert report.ok, report.findings
    assert_sound(store)
    assert [step.name for step in queue.steps(job)] == left
    queue.signal(job, "go")
    queue.cancel(job)
    assert_sound(store)
    assert plain(store, b":steps:" + raw, "EXISTS") == plain(store, b":steps", "EXISTS") == 0


def test_a_damaged_step_is_not_returned(store: Store) -> None:
    queue = store.queue("work")
    job = with_steps(queue)
    queue.signal(job, "go")
    (delivery,) = queue.claim()
    plain(store, b":steps:" + job_id_bytes(job), "HSET", b"scharge", b"nonsense")
    with pytest.raises(Corrupt):
        queue.steps(job)
    with pytest.raises(Corrupt):
        queue.record_step(delivery, "charge", b"again")


def test_jobs_without_steps_write_none(store: Store) -> None:
    queue = store.queue("work")
    queue.enqueue(b"job")
    (delivery,) = queue.claim()
    queue.snooze(delivery, 0)
    (again,) = queue.claim()
    assert plain(store, b":steps", "EXISTS") == 0
    queue.ack(again)
