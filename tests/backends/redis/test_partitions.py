"""A queue split into partitions: order is nearly kept, and everything else as ever."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument
from tenure.model.group import GroupPolicy
from tenure.model.job import NewJob
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.model.retry import Backoff, Policy
from tests.backends.redis.servers import RedisHarness, Server

pytestmark = pytest.mark.xdist_group("redis")
NAME = QueueName("default", "work")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(server: Server, clock: ManualClock) -> Iterator[Store]:
    with RedisHarness(server.url, [server], partitions="4").open(clock=clock) as made:
        assert made.traits.order == "approximate"
        yield made
        report = made.check()
        assert report.clean, report.findings


def test_then_stays_in_the_partition_of_its_delivery(store: Store) -> None:
    queue = store.queue("work")
    refused = 0
    for number in range(32):
        queue.enqueue(b"parent")
        (delivery,) = queue.claim()
        try:
            queue.ack(delivery, then=[NewJob(b"keyed", key=f"k{number}")])
        except InvalidArgument as error:
            if "partition" not in str(error):
                raise
            refused += 1
            queue.ack(delivery, then=[b"plain"])
        (child,) = queue.claim()
        assert child.job[15] == delivery.job[15]
        queue.ack(child)
    assert 0 < refused < 32


def test_every_job_is_delivered_once_from_whichever_partition(store: Store) -> None:
    queue = store.queue("work")
    made = [queue.enqueue(b"%d" % n).id for n in range(40)]
    made += [e.id for e in queue.enqueue_many([b"x"] * 60)]
    assert {job[-2:] for job in made} == {"00", "01", "02", "03"}, "the last byte names the partition"
    assert queue.counts().ready == 100
    found: list[str] = []
    while claim := queue.claim(limit=7):
        found += [d.id for d in claim]
        assert len({d.id[-2:] for d in claim}) == 1, "a claim is a lease over one partition"
        assert queue.ack_many(claim).lost == []
    assert Counter(found) == Counter(made)
    assert queue.counts().removed == 100


def test_a_key_is_one_job_wherever_it_is_enqueued_from(store: Store) -> None:
    queue = store.queue("work")
    jobs = [NewJob(b"x", key=f"k{n}") for n in range(20)]
    first = queue.enqueue_many(jobs)
    assert len({e.id[-2:] for e in first}) > 1
    again = queue.enqueue_many(jobs[::-1])
    assert [e.id for e in again] == [e.id for e in first][::-1]
    assert all(e.duplicate for e in again)
    assert queue.counts().waiting == 20


def test_a_request_asked_for_again_meets_what_it_did(store: Store) -> None:
    backend = store._backend
    jobs = [JobRequest(b"a"), JobRequest(b"b")]
    first = [backend.once(b"r%d" % n).enqueue(NAME, jobs) for n in range(8)]
    assert [backend.once(b"r%d" % n).enqueue(NAME, jobs) for n in range(8)] == first
    assert store.queue("work").counts().waiting == 16
    staged = store.staged("w")
    staged.begin(b"m")
    for chunk in range(6):
        assert staged.publish(chunk, store.queue("work"), [b"x"]).fresh
    assert store.queue("work").counts().waiting == 22


def test_settling_replaying_and_purging_reach_every_partition(store: Store, clock: ManualClock) -> None:
    queue = store.queue("work")
    queue.configure(Policy(backoff=Backoff.fixed(0), retention=60))
    made = {queue.enqueue(b"x").id for _ in range(16)}
    claims = [queue.claim(limit=4, lease=30, id=f"c{n}") for n in range(4)]
    assert {d.id for claim in claims for d in claim} == made
    again = queue.claim(limit=4, lease=30, id="c2")
    assert list(again) == list(claims[2])
    for claim in claims:
        queue.extend(claim, 60)
    deliveries = [d for claim in claims for d in claim]
    for delivery in deliveries[:6]:
        queue.fail(delivery, error="broken")
    assert queue.ack_many(deliveries[6:12]).lost == []
    assert queue.cancel(deliveries[12].id)
    assert {job.id for job in queue.list("leased")} == {d.id for d in deliveries[13:]}
    clock.advance(61)
    assert store.sweep().jobs_back == 3
    assert queue.replay().count == 6
    pages, cursor = [], None
    while True:
        page = queue.list("ready", limit=2, cursor=cursor)
        pages += [job.id for job in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert len(pages) == len(set(pages)) == 9
    assert queue.purge("ready") == 9
    assert [e.type for e in queue.timeline(deliveries[0].id)] == ["enqueued", "claimed", "died", "replayed", "purged"]


def test_who_waits_is_woken_by_any_partition(server: Server) -> None:
    with RedisHarness(server.url, [server], partitions="4").open() as store:
        queue = store.queue("work")
        served: list[str] = []

        def work() -> None:
            while len(served) < 12:
                claim = queue.claim(wait=20)
                served.extend(queue.ack_many(claim).done)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        made = [queue.enqueue(b"x").id for _ in range(12)]
        worker.join(60)
        assert sorted(served) == sorted(made)


def test_pause_reaches_all(store: Store) -> None:
    queue = store.queue("work")
    for _ in range(8):
        queue.enqueue(b"x")
    queue.pause()
    assert not queue.claim(limit=8)
    queue.resume()
    assert sum(len(queue.claim(limit=8)) for _ in range(4)) == 8


def test_a_group_is_in_one_partition_and_its_limit_is_whole(store: Store) -> None:
    queue = store.queue("work")
    queue.configure(Policy(group=GroupPolicy(max_leased=1)))
    names = [f"g{n}" for n in range(12)]
    made = queue.enqueue_many([NewJob(b"x", group=name) for _ in range(3) for name in names])
    by_group = {name: {job.id[-2:] for job in made[n :: len(names)]} for n, name in enumerate(names)}
    assert all(len(partitions) == 1 for partitions in by_group.values())
    assert len({partition for partitions in by_group.values() for partition in partitions}) > 1
    held = []
    while claim := queue.claim(50, lease=600):
        held += list(claim)
    assert len(held) == len(names)
    found, cursor = [], None
    while True:
        page = queue.groups(limit=5, cursor=cursor)
        found += [(group.group, group.waiting, group.leased, group.at_limit) for group in page]
        if (cursor := page.cursor) is None:
            break
    assert sorted(found) == sorted((name, 2, 1, True) for name in names)
    assert queue.ack_many(held).lost == []


def test_a_job_with_a_group_has_no_key(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="partitions"):
        store.queue("work").enqueue(NewJob(b"x", group="g", key="k"))
    assert store.queue("work").counts().enqueued == 0
