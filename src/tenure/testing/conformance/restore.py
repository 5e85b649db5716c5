"""Jobs put in as they stood elsewhere, and taken out where they are still what they were."""

from __future__ import annotations

import msgspec
import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument
from tenure.model.job import Job, NewJob
from tenure.model.retry import Policy
from tenure.testing.conformance.world import (
    KEEPING,
    PROMPT,
    World,
    claimed,
    fill,
    happened,
    kill,
    nothing_written,
    seen,
    sweep_all,
)

#: What two stores may differ in of one job: where it is, and what only a lease says.
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
        assert happened(there, job.id) == ["restored"]
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
    assert tokens[jobs["leased"].id] == jobs["leased"].token + 1, "a token is never handed out twice"
    there.ack_many(claim)
    there.replay(ids=[jobs["dead"].id])
    dead = claimed(there)
    assert dead.token == jobs["dead"].token + 1
    there.ack(dead)
    clock.advance(61)
    assert claimed(there).payload == b"later"
    clock.advance(25 * 3600)
    sweep_all(world.store)
    assert there.get(jobs["done"].id) is None, "its retention went on"


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
    """In whichever order they come; the one that has ended is restored without it."""
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
def test_what_is_no_job_is_not_restored(store: Store, queue: Queue, change: dict[str, object]) -> None:
    fill(queue, 1)
    (job,) = queue.list("ready")
    with nothing_written(store), pytest.raises(InvalidArgument):
        store.queue("to").restore([msgspec.structs.replace(job, **change)])


def test_a_delivery_is_not_restored(queue: Queue) -> None:
    with pytest.raises(InvalidArgument):
        queue.restore([NewJob(b"x")])  # type: ignore[list-item]


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
    assert happened(queue, done.id)[-1] == "purged"
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
