"""The cost of a verb, in rows read and written: it depends on the call, not on the size of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tenure import Backoff, NewJob, Policy
from tenure.clock import ManualClock
from tenure.model.group import GroupPolicy
from tenure.model.lease import Settle
from tenure.storage.keyspace import JOBS, PAYLOAD, STATE
from tenure.testing.conformance.world import assert_sound
from tests.cost.counting import Counted, Work, counted

engines = pytest.mark.parametrize("engine", ["memory", "rocksdb", "lmdb"])
Made = Callable[[], Counted]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make(engine: str, tmp_path: Path, clock: ManualClock) -> Iterator[Made]:
    """Makes empty stores to compare, each in its own folder."""
    made: list[Counted] = []

    def new() -> Counted:
        found = counted(engine, tmp_path / str(len(made)), clock)
        found.store.queue("work").configure(Policy(max_attempts=3, backoff=Backoff.fixed(0), retention=0))
        made.append(found)
        return found

    yield new
    for each in made:
        assert_sound(each.store)
        each.store.close()


def fill(made: Counted, count: int, **options: Any) -> None:
    queue = made.store.queue("work")
    for at in range(0, count, 1000):
        queue.enqueue_many([NewJob(b"%d" % n, **options) for n in range(at, min(at + 1000, count))])


def cost(made: Counted, call: Callable[[], object]) -> Work:
    with made.measured() as work:
        call()
    return work


def same(*works: Work) -> None:
    assert len({repr(sorted(work.rows.items())) for work in works}) == 1, "\n".join(map(repr, works))


# ── one claim of many jobs ───────────────────────────────────────────────────────────────────────────────────────────


@engines
def test_extending_a_claim_of_1000_costs_what_extending_one_does(make: Made) -> None:
    works = []
    for size in (1, 10, 1000):
        made = make()
        fill(made, size)
        queue = made.store.queue("work")
        claim = queue.claim(limit=size, lease=30)
        assert len(claim) == size
        works.append(cost(made, partial(queue.extend, claim, 60)))
    same(*works)
    assert len({work.bytes_written for work in works}) == 1
    assert works[0].writes <= 4  # the lease, its due row (old and new), the event
    assert works[0].commits == 1


@engines
@pytest.mark.parametrize("verb", ["ack", "nack", "release", "fail", "progress", "cancel"])
def test_settling_one_job_of_1000_costs_what_settling_one_of_a_few_does(make: Made, engine: str, verb: str) -> None:
    """Of sixteen, which are stored as a segment like a thousand; and of two, which are stored as rows."""
    works = []
    for size in (2, 1000) if engine == "lmdb" else (16, 1000):
        made = make()
        queue = made.store.queue("work")
        queue.enqueue_many([b"payload"] * size)
        claim = queue.claim(limit=size, lease=30)
        delivery = claim[size // 2]
        calls: dict[str, Callable[[], object]] = {
            "ack": partial(queue.ack, delivery),
            "nack": partial(queue.nack, delivery, "no"),
            "release": partial(queue.release, delivery),
            "fail": partial(queue.fail, delivery, "never"),
            "progress": partial(queue.progress, delivery, 0.5),
            "cancel": partial(queue.cancel, delivery.id),
        }
        works.append(cost(made, calls[verb]))
    same(*works)
    assert len({work.bytes_written for work in works}) == 1


@engines
def test_acking_all_of_a_claim_is_linear(make: Made) -> None:
    """Rewriting the lease's list of jobs for each job would be quadratic."""
    works = []
    for size in (10, 1000):
        made = make()
        fill(made, size)
        queue = made.store.queue("work")
        claim = list(queue.claim(limit=size, lease=30))
        with made.measured() as work:
            for delivery in claim:
                queue.ack(delivery)
        works.append(work)
    assert works[1].writes <= 100 * works[0].writes
    assert works[1].bytes_written <= 110 * works[0].bytes_written


# ── payloads ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@engines
@pytest.mark.parametrize("size", [100, 300_000])
def test_a_payload_is_written_once(make: Made, clock: ManualClock, size: int) -> None:
    made = make()
    queue = made.store.queue("work")
    payload = b"p" * size
    with made.measured() as work:
        job_id = queue.enqueue(payload).id
    assert work.bytes_written >= size
    with made.measured() as work:
        first = queue.claim(lease=30)[0]
        queue.extend(first, 60)
        queue.progress(first, 0.3, "on its way")
        queue.nack(first, "failed")
        second = queue.claim(lease=30)[0]
        queue.release(second)
        third = queue.claim(lease=1)[0]
        clock.advance(2)
        made.store.sweep()
        fourth = queue.claim(lease=30)[0]
        queue.fail(fourth, "never")
        queue.replay(ids=[job_id])
        fifth = queue.claim(lease=30)[0]
        assert fifth.payload == third.payload == payload
        assert (fifth.token, fifth.attempt) == (5, 1)
    assert "wrote" not in work.of(JOBS)
    assert "wrote" not in work.of(PAYLOAD)
    assert work.bytes_written < 10_000
    queue.ack(fifth)


