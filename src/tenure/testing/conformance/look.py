"""Queries: get, list, counts, timeline, wait_for, upcoming. None of them writes."""

from __future__ import annotations

import itertools
import time

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, WaitTimeout
from tenure.model.event import Event
from tenure.model.job import Job
from tenure.model.retry import Policy
from tenure.testing.conformance.world import (
    KEEPING,
    MOMENT,
    PATIENCE,
    PROMPT,
    World,
    all_events,
    begin,
    claimed,
    fill,
    job_events,
    kill,
    nothing_written,
    result_when_due,
    seen,
    still_waiting,
)


def _one_of_each(queue: Queue) -> dict[str, str]:
    queue.configure(KEEPING)
    made = {}
    made["done"] = queue.enqueue(b"done").id
    queue.ack(claimed(queue))
    (made["dead"],) = kill(queue, 1)
    made["leased"] = queue.enqueue(b"leased").id
    claimed(queue, lease=600, worker="w1")
    made["ready"] = queue.enqueue(b"ready").id
    made["scheduled"] = queue.enqueue(b"scheduled", delay=3600).id
    return made


def test_queries_write_nothing(store: Store, queue: Queue) -> None:
    made = _one_of_each(queue)
    with nothing_written(store):
        for state, job_id in made.items():
            assert seen(queue, job_id).state == state
            queue.timeline(job_id)
            assert [job.id for job in queue.list(state)] == [job_id]
        queue.counts()
        queue.policy()
        store.queues()
        store.upcoming()
        store.check()
        queue.wait_for(made["done"])
        queue.replay(dry_run=True)


def test_queries_of_unknown_jobs_and_queues(store: Store, queue: Queue) -> None:
    for there in (queue, store.queue("nowhere")):
        with nothing_written(store):
            assert there.get("0" * 32) is None
            assert there.timeline("0" * 32) == []
            assert there.wait_for("0" * 32, timeout=5) is None
            page = there.list("ready")
            assert (page.jobs, page.cursor) == ([], None)
            counts = there.counts()
            assert (counts.waiting, counts.leased, counts.done, counts.dead, counts.enqueued) == (0, 0, 0, 0, 0)
        queue.enqueue(b"x")


def test_counts(queue: Queue, clock: ManualClock) -> None:
    _one_of_each(queue)
    fill(queue, 2)
    queue.cancel(queue.enqueue(b"x").id)
    counts = queue.counts()
    assert (counts.ready, counts.scheduled, counts.waiting) == (3, 1, 4)
    assert (counts.leased, counts.done, counts.dead, counts.removed, counts.enqueued) == (1, 1, 1, 1, 8)
    assert not counts.at_least
    clock.advance(3600)
    counts = queue.counts()
    assert (counts.ready, counts.scheduled) == (4, 0), "nothing has to move for a job to become ready"


def test_counts_of_a_long_queue_are_honest(queue: Queue) -> None:
    fill(queue, 3000)
    queue.enqueue(b"later", delay=60)
    counts = queue.counts()
    assert counts.waiting == 3001
    assert counts.at_least or (counts.ready, counts.scheduled) == (3000, 1)
    assert counts.ready <= 3000


@pytest.mark.parametrize("state", ["scheduled", "ready", "leased", "done", "dead"])
def test_list_gives_every_job_of_a_state_once_a_page_at_a_time(world: World, clock: ManualClock, state: str) -> None:
    queue = world.queue(policy=KEEPING)
    made = []
    for n in range(23):
        clock.advance(0.5 if n % 3 else 0)
        job_id = queue.enqueue(b"%d" % n, priority=n % 4, delay=3600 if state == "scheduled" else None).id
        made.append(job_id)
        if state in {"leased", "done", "dead"}:
            delivery = claimed(queue, lease=3600)
            if state == "done":
                queue.ack(delivery)
            elif state == "dead":
                queue.fail(delivery, "broken")
    for size in (1, 5, 23, 100):
        found: list[str] = []
        page = queue.list(state, limit=size)
        while True:
            assert len(page) <= size
            found += [job.id for job in page]
            assert {job.state for job in page} <= {state}
            if page.cursor is None:
                break
            page = queue.list(state, limit=size, cursor=page.cursor)
        assert len(found) == len(set(found))
        assert sorted(found) == sorted(made)
    for other in {"scheduled", "ready", "leased", "done", "dead"} - {state}:
        assert queue.list(other).jobs == []


