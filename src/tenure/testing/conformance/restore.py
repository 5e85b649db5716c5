"""`restore` puts in jobs of another store unchanged; `discard` removes jobs that have not changed since."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument
from tenure.model.attachments import Attached
from tenure.model.job import Job, NewJob
from tenure.model.retry import Policy
from tenure.testing.conformance.world import (
    KEEPING,
    PROMPT,
    World,
    claimed,
    event_types,
    fill,
    kill,
    nothing_written,
    seen,
    sweep_all,
)

#: Fields in which a job and its restored copy may differ: its location, and its lease.
_OWN = {"queue", "tenant", "lease_id", "lease_until_ms", "worker", "state"}


def _facts(job: Job) -> dict[str, object]:
    return {name: getattr(job, name) for name in job.__struct_fields__ if name not in _OWN}


def _all_states(queue: Queue) -> dict[str, Job]:
    """One job of each state, with everything a job can have."""
    queue.configure(KEEPING)
    made: dict[str, str] = {}
    made["done"] = queue.enqueue(b"done", priority=9, headers={"a": "b", "é": "ü"}).id
    done = claimed(queue)
    queue.progress(done, 0.5, "half")
    queue.ack(done, result=b"r" * 100_000)
    made["dead"] = queue.enqueue(b"dead", priority=9, max_attempts=2).id
    queue.nack(claimed(queue), error="first")
    queue.nack(claimed(queue), error="last")
    made["replayed"] = queue.enqueue(b"replayed", priority=8).id
    queue.fail(claimed(queue), error="broken")
    queue.replay(ids=[made["replayed"]])
    made["leased"] = queue.enqueue(b"leased", priority=9).id
    claimed(queue)
    made["large"] = queue.enqueue(b"x" * 200_000).id
    made["keyed"] = queue.enqueue(b"keyed", key="order-17").id
    made["later"] = queue.enqueue(b"later", delay=60).id
    made["mortal"] = queue.enqueue(b"mortal", ttl=100).id
    return {name: seen(queue, job_id) for name, job_id in made.items()}


def test_restored_jobs_are_the_jobs_they_were(world: World) -> None:
    jobs = _all_states(world.queue("from"))
    there = world.queue("to", policy=KEEPING)
    restored = there.restore(list(jobs.values()))
    assert (sorted(restored.added), restored.there, restored.refused) == (sorted(j.id for j in jobs.values()), [], {})
    for name, job in jobs.items():
        found = seen(there, job.id)
        assert _facts(found) == _facts(job), name
        assert found.state == ("ready" if name == "leased" else job.state)
        assert event_types(there, job.id) == ["restored"]
    counts = there.counts()
    assert (counts.enqueued, counts.waiting, counts.leased, counts.done, counts.dead) == (8, 6, 0, 1, 1)


def test_restoring_again_adds_nothing(world: World) -> None:
    jobs = list(_all_states(world.queue("from")).values())
    there = world.queue("to", policy=KEEPING)
    there.restore(jobs[:3])
    again = there.restore([*jobs, jobs[0]])
    assert (sorted(again.there), len(again.added), again.refused) == (sorted(j.id for j in jobs[:3]), len(jobs) - 3, {})
    with nothing_written(world.store):
        assert there.restore(jobs).added == []
        assert there.restore([]).added == []


def test_a_job_that_has_moved_on_is_not_set_back(world: World) -> None:
    source = world.queue("from")
    fill(source, 2)
    jobs = list(source.list("ready"))
    there = world.queue("to", policy=PROMPT)
    there.restore(jobs)
    there.nack(claimed(there), error="no")
    answer = there.restore(jobs)
    assert list(answer.refused) == [jobs[0].id]
    assert "differs" in answer.refused[jobs[0].id]
    assert answer.there == [jobs[1].id]
    assert seen(there, jobs[0].id).attempt == 1


def test_restored_jobs_go_on_living(world: World, clock: ManualClock) -> None:
    jobs = _all_states(world.queue("from"))
    there = world.queue("to", policy=PROMPT)
    there.restore(list(jobs.values()))
    claim = there.claim(limit=20)
    assert [d.payload[:8] for d in claim] == [b"leased", b"replayed", b"xxxxxxxx", b"keyed", b"mortal"]
    tokens = {d.id: d.token for d in claim}
    assert tokens[jobs["leased"].id] == jobs["leased"].token + 1, "a token is never given twice"
    there.ack_many(claim)
    there.replay(ids=[jobs["dead"].id])
    dead = claimed(there)
    assert dead.token == jobs["dead"].token + 1
    there.ack(dead)
    clock.advance(61)
    assert claimed(there).payload == b"later"
    clock.advance(25 * 3600)
    sweep_all(world.store)
    assert there.get(jobs["done"].id) is None, "its retention continued"


def test_a_restored_ttl_counts_on(world: World, clock: ManualClock) -> None:
    source = world.queue("from")
    source.enqueue(b"x", ttl=100)
    (job,) = source.list("ready")
    there = world.queue("to")
    clock.advance(60)
    there.restore([job])
    clock.advance(41)
    assert not there.claim()
    assert there.counts().removed == 1


def test_a_restored_job_holds_its_key(world: World) -> None:
    source, there = world.queue("from"), world.queue("to")
    job_id = source.enqueue(b"x", key="k").id
    there.restore([seen(source, job_id)])
    assert there.enqueue(b"x", key="k") == there.enqueue(b"x", key="k")
    assert there.enqueue(b"x", key="k").duplicate


def test_a_job_whose_key_is_taken_is_refused(world: World) -> None:
    source, there = world.queue("from"), world.queue("to")
    job_id = source.enqueue(b"x", key="k").id
    holder = there.enqueue(b"other", key="k").id
    answer = there.restore([seen(source, job_id)])
    assert answer.added == []
    assert holder in answer.refused[job_id]
    assert there.get(job_id) is None


def test_of_two_restored_jobs_with_one_key_the_one_that_waits_holds_it(world: World) -> None:
    """In any order; the ended job is restored without the key."""
    first, second = world.queue("first", policy=KEEPING), world.queue("second")
    ended = first.enqueue(b"x", key="k").id
    first.ack(claimed(first))
    waits = second.enqueue(b"x", key="k").id
    there = world.queue("to", policy=KEEPING)
    answer = there.restore([seen(first, ended), seen(second, waits)])
    assert sorted(answer.added) == sorted([ended, waits])
    assert answer.refused == {}
    assert there.enqueue(b"x", key="k").id == waits


def test_restoring_wakes_nobody_early_and_everybody_in_time(world: World, clock: ManualClock) -> None:
    source, there = world.queue("from"), world.queue("to")
    source.enqueue(b"later", delay=10)
    there.restore(list(source.list("scheduled")))
    assert not there.claim()
    clock.advance(10)
    assert claimed(there).payload == b"later"


def test_restore_is_not_held_back_by_max_waiting(world: World) -> None:
    source = world.queue("from")
    fill(source, 5)
    there = world.queue("to", policy=Policy(max_waiting=2))
    assert len(there.restore(list(source.list("ready"))).added) == 5


@pytest.mark.parametrize(
    "change",
    [{"state": "gone"}, {"priority": 10}, {"token": -1}, {"id": "x"}, {"payload": "text"}, {"state": "dead"}],
)
def test_invalid_jobs_are_not_restored(store: Store, queue: Queue, change: dict[str, object]) -> None:
    fill(queue, 1)
    (job,) = queue.list("ready")
    with nothing_written(store), pytest.raises(InvalidArgument):
        store.queue("to").restore([msgspec.structs.replace(job, **change)])


def test_a_delivery_is_not_restored(queue: Queue) -> None:
    with pytest.raises(InvalidArgument):
        queue.restore([NewJob(b"x")])  # type: ignore[list-item]


# ── steps, signals and parents ───────────────────────────────────────────────────────────────────────────────────────


def _whole(queue: Queue, to: str, *ids: str) -> tuple[list[Job], dict[str, Attached]]:
    """Jobs with their steps and parents, whose parents are renamed to the queue `to`."""
    jobs = [seen(queue, id) for id in ids]
    attached = {}
    for job in jobs:
        parents = queue.parents(job.id) if job.has_parents else []
        moved = [msgspec.structs.replace(parent, queue=to) for parent in parents]
        attached[job.id] = Attached(steps=queue.steps(job.id), parents=moved)
    return jobs, attached


def test_steps_and_signals_are_restored(world: World) -> None:
    source, there = world.queue("from", policy=PROMPT), world.queue("to", policy=PROMPT)
    job_id = source.enqueue(b"x").id
    first = claimed(source)
    source.record_step(first, "charge", b"42")
    source.signal(job_id, "approval", b"yes")
    source.record_step(first, "empty", b"")
    source.release(first)
    steps = source.steps(job_id)
    jobs, attached = _whole(source, "to", job_id)
    assert (jobs[0].has_steps, jobs[0].has_parents, jobs[0].waits_for) == (True, False, None)
    assert there.restore(jobs, attached).added == [job_id]
    assert there.steps(job_id) == steps
    again = claimed(there)
    assert there.record_step(again, "charge", b"another") == b"42", "a stored step is not repeated"
    assert not there.signal(job_id, "approval")
    assert there.record_step(again, "ship", b"1") == b"1"
    assert [step.name for step in there.steps(job_id)] == ["charge", "approval", "empty", "ship"]
    there.ack(again)
    assert there.steps(job_id) == []


def test_a_restored_job_waits_for_its_signal(world: World, clock: ManualClock) -> None:
    source, there = world.queue("from"), world.queue("to")
    job_id = source.enqueue(b"x").id
    source.snooze(claimed(source), 3600, until_signal="go")
    jobs, attached = _whole(source, "to", job_id)
    assert jobs[0].waits_for == "go"
    there.restore(jobs, attached)
    assert not there.claim()
    assert there.signal(job_id, "other")
    assert not there.claim()
    assert there.signal(job_id, "go", b"!")
    assert claimed(there).id == job_id
    clock.advance(1)
    assert seen(there, job_id).waits_for is None


def test_a_restored_job_still_waits_for_its_parents(world: World) -> None:
    source, there = world.queue("from", policy=KEEPING), world.queue("to", policy=KEEPING)
    done = source.enqueue(b"done", priority=9).id
    first = [NewJob(b"p", name="p"), NewJob(b"child", after=["#p", done]), NewJob(b"last", name="l", after=["#p"])]
    parent, child, last = [job.id for job in source.enqueue_many(first)]
    source.ack(claimed(source), result=b"r")
    jobs, attached = _whole(source, "to", last, child, parent, done)
    assert [(job.state, job.has_parents, job.on_parent_dead) for job in jobs] == [
        ("blocked", True, "cancel"), ("blocked", True, "cancel"), ("ready", False, None), ("done", False, None),
    ]  # fmt: skip
    restored = there.restore(jobs, attached)
    assert (len(restored.added), restored.refused) == (4, {})
    assert there.counts().blocked == 2
    assert event_types(there, child) == ["restored"]
    with nothing_written(world.store):
        assert sorted(there.restore(jobs, attached).there) == sorted(restored.added)
    assert [p.id for p in there.parents(child)] == [parent, done]
    there.ack(claimed(there), result=b"now")
    claim = there.claim(limit=5)
    assert sorted(d.id for d in claim) == sorted([child, last])
    assert [p.result for p in there.parents(child)] == [b"now", b"r"]


def test_a_job_whose_parent_is_missing_is_refused(world: World) -> None:
    source, there = world.queue("from", policy=PROMPT), world.queue("to", policy=PROMPT)
    graph = [NewJob(b"p", name="p"), NewJob(b"c", name="c", after=["#p"]), NewJob(b"g", after=["#c"])]
    parent, child, grandchild = [job.id for job in source.enqueue_many(graph)]
    jobs, attached = _whole(source, "to", grandchild, child)
    with nothing_written(world.store):
        refused = there.restore(jobs, attached).refused
    assert refused.keys() == {child, grandchild}
    assert parent in refused[child]
    with pytest.raises(InvalidArgument, match="with the parents"):
        there.restore(jobs)
    everything = _whole(source, "to", grandchild, parent, child)
    assert len(there.restore(*everything).added) == 3
    for id in (parent, child, grandchild):
        delivery = claimed(there)
        assert delivery.id == id
        there.ack(delivery)


@pytest.mark.parametrize("policy", ["cancel", "run", "wait"])
def test_on_parent_dead_is_restored(world: World, policy: Literal["cancel", "run", "wait"]) -> None:
    source, there = world.queue("from", policy=PROMPT), world.queue("to", policy=PROMPT)
    graph = [NewJob(b"p", name="p"), NewJob(b"c", after=["#p"], on_parent_dead=policy)]
    parent, child = [job.id for job in source.enqueue_many(graph)]
    jobs, attached = _whole(source, "to", child, parent)
    there.restore(jobs, attached)
    there.fail(claimed(there), error="no")
    found = there.get(child)
    assert (None if found is None else found.state) == {"cancel": None, "run": "ready", "wait": "blocked"}[policy]


def test_a_restored_job_waits_for_a_dead_parent_to_be_replayed(world: World) -> None:
    source, there = world.queue("from", policy=PROMPT), world.queue("to", policy=PROMPT)
    graph = [NewJob(b"p", name="p"), NewJob(b"c", after=["#p"], on_parent_dead="wait")]
    parent, child = [job.id for job in source.enqueue_many(graph)]
    source.fail(claimed(source), error="no")
    there.restore(*_whole(source, "to", child, parent))
    assert seen(there, child).state == "blocked"
    there.replay(ids=[parent])
    there.ack(claimed(there))
    assert claimed(there).id == child


# ── discard ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_discard_removes_what_is_unchanged(world: World) -> None:
    queue = world.queue(policy=KEEPING)
    dead = kill(queue, 3)
    fill(queue, 1)
    done = claimed(queue)
    queue.ack(done)
    tokens = {job: seen(queue, job).token for job in dead}
    queue.replay(ids=[dead[0]])
    queue.fail(claimed(queue))
    assert sorted(queue.discard(tokens)) == sorted(dead[1:]), "the first has died again since"
    assert seen(queue, dead[0]).state == "dead"
    assert queue.discard({done.id: done.token}) == [], "it is not dead"
    assert queue.discard({done.id: done.token + 1}, "done") == []
    assert queue.discard({done.id: done.token}, "done") == [done.id]
    assert event_types(queue, done.id)[-1] == "purged"
    with nothing_written(world.store):
        assert queue.discard(tokens | {"0" * 32: 1, dead[0]: 99}) == []
        assert world.store.queue("nowhere").discard({dead[0]: 1}) == []
        assert queue.discard({}) == []


def test_discard_leaves_what_has_not_ended(queue: Queue) -> None:
    for state in ("ready", "leased", "scheduled"):
        with pytest.raises(InvalidArgument):
            queue.discard({"0" * 32: 1}, state)


# ── replay of what was looked at ─────────────────────────────────────────────────────────────────────────────────────


def test_replay_by_ids_and_tokens(world: World) -> None:
    queue = world.queue(policy=PROMPT)
    dead = kill(queue, 3)
    tokens = {job: seen(queue, job).token for job in dead}
    queue.replay(ids=[dead[0]])
    queue.fail(claimed(queue))
    plan = queue.replay(ids=tokens, dry_run=True)
    assert (sorted(plan.ids), plan.skipped) == (sorted(dead[1:]), [dead[0]])
    did = queue.replay(ids=tokens)
    assert (sorted(did.ids), did.skipped) == (sorted(dead[1:]), [dead[0]])
    assert seen(queue, dead[0]).state == "dead"


def test_a_replay_may_begin_later(queue: Queue) -> None:
    dead = kill(queue, 2)
    before = min(seen(queue, job).visible_at_ms for job in dead)
    queue.replay(rate=10, delay=5)
    times = sorted(seen(queue, job).visible_at_ms for job in dead)
    assert times[1] - times[0] == 100
    assert times[0] - before >= 5000
    assert not queue.claim()
