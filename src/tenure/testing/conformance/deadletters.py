"""Dead jobs stay until they are replayed or purged, and a replayed job is the same job."""

from __future__ import annotations

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.model.job import Where
from tenure.model.lease import Settle
from tenure.model.retry import Policy
from tenure.testing.conformance.world import (
    PROMPT,
    World,
    claim_all,
    claimed,
    event_types,
    fill,
    ids,
    kill,
    nothing_written,
    seen,
    sweep_all,
)


def test_a_replayed_job_is_the_same_job(world: World) -> None:
    queue = world.queue(policy=PROMPT)
    job_id = queue.enqueue(b"x", max_attempts=2, headers={"a": "b"}, priority=4, key="k").id
    tokens = []
    for _ in range(2):
        delivery = claimed(queue)
        tokens.append(delivery.token)
        queue.nack(delivery, error="boom")
    dead = seen(queue, job_id)
    replayed = queue.replay()
    assert (replayed.count, replayed.ids, replayed.skipped, replayed.dry_run) == (1, [job_id], [], False)
    job = seen(queue, job_id)
    assert (job.state, job.attempt, job.max_attempts, job.replays) == ("ready", 0, 2, 1)
    assert (job.payload, job.headers, job.priority, job.key) == (b"x", {"a": "b"}, 4, "k")
    assert (job.created_at, job.reason, job.ended_at) == (dead.created_at, None, None)
    for attempt in (1, 2):
        delivery = claimed(queue)
        assert (delivery.id, delivery.attempt) == (job_id, attempt)
        tokens.append(delivery.token)
        queue.nack(delivery, error="boom again")
    assert tokens == sorted(set(tokens)), "the token goes on growing"
    assert seen(queue, job_id).state == "dead"
    queue.replay()
    assert seen(queue, job_id).replays == 2
    assert event_types(queue, job_id) == [
        "enqueued", "claimed", "retried", "claimed", "died", "replayed", "claimed", "retried", "claimed", "died",
        "replayed",
    ]  # fmt: skip


def test_a_delivery_from_before_the_replay_settles_nothing(world: World) -> None:
    queue = world.queue(policy=PROMPT)
    queue.enqueue(b"x")
    old = claimed(queue)
    queue.fail(old)
    queue.replay()
    new = claimed(queue)
    assert queue.ack_many([old]).lost == [old.id]
    queue.ack(new)


def test_replay_by_ids(queue: Queue) -> None:
    made = kill(queue, 4)
    alive = queue.enqueue(b"x").id
    unknown = "0" * 32
    replayed = queue.replay(ids=[made[2], alive, unknown, made[0]])
    assert sorted(replayed.ids) == sorted([made[0], made[2]])
    assert sorted(replayed.skipped) == sorted([alive, unknown])
    assert replayed.count == 2
    assert [seen(queue, i).state for i in made] == ["ready", "dead", "ready", "dead"]


def test_replay_of_an_id_given_twice_is_once(queue: Queue) -> None:
    (job_id,) = kill(queue, 1)
    assert queue.replay(ids=[job_id, job_id]).count == 1
    assert seen(queue, job_id).replays == 1


def test_replay_by_what_they_died_of(world: World) -> None:
    queue = world.queue(policy=Policy(max_attempts=1))
    timeout, other = kill(queue, 2, "connect: Timeout after 5 s"), kill(queue, 1, "no such customer")
    queue.enqueue(b"x")
    delivery = claimed(queue)
    queue.nack(delivery, error="read: Timeout")
    assert sorted(queue.replay(where=Where(error="Timeout"), dry_run=True).ids) == sorted([*timeout, delivery.id])
    assert queue.replay(where=Where(error="Timeout", reason="max_attempts")).ids == [delivery.id]
    assert sorted(queue.replay(where=Where(reason="failed", error="Timeout")).ids) == sorted(timeout)
    assert [job.id for job in queue.list("dead")] == other


def test_replay_by_when_they_died(queue: Queue, clock: ManualClock) -> None:
    made, times = [], []
    for _ in range(4):
        made += kill(queue, 1)
        times.append(seen(queue, made[-1]).ended_at)
        clock.advance(10)
    since, before = times[1], times[3]
    assert since is not None
    assert before is not None
    assert queue.replay(where=Where(since=since, before=before)).ids == made[1:3]
    assert queue.replay(where=Where(before=before)).ids == made[:1]
    assert queue.replay(where=Where(since=before)).ids == made[3:]