def test_list_of_the_ready_is_in_the_order_they_would_be_claimed(world: World, clock: ManualClock) -> None:
    if world.store.traits.order != "strict":
        pytest.skip("this store keeps the order nearly")
    queue = world.queue()
    for priority in (1, 9, 5, 9, 1):
        queue.enqueue(b"x", priority=priority)
        clock.advance(1)
    listed = [job.id for job in queue.list("ready")]
    assert listed == [d.id for d in queue.claim(limit=5)]


def test_a_listed_job_is_whole(queue: Queue) -> None:
    made = _one_of_each(queue)
    for state, job_id in made.items():
        assert queue.list(state).jobs == [queue.get(job_id)]


def test_a_page_goes_on_where_it_stopped_whatever_happened_meanwhile(queue: Queue) -> None:
    made = fill(queue, 10)
    page = queue.list("ready", limit=4)
    assert [job.id for job in page] == made[:4]
    queue.cancel(made[3])
    queue.cancel(made[5])
    page = queue.list("ready", limit=4, cursor=page.cursor)
    assert [job.id for job in page] == [made[4], made[6], made[7], made[8]]


def test_a_foreign_list_cursor_is_refused(store: Store, queue: Queue) -> None:
    fill(queue, 2)
    for cursor in ("nonsense", "", "zz", "0" * 64):
        with nothing_written(store), pytest.raises(InvalidArgument):
            queue.list("ready", cursor=cursor)


# ── timeline ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_timeline_tells_a_jobs_life(world: World, clock: ManualClock) -> None:
    queue = world.queue(policy=PROMPT)
    job_id = queue.enqueue(b"x", max_attempts=3, priority=2).id
    clock.advance(1)
    queue.nack(claimed(queue, worker="w1"), error="first")
    clock.advance(1)
    queue.release(claimed(queue))
    clock.advance(1)
    claimed(queue, lease=10)
    clock.advance(11)
    queue.ack(claimed(queue), result=b"r")
    told = job_events(queue, job_id)
    assert [e.type for e in told] == [
        "enqueued", "claimed", "retried", "claimed", "released", "claimed", "expired", "claimed", "done",
    ]  # fmt: skip
    assert [e.attempt for e in told if e.type == "claimed"] == [1, 2, 2, 3]
    assert [e.state for e in told] == [
        "waiting", "leased", "waiting", "leased", "waiting", "leased", "waiting", "leased", "done",
    ]  # fmt: skip
    assert {(e.tenant, e.queue, e.job_id, e.priority, e.max_attempts) for e in told} == {
        ("default", "work", job_id, 2, 3)
    }
    tokens = [e.token for e in told if e.type == "claimed"]
    assert tokens == sorted(set(tokens))
    assert [e.time for e in told] == sorted(e.time for e in told)
    assert (told[1].text, told[2].text) == ("w1", "first")
    _are_linked(told)


def _are_linked(told: list[Event]) -> None:
    assert told[0].previous is None
    for before, after in itertools.pairwise(told):
        assert after.previous == (before.commit, before.index)


def test_a_timeline_is_what_the_journal_says_of_the_job(world: World) -> None:
    queue = world.queue(policy=PROMPT)
    made = fill(queue, 5)
    for _ in range(3):
        for n, delivery in enumerate(queue.claim(limit=5)):
            if n % 2:
                queue.nack(delivery)
            else:
                queue.release(delivery)
    queue.ack_many(queue.claim(limit=5))
    for job_id in made:
        assert queue.timeline(job_id) == [e for e in all_events(world.store) if e.job_id == job_id]


