"""Flows on Redis: what joins jobs is checked and mended, and a flow stays in its partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tenure import NewJob, Store
from tenure.api.flow import cancel_flow, flow_leading_to, retry_flow
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument
from tenure.testing.conformance.world import assert_sound
from tests.backends.redis.servers import RedisHarness, Server

pytestmark = pytest.mark.xdist_group("redis")


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with RedisHarness(server.url, [server]).open(clock=ManualClock()) as made:
        yield made


class Flow:
    """Two parents that wait, and their child; and the keys that join them."""

    def __init__(self, store: Store) -> None:
        self.queue = store.queue("work")
        *parents, child = self.queue.enqueue_many(
            [NewJob(b"a", name="a"), NewJob(b"b", name="b"), NewJob(b"child", after=["#a", "#b"])]
        )
        self.parents = [bytes.fromhex(parent.id) for parent in parents]
        self.child = bytes.fromhex(child.id)
        self._core = store._backend._core  # type: ignore[attr-defined]
        self._base = self._core.shards.find(self.queue.name).shards[0].base

    def run(self, command: str, key: str, *args: bytes | int) -> bytes:
        at = self._base + b":" + key.encode()
        answer: bytes = self._core.commands.plain(at, command, at, *args)
        return answer

    def flip(self, key: str, job: bytes, place: int) -> None:
        value = bytearray(self.run("HGET", key, job))
        value[place] ^= 1
        self.run("HSET", key, job, bytes(value))

    def rest(self) -> list[bytes]:
        ran = []
        while claim := self.queue.claim():
            ran += [delivery.payload for delivery in claim]
            self.queue.ack_many(list(claim))
        return ran


DAMAGE: dict[str, Callable[[Flow], object]] = {
    "count cannot be read": lambda flow: flow.flip("waits", flow.child, 3),
    "count is missing": lambda flow: flow.run("HDEL", "waits", flow.child),
    "not in its index": lambda flow: flow.run("ZREM", "blocked", flow.child),
    "count of a job that does not wait": lambda flow: flow.run("HSET", "waits", flow.parents[0], b"12345"),
    "state of the child cannot be read": lambda flow: flow.flip("state", flow.child, 5),
    "state of a parent cannot be read": lambda flow: flow.flip("state", flow.parents[0], 5),
    "count of no job": lambda flow: flow.run("HSET", "waits", b"x" * 16, b"12345"),
    "children of no job": lambda flow: flow.run("HSET", "children", b"x" * 16, flow.child),
    "parents of no job": lambda flow: flow.run("HSET", "parents", b"x" * 16, flow.child),
    "index of no job": lambda flow: flow.run("ZADD", "blocked", 0, b"x" * 16),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_mended(store: Store, damage: str) -> None:
    flow = Flow(store)
    assert_sound(store)
    DAMAGE[damage](flow)
    assert not store.check().clean
    report = store.check(repair=True)
    assert all(finding.repair for finding in report.findings), report.findings
    assert_sound(store)
    ran = flow.rest()
    assert (sorted(ran[:2]), ran[2:]) == ([b"a", b"b"], [b"child"])
    assert_sound(store)


def test_a_lost_link_makes_the_child_ready_when_the_others_have_ended(store: Store) -> None:
    flow = Flow(store)
    flow.run("HDEL", "children", flow.parents[0])
    assert not store.check(repair=True).clean
    assert_sound(store)
    flow.queue.cancel(flow.parents[0].hex())
    assert flow.rest() == [b"b", b"child"]


def test_a_removed_job_ends_its_children(store: Store) -> None:
    """Its payload is damaged: the repair removes it, which its child is told."""
    flow = Flow(store)
    flow.flip("jobs", flow.parents[0], 0)
    assert all(finding.repair for finding in store.check(repair=True).findings)
    assert_sound(store)
    assert (flow.rest(), flow.queue.counts().blocked) == ([b"b"], 0)


def test_a_flow_is_shown_cancelled_and_retried(store: Store) -> None:
    flow = Flow(store)
    last = flow.queue.enqueue(NewJob(b"last", after=[flow.child.hex()], on_parent_dead="wait"))
    shown, more = flow_leading_to(store, last.id)
    assert ([job.state for job in shown.values()], more) == (["blocked", "blocked", "ready", "ready"], False)
    for _ in range(2):
        (delivery,) = flow.queue.claim()
        flow.queue.ack(delivery)
    (delivery,) = flow.queue.claim()
    flow.queue.fail(delivery, "broken")
    assert retry_flow(store, last.id) == 1
    assert flow.queue.get(flow.child.hex()).state == "ready"  # type: ignore[union-attr]
    assert cancel_flow(store, last.id) == 2
    assert_sound(store)
    assert flow.queue.counts().waiting == flow.queue.counts().blocked == 0


def test_blocked_jobs_are_listed_in_pages(store: Store) -> None:
    queue = store.queue("work")
    parent = queue.enqueue(b"parent")
    children = queue.enqueue_many([NewJob(b"%d" % n, after=[parent]) for n in range(25)])
    found, cursor = [], None
    while True:
        page = queue.list("blocked", limit=10, cursor=cursor)
        found += [job.id for job in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == [child.id for child in children]
    assert len(queue.parents(children[0].id)) == 1
    assert queue.purge("blocked") == 25
    assert_sound(store)


def test_a_flow_stays_in_one_partition(server: Server) -> None:
    with RedisHarness(server.url, [server], partitions="4").open(clock=ManualClock()) as store:
        assert store.traits.flows == "partition"
        queue = store.queue("work")
        jobs = queue.enqueue_many([NewJob(b"a", name="a"), NewJob(b"b", after=["#a"])])
        child = queue.enqueue(NewJob(b"c", after=[jobs[0].id, jobs[1].id]))
        assert len({bytes.fromhex(job.id)[15] for job in (*jobs, child)}) == 1
        others = [queue.enqueue(b"other") for _ in range(4)]
        assert len({bytes.fromhex(job.id)[15] for job in others}) == 4
        with pytest.raises(InvalidArgument, match="a flow stays within one"):
            queue.enqueue(NewJob(b"d", after=others))
        assert queue.counts().blocked == 2
        ran: list[bytes] = []
        while len(ran) < 7:
            with queue.claim() as claim:
                ran += [delivery.payload for delivery in claim]
                queue.ack_many(list(claim))
        assert [payload for payload in ran if payload != b"other"] == [b"a", b"b", b"c"]
        assert_sound(store)


@pytest.mark.parametrize("any_queue", [False, True])
def test_a_claim_finds_the_child_of_a_job_that_it_removes(server: Server, any_queue: bool) -> None:
    clock = ManualClock()
    with RedisHarness(server.url, [server]).open(clock=clock) as store:
        queue = store.queue("work")
        queue.enqueue_many(
            [NewJob(b"late", name="late", ttl=1), NewJob(b"child", after=["#late"], on_parent_dead="run")]
        )
        clock.advance(2)
        claim = store.claim_any() if any_queue else queue.claim()
        assert [delivery.payload for delivery in claim] == [b"child"]
        assert_sound(store)