def test_replay_of_some_takes_the_oldest(queue: Queue, clock: ManualClock) -> None:
    made = []
    for _ in range(5):
        made += kill(queue, 1)
        clock.advance(1)
    assert queue.replay(limit=2).ids == made[:2]
    assert queue.counts().dead == 3


def test_a_dry_run_says_what_it_would_do(store: Store, queue: Queue) -> None:
    made = kill(queue, 3)
    with nothing_written(store):
        plan = queue.replay(limit=2, dry_run=True)
        assert (plan.count, sorted(plan.ids), plan.dry_run) == (2, sorted(made)[:2], True)
        plan = queue.replay(ids=[made[0], "0" * 32], dry_run=True)
        assert (plan.ids, plan.skipped) == ([made[0]], ["0" * 32])
        plan = queue.replay(where=Where(error="no such error"), dry_run=True)
        assert (plan.count, plan.ids) == (0, [])


def test_a_rate_spaces_them(queue: Queue, clock: ManualClock) -> None:
    made = kill(queue, 4)
    replayed = queue.replay(rate=2)
    assert replayed.count == 4
    first = min(seen(queue, i).visible_at_ms for i in made)
    assert sorted(seen(queue, i).visible_at_ms - first for i in made) == [0, 500, 1000, 1500]
    assert replayed.last_visible_at_ms == first + 1500
    assert len(queue.claim(limit=4)) <= 1
    clock.advance(0.999)
    queue.claim(limit=4)
    assert queue.counts().scheduled >= 1
    clock.advance(1.001)
    queue.claim(limit=4)
    assert queue.counts().leased == 4


def test_replay_with_nothing_dead_writes_nothing(store: Store, queue: Queue) -> None:
    fill(queue, 2)
    with nothing_written(store):
        assert queue.replay().count == 0
        assert queue.purge("dead") == 0
        assert store.queue("nowhere").replay().count == 0


def test_replay_of_more_than_one_chunk(world: World) -> None:
    queue = world.queue()
    made = fill(queue, 2300)
    queue.settle_many([Settle("fail", d.proof, None, "all of them") for d in claim_all(queue, 2300)])
    assert queue.counts().dead == 2300
    told: list[int] = []
    replayed = queue.replay(progress=lambda done, of: told.append(done))
    assert replayed.count == 2300
    assert sorted(replayed.ids) == sorted(made)
    assert told == sorted(told)
    assert told[-1:] == [2300]
    assert sorted(ids(claim_all(queue, 3000))) == sorted(made)


def test_the_dead_stay_until_someone_decides(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=Policy(retention=10, result_retention=10))
    (job_id,) = kill(queue, 1)
    clock.advance(400 * 86_400)
    sweep_all(world.store)
    assert world.store.cleanup() == 0
    assert seen(queue, job_id).state == "dead"


def test_purging_the_dead(queue: Queue) -> None:
    made = kill(queue, 3)
    alive = queue.enqueue(b"x").id
    assert queue.purge() == 3
    assert [queue.get(i) for i in made] == [None] * 3
    assert seen(queue, alive).state == "ready"
    assert event_types(queue, made[0])[-1] == "purged"
    counts = queue.counts()
    assert (counts.dead, counts.removed, counts.enqueued) == (0, 3, 4)


@pytest.mark.parametrize("state", ["ready", "scheduled", "done", "dead"])
def test_purging_one_state_leaves_the_others(world: World, state: str) -> None:
    queue = world.queue(policy=Policy(retention=3600))
    fill(queue, 1)
    queue.ack(claimed(queue))
    kill(queue, 1)
    fill(queue, 1)
    leased = claimed(queue)
    fill(queue, 1)
    queue.enqueue(b"later", delay=60)
    assert queue.purge(state) == 1
    counts = queue.counts()
    left = {"ready": counts.ready, "scheduled": counts.scheduled, "done": counts.done, "dead": counts.dead}
    assert left == {name: int(name != state) for name in left}
    queue.ack(leased)


def test_a_dead_job_in_another_queue_is_not_replayed(store: Store) -> None:
    a, b = store.queue("a"), store.queue("b")
    (job_id,) = kill(a, 1)
    assert b.replay(ids=[job_id]).skipped == [job_id]
    assert b.replay().count == 0
    assert seen(a, job_id).state == "dead"