# ── wait_for ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def finish(queue: Queue, job_id: str, end: str) -> None:
    if end == "cancelled":
        queue.cancel(job_id)
    elif end == "purged":
        queue.purge("ready")
    elif end == "failed":
        queue.fail(claimed(queue), "broken")
    elif end == "dead":
        queue.nack(claimed(queue), "broken")
    else:
        queue.ack(claimed(queue), result=b"42" if "result" in end else None)


@pytest.mark.parametrize("end", ["done", "done with result", "done and gone", "failed", "dead", "cancelled", "purged"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_wait_for_the_end_of_a_job(world: World, end: str, when: str) -> None:
    queue = world.queue(policy=Policy(max_attempts=1, retention=0 if end == "done and gone" else 3600))
    gone = end in {"done and gone", "cancelled", "purged"}

    def waited_for(job_id: str) -> Job | None:
        if when == "before":
            finish(queue, job_id, end)
            return queue.wait_for(job_id, timeout=60)
        waiter = begin(lambda: queue.wait_for(job_id, timeout=60))
        assert still_waiting(waiter)
        finish(queue, job_id, end)
        return waiter.result(PATIENCE)

    job_id = queue.enqueue(b"x").id
    job = waited_for(job_id)
    if when == "before" and gone:
        assert job is None, "what is gone is gone, and not waited for"
        return
    for _ in range(20 if gone else 0):  # on a slow machine it may have begun to wait only when the job was gone
        if job is not None:
            break
        job_id = queue.enqueue(b"x").id
        job = waited_for(job_id)
    assert job is not None
    assert job.id == job_id
    wanted = {"failed": "dead", "dead": "dead", "cancelled": "removed", "purged": "removed"}
    assert job.state == wanted.get(end, "done")
    if "result" in end:
        assert job.result == b"42"
    if job.state == "dead":
        assert job.error == "broken"


def test_wait_for_runs_out_of_time(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(b"x").id
    waiter = begin(lambda: queue.wait_for(job_id, timeout=30))
    assert still_waiting(waiter)
    clock.advance(29)
    queue.release(claimed(queue))
    assert still_waiting(waiter), "another event of the job is not its end"
    clock.advance(1)
    with pytest.raises(WaitTimeout) as timeout:
        result_when_due(waiter, clock, 30)
    assert timeout.value.job_id == job_id
    with pytest.raises(WaitTimeout):
        queue.wait_for(job_id, timeout=0)


def test_wait_for_by_the_machines_clock(live: World) -> None:
    queue = live.queue()
    job_id = queue.enqueue(b"x").id
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        queue.wait_for(job_id, timeout=0.2)
    assert 0.19 < time.monotonic() - started < 20
    waiter = begin(lambda: queue.wait_for(job_id, timeout=PATIENCE))
    time.sleep(MOMENT)
    queue.ack(claimed(queue), result=b"r")
    job = waiter.result(PATIENCE)
    assert job is not None
    assert job.result == b"r"


# ── upcoming ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_upcoming_gives_what_is_scheduled_earliest_first(store: Store, clock: ManualClock) -> None:
    a, b = store.queue("a"), store.queue("b", tenant="acme")
    second = a.enqueue(b"2", delay=20, priority=9).id
    third = b.enqueue(b"3", delay=30).id
    first = b.enqueue(b"1", delay=10, priority=1).id
    fourth = a.enqueue(b"4", delay=40).id
    a.enqueue(b"now")
    assert [job.id for job in store.upcoming()] == [first, second, third, fourth]
    assert [job.id for job in store.upcoming(limit=2)] == [first, second]
    before = clock.wall_ms() / 1000 + 30
    assert [job.id for job in store.upcoming(before)] == [first, second]
    clock.advance(15)
    assert [job.id for job in store.upcoming()] == [second, third, fourth]
    assert {job.state for job in store.upcoming()} == {"scheduled"}
    a.cancel(fourth)
    b.nack(b.claim()[0], delay=100)
    assert [job.id for job in store.upcoming()] == [second, third, first]