@engines
def test_settling_and_extending_do_not_even_read_it(make: Made) -> None:
    made = make()
    queue = made.store.queue("work")
    queue.enqueue_many([b"p" * 100_000] * 5)
    claim = queue.claim(limit=5, lease=30)
    with made.measured() as work:
        queue.extend(claim, 60)
        queue.ack(claim[0])
        queue.nack(claim[1], "no")
        queue.release(claim[2])
        queue.fail(claim[3], "never")
        queue.progress(claim[4], 0.5)
    assert set(work.of(JOBS)) <= {"deleted"}
    assert set(work.of(PAYLOAD)) <= {"deleted"}


# ── the size of the store ────────────────────────────────────────────────────────────────────────────────────────────


def expire_ten(made: Counted, clock: ManualClock) -> Work:
    queue = made.store.queue("work")
    for _ in range(10):
        assert len(queue.claim(limit=1, lease=5))
    clock.advance(6)
    with made.measured() as work:
        swept = made.store.sweep()
    assert (swept.leases, swept.jobs_back) == (10, 10)
    return work


@pytest.mark.parametrize("engine", ["rocksdb"])
@pytest.mark.timeout(300)
def test_sweeping_ten_leases_costs_the_same_in_30000_jobs_as_in_1000(make: Made, clock: ManualClock) -> None:
    works = []
    for size in (1000, 30_000):
        made = make()
        fill(made, size)
        works.append(expire_ten(made, clock))
    same(*works)
    assert works[0].writes < 100
    assert works[0].reads < 150


