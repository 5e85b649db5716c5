"""Claims from any queue on one server: the index of turns, its cost, its repair, and stores that were written without it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tenure
from tenure import aio
from tenure.api.store import Store
from tenure.backends.redis.library import library
from tenure.clock import ManualClock
from tenure.errors import Corrupt, InvalidArgument, SettingsError
from tenure.model.retry import Policy
from tenure.server_settings import Auth
from tenure.testing.conformance.world import PATIENCE, assert_sound, begin
from tests.backends.redis.proxy import Proxy
from tests.backends.redis.servers import Cluster, RedisHarness, Server, running
from tests.server.running import running as serving

pytestmark = pytest.mark.xdist_group("redis")


def core_of(store: Store) -> Any:
    return store._backend._core  # type: ignore[attr-defined]


def registry_key(store: Store, name: str) -> bytes:
    key: bytes = core_of(store).shards.registry + b":" + name.encode()
    return key


def without_index(store: Store) -> None:
    """From now on this client writes as a release does that keeps no index of queues."""
    core_of(store).commands._use(library(any_queue=False))


@pytest.fixture
def harness(server: Server) -> RedisHarness:
    return RedisHarness(server.url, [server])


# ── stores of an older release ───────────────────────────────────────────────────────────────────────────────────────


def test_a_store_that_was_written_without_the_index_is_served_whole(harness: RedisHarness, clock: ManualClock) -> None:
    with harness.open(clock=clock) as older:
        without_index(older)
        key = registry_key(older, "indexed")
        core_of(older).commands.plain(key, "DEL", key)
        for n in range(300):
            older.queue(f"q{n}", f"t{n % 7}").enqueue(b"ready")
        older.queue("later").enqueue(b"later", delay=60)
        leased = older.queue("leased")
        leased.enqueue(b"leased")
        assert leased.claim(lease=30)
        paused = older.queue("paused")
        paused.enqueue(b"paused")
        paused.pause()
        with harness.open(clock=clock) as newer:
            assert_sound(newer)
            found = [newer.claim_any(lease=3600)[0].payload for _ in range(300)]
            assert found == [b"ready"] * 300
            assert not newer.claim_any()
            clock.advance(31)
            assert newer.claim_any(lease=3600)[0].payload == b"leased"
            clock.advance(30)
            assert newer.claim_any(lease=3600)[0].payload == b"later"
            assert not newer.claim_any()
            newer.queue("paused").resume()
            assert newer.claim_any(lease=3600)[0].payload == b"paused"
            assert_sound(newer)


def test_a_sweep_finds_what_an_older_release_adds_beside_this_one(harness: RedisHarness, clock: ManualClock) -> None:
    with harness.open(clock=clock) as older, harness.open(clock=clock) as newer:
        without_index(older)
        parked = newer.queue("parked")
        parked.enqueue(b"in an hour", delay=3600)
        assert not newer.claim_any()
        older.queue("parked").enqueue(b"now")
        older.queue("new").enqueue(b"now")
        newer.sweep()
        assert [newer.claim_any()[0].payload for _ in range(2)] == [b"now", b"now"]
        assert not newer.claim_any()
        assert_sound(newer)


def test_a_sweep_finds_a_queue_that_an_older_release_resumed(harness: RedisHarness, clock: ManualClock) -> None:
    with harness.open(clock=clock) as older, harness.open(clock=clock) as newer:
        without_index(older)
        queue = newer.queue("paused")
        queue.enqueue(b"x")
        queue.pause()
        assert not newer.claim_any()
        older.queue("paused").resume()
        newer.sweep()
        assert newer.claim_any()[0].payload == b"x"
        assert_sound(newer)


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lost", ["turns", "turns:acme", "parked"])
def test_a_lost_index_is_found_and_rebuilt(store: Store, clock: ManualClock, lost: str) -> None:
    store.queue("ready", "acme").enqueue(b"ready")
    store.queue("later", "acme").enqueue(b"later", delay=60)
    assert_sound(store)
    key = registry_key(store, lost)
    core_of(store).commands.plain(key, "DEL", key)
    report = store.check()
    assert [finding.rule for finding in report.findings] == ["turn"], report.findings
    assert all(finding.repair for finding in store.check(repair=True).findings)
    assert_sound(store)
    assert store.claim_any(lease=3600)[0].payload == b"ready"
    assert not store.claim_any()
    clock.advance(61)
    assert store.claim_any()[0].payload == b"later"


def test_a_queue_whose_counters_are_damaged_does_not_stop_the_others(store: Store) -> None:
    broken, whole = store.queue("broken"), store.queue("whole")
    broken.enqueue(b"x")
    whole.enqueue(b"y")
    key = core_of(store).shards.find(broken.name).shards[0].base + b":books"
    core_of(store).commands.plain(key, "SET", key, b"none")
    assert store.claim_any()[0].payload == b"y"
    store.check(repair=True)
    store.sweep()
    assert store.claim_any()[0].payload == b"x"
    assert_sound(store)


def test_a_sweep_passes_over_a_queue_whose_counters_are_damaged(store: Store, clock: ManualClock) -> None:
    for name in ("a", "z"):
        store.queue(name).enqueue(b"x")
        store.queue(name).claim(lease=1)
    core = core_of(store)
    books = core.shards.find(store.queue("a").name).shards[0].base + b":books"
    core.commands.plain(books, "SET", books, b"damaged")
    clock.advance(2)
    with pytest.raises(Corrupt):
        store.sweep()
    assert store.queue("z").counts().ready == 1


def test_a_sweep_goes_on_until_all_ids_of_claims_are_forgotten(store: Store, clock: ManualClock) -> None:
    for queue in range(3):
        store.queue(f"q{queue}").enqueue_many([b"x"] * 100)
    for n in range(300):
        store.claim_any(id=f"c{n}")
    clock.advance(2 * 86_400)
    while store.sweep().more:
        pass
    key = registry_key(store, "claims")
    assert core_of(store).commands.plain(key, "HLEN", key) == 0


def test_a_queue_whose_rate_is_damaged_does_not_stop_the_others(store: Store) -> None:
    broken, whole = store.queue("broken"), store.queue("whole")
    broken.configure(Policy(rate="100/s"))
    broken.enqueue(b"x")
    whole.enqueue(b"y")
    key = core_of(store).shards.find(broken.name).shards[0].base + b":bucket"
    core_of(store).commands.plain(key, "SET", key, b"full")
    assert store.claim_any()[0].payload == b"y"
    broken.enqueue(b"z")
    with pytest.raises(Corrupt, match="rate"):
        store.claim_any()
    store.check(repair=True)
    assert [store.claim_any()[0].payload for _ in range(2)] == [b"x", b"z"]
    assert_sound(store)


# ── cost ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def commands_of(server: Server, verb: Callable[[], object]) -> int:
    """How many commands a verb makes the server run."""

    def total() -> int:
        rows = server.client().info("commandstats")
        return sum(row["calls"] for name, row in rows.items() if name not in ("cmdstat_info", "cmdstat_config|get"))

    before = total()
    verb()
    return total() - before


@pytest.mark.parametrize("delay", [0, 60])
def test_plain_verbs_run_as_many_commands_as_without_the_index(server: Server, store: Store, delay: float) -> None:
    def counted(any_queue: bool) -> list[int]:
        core_of(store).commands._use(library(any_queue))
        queue, ready = store.queue(f"queue-{any_queue:d}"), store.queue(f"ready-{any_queue:d}")
        queue.enqueue(b"first", delay=delay)  # the first job gives its queue a place
        ready.enqueue_many([b"x"] * 3)
        held: list[Any] = []
        return [
            commands_of(server, lambda: queue.enqueue(b"x", delay=delay)),
            commands_of(server, lambda: held.extend(ready.claim())),
            commands_of(server, lambda: ready.ack(held[0])),
            commands_of(server, lambda: ready.enqueue(b"x")),
        ]

    without, kept = counted(any_queue=False), counted(any_queue=True)
    # A job for later, in a queue that has none before: one look at the time of the queue's turn.
    assert kept == [without[0] + (1 if delay else 0), *without[1:]]


def test_a_claim_costs_the_same_beside_empty_queues(server: Server, store: Store) -> None:
    for n in range(10):
        store.queue("busy", f"t{n}").enqueue_many([b"x"] * 20)

    def served() -> int:
        return commands_of(server, lambda: [store.claim_any() for _ in range(50)])

    served()
    alone = served()
    for n in range(200):
        store.queue(f"empty{n}", f"t{n % 20}").configure(Policy())
    paused = store.queue("paused", "t0")
    paused.enqueue(b"x")
    paused.pause()
    assert not store.claim_any(tenants=["t0"], queues=["paused"])
    assert served() == alone


# ── doors ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_lost_answer_is_given_again(server: Server) -> None:
    proxy = Proxy(server.socket)
    try:
        harness = RedisHarness(f"redis+unix://{proxy.socket}", [server], timeout="2")
        with harness.open() as store:
            store.queue("a").enqueue(b"1")
            store.queue("b").enqueue(b"2")
            proxy.arm(1, "after")
            first = store.claim_any(lease=60)
            assert proxy.cut
            second = store.claim_any(lease=60)
            assert {first[0].payload, second[0].payload} == {b"1", b"2"}, "the repeat took no second lease"
            assert store.queue(first.queue.name.queue).counts().leased == 1
            assert_sound(store)
    finally:
        proxy.close()


def test_through_a_server_and_asyncio(harness: RedisHarness) -> None:
    with serving(url=str(harness.url), auth=Auth()) as served, tenure.open(served.url) as client:
        store = served.store
        waiter = begin(lambda: client.claim_any(wait=30))
        time.sleep(0.2)
        store.queue("late", "acme").enqueue(b"x")
        claim = waiter.result(PATIENCE)
        assert claim.queue.name == ("acme", "late")
        claim.queue.ack(claim[0])
        again = client.claim_any(id="mine")
        assert not again

        async def look() -> bytes:
            async with aio.open(harness.url) as opened:
                return (await opened.claim_any(wait=30))[0].payload

        store.queue("b").enqueue(b"asyncio")
        assert asyncio.run(look()) == b"asyncio"


# ── clusters ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(Cluster()) as made:
        yield made


def test_a_cluster_needs_the_queues_in_one_slot(cluster: Cluster) -> None:
    harness = RedisHarness(cluster.url, cluster.servers)
    with harness.open() as store:
        store.queue("apart").enqueue(b"x")
        assert not store.traits.any_queue
        with pytest.raises(InvalidArgument, match="one_slot"):
            store.claim_any()
    with tenure.open(f"{harness.url}&one_slot=true", sweep=False) as store:
        assert store.traits.any_queue
        assert store.queue("apart").counts().ready == 1, "a queue stays where it was created"
        for n in range(4):
            store.queue(f"q{n}").enqueue(b"%d" % n)
        assert sorted(store.claim_any()[0].payload for _ in range(4)) == [b"0", b"1", b"2", b"3"]
        assert not store.claim_any()
        assert_sound(store)
    with pytest.raises(SettingsError, match="partitions"):
        tenure.open(f"{harness.url}&one_slot=true&partitions=2")