@engines
def test_a_sweep_with_nothing_due_reads_next_to_nothing(make: Made, clock: ManualClock) -> None:
    works = []
    for size in (10, 3000):
        made = make()
        fill(made, size, ttl=3600)
        made.store.queue("work").claim(limit=size // 2, lease=600)
        works.append(cost(made, made.store.sweep))
    same(*works)
    assert works[0].writes == 0
    assert works[0].reads <= 12


@engines
def test_each_verb_costs_the_same_in_a_store_fifty_times_as_large(make: Made, clock: ManualClock) -> None:
    totals: list[dict[str, Work]] = []
    for size in (1200, 6000):
        made = make()
        queue = made.store.queue("work")
        fill(made, size)
        fill(made, size, priority=7, delay=3600)
        dead = list(queue.claim(limit=size // 2, lease=30))
        queue.settle_many([Settle("fail", delivery.proof) for delivery in dead])
        first = queue.list("ready", limit=1).jobs[0].id
        calls: dict[str, Callable[[], object]] = {
            "enqueue": partial(queue.enqueue, b"x"),
            "enqueue with a key": partial(queue.enqueue, b"x", key="k", ttl=60, priority=3),
            "enqueue again": partial(queue.enqueue, b"x", key="k", ttl=60, priority=3),
            "cancel": partial(queue.cancel, first),
            "claim": partial(queue.claim, lease=30),
            "claim ten": partial(queue.claim, limit=10, lease=30),
            "get": partial(queue.get, dead[0].id),
            "list": partial(queue.list, "dead", limit=10),
            "replay one": partial(queue.replay, ids=[dead[1].id]),
            "upcoming": partial(made.store.upcoming, limit=10),
        }
        totals.append({verb: cost(made, call) for verb, call in calls.items()})
    for verb in totals[0]:
        same(totals[0][verb], totals[1][verb])


@pytest.mark.parametrize("engine", ["rocksdb"])
@pytest.mark.timeout(300)
def test_a_claim_reads_the_same_after_30000_consumed_jobs_as_after_1000(make: Made) -> None:
    made = make()
    queue = made.store.queue("work")
    works = []
    consumed = 0
    for target in (1000, 30_000):
        while consumed < target:
            fill(made, 1000)
            consumed += len(queue.ack_many(list(queue.claim(limit=1000, lease=60))).done)
        for _ in range(50):
            queue.enqueue(b"one of them")  # singly: the first claim of one job of a batch writes all as rows
        works.append(cost(made, lambda: queue.claim(limit=1, lease=60)))
        for rest in queue.claim(limit=1000, lease=60):
            queue.ack(rest)
    same(*works)
    assert works[0].of(STATE) == {"read": 1, "wrote": 1}


# ── the remembered head ──────────────────────────────────────────────────────────────────────────────────────────────


@engines
def test_an_earlier_job_behind_the_remembered_head_is_found_first(make: Made, clock: ManualClock) -> None:
    made = make()
    queue = made.store.queue("work")
    fill(made, 100)
    held = list(queue.claim(limit=50, lease=600))
    assert queue.claim(limit=1, lease=600)[0].payload == b"50"
    queue.release(held[20])  # keeps its visibility time, which is before all jobs that are left
    assert queue.claim(limit=1, lease=600)[0].id == held[20].id
    queue.release(held[30])
    queue.release(held[10])
    assert [d.id for d in queue.claim(limit=2, lease=600)] == [held[10].id, held[30].id]
    assert queue.claim(limit=1, lease=600)[0].payload == b"51"
    urgent = queue.enqueue(b"urgent", priority=9).id
    assert queue.claim(limit=1, lease=600)[0].id == urgent


@engines
def test_a_job_made_for_an_earlier_time_is_found_first(make: Made, clock: ManualClock) -> None:
    """The cached head is a later job, from a scan before its time; then an earlier job is added."""
    made = make()
    queue = made.store.queue("work")
    later = queue.enqueue(b"later", delay=100).id
    assert not queue.claim(lease=600)
    sooner = queue.enqueue(b"sooner", delay=50).id
    assert not queue.claim(lease=600)
    clock.advance(60)
    assert [d.id for d in queue.claim(limit=5, lease=600)] == [sooner]
    now = queue.enqueue(b"now").id
    clock.advance(60)
    assert [d.id for d in queue.claim(limit=5, lease=600)] == [now, later]


@engines
def test_an_emptied_queue_forgets_nothing(make: Made, clock: ManualClock) -> None:
    made = make()
    queue = made.store.queue("work")
    for number in range(20):
        assert not queue.claim(lease=600)
        job_id = queue.enqueue(b"%d" % number, priority=number % 10).id
        delivery = queue.claim(lease=600)[0]
        assert delivery.id == job_id
        if number % 2:
            queue.ack(delivery)
        else:
            queue.release(delivery)
            queue.ack(queue.claim(lease=600)[0])


@engines
def test_a_claim_of_one_costs_the_same_among_2000_groups_as_among_20(make: Made) -> None:
    """All groups have the same virtual time."""
    works = []
    for count in (20, 2000):
        made = make()
        queue = made.store.queue("work")
        queue.configure(Policy(group=GroupPolicy(max_leased=1)))
        for at in range(0, count, 500):
            groups = range(at, min(at + 500, count))
            queue.enqueue_many([NewJob(b"x", group=f"g{n}") for n in groups for _ in range(2)])
        queue.ack(queue.claim()[0])
        works.append(cost(made, lambda queue=queue: queue.ack(queue.claim()[0])))  # type: ignore[misc]
    same(*works)


@engines
def test_an_ack_of_a_job_that_has_a_group_reads_no_row_of_the_job_but_its_state(make: Made) -> None:
    """The claim has read the group's name. A store that is opened anew reads it from the job's row."""
    made = make()
    queue = made.store.queue("work")
    queue.configure(Policy(group=GroupPolicy(max_leased=1)))
    queue.enqueue_many([NewJob(b"x", group=f"g{n % 2}") for n in range(4)])
    queue.ack(queue.claim()[0])
    delivery = queue.claim()[0]
    work = cost(made, lambda: queue.ack(delivery))
    assert work.of(JOBS) == {"deleted": 1}
    assert queue.groups().groups
    for _ in range(2):
        queue.ack(queue.claim()[0])
    assert not queue.groups().groups


@engines
def test_a_changed_policy_costs_the_same_with_500_groups_as_with_20(make: Made) -> None:
    """Later claims revise the groups, some in each transaction."""
    works = []
    for count in (20, 500):
        made = make()
        queue = made.store.queue("work")
        queue.configure(Policy(group=GroupPolicy(max_leased=1)))
        queue.enqueue_many([NewJob(b"x", group=f"g{n}") for n in range(count) for _ in range(2)])
        assert len(queue.claim(count, lease=600)) == count
        works.append(cost(made, lambda queue=queue: queue.configure(Policy(group=GroupPolicy(max_leased=2)))))  # type: ignore[misc]
        assert len(queue.claim(count, lease=600)) == count
    same(*works)


# ── jobs that wait for jobs ──────────────────────────────────────────────────────────────────────────────────────────


@engines
def test_a_parent_of_a_callback_costs_no_row_of_its_own(make: Made) -> None:
    """A hundred parents share a row of `children`, and five hundred a row of `parents`."""
    works = []
    for named in (False, True):
        made = make()
        queue = made.store.queue("work")
        jobs = [NewJob(b"x", headers={"task": "part"}, name=f"{n}" if named else None) for n in range(1000)]
        if named:
            jobs.append(NewJob(b"callback", headers={"task": "part"}, after=[f"#{n}" for n in range(1000)]))
        with made.measured() as work:
            queue.enqueue_many(jobs)
            while claim := queue.claim(limit=100):
                queue.ack_many(list(claim))
        works.append(work)
    plain, callback = works
    print(f"a parent writes {(callback.writes - plain.writes) / 1000:.3f} rows and "
          f"{(callback.bytes_written - plain.bytes_written) / 1000:.1f} bytes more than a job that is none")  # fmt: skip
    assert callback.writes - plain.writes <= 60
    assert callback.bytes_written - plain.bytes_written <= 30_000
