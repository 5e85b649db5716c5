"""What one claim does at most, and how large the filters are: both are settings."""

from __future__ import annotations

import msgspec
import pytest

import tenure
from tenure import GroupPolicy, NewJob, Policy
from tenure.clock import ManualClock
from tests.backends.redis.servers import RedisHarness, Server

pytestmark = pytest.mark.xdist_group("redis")


@pytest.fixture
def harness(server: Server, monkeypatch: pytest.MonkeyPatch) -> RedisHarness:
    monkeypatch.setenv("TENURE_STORAGE_INSPECT_LIMIT", "50")
    return RedisHarness(server.url, [server])


def _trips(store: tenure.Store) -> int:
    trips: int = store._backend._core.commands.trips  # type: ignore[attr-defined]
    return trips


def test_one_step_of_a_claim_passes_over_no_more_rows_than_the_limit(server: Server, harness: RedisHarness) -> None:
    client = server.client()
    base = f"{harness.prefix}:{{default/work}}"
    with harness.open() as store:
        queue = store.queue("work")
        queue.enqueue_many([b"x"] * 120)
        left = queue.enqueue(b"the last").id
        for job in client.zrange(f"{base}:t0", 0, 119):
            client.hdel(f"{base}:state", job)  # an index row that points at no job
        before = _trips(store)
        assert [delivery.id for delivery in queue.claim(limit=1)] == [left]
        assert _trips(store) - before == 3, "50, 50 and 20 of them"
        before = _trips(store)
        assert not queue.claim(limit=1)
        assert _trips(store) - before == 1


def test_one_step_of_a_claim_takes_over_no_more_leases_than_the_limit(server: Server, harness: RedisHarness) -> None:
    clock = ManualClock()
    with harness.open(clock=clock) as store:
        queue = store.queue("work")
        queue.enqueue_many([b"x"] * 120)
        for _ in range(120):
            queue.claim(limit=1, lease=1)
        clock.advance(2)
        leases = f"{harness.prefix}:{{default/work}}:leases"
        for after in (71, 22):  # 50 taken over, one made
            assert len(queue.claim(limit=1, lease=3600)) == 1
            assert server.client().zcard(leases) == after
        assert store.check().clean


def test_a_large_claim_may_take_over_as_many_jobs_as_it_returns(harness: RedisHarness) -> None:
    clock = ManualClock()
    with harness.open(clock=clock) as store:
        queue = store.queue("work")
        queue.enqueue_many([b"x"] * 400)
        for _ in range(4):
            queue.claim(limit=100, lease=1)
        clock.advance(2)
        assert len(queue.claim(limit=400)) == 400


def test_each_filter_has_its_own_size(server: Server) -> None:
    url = f"{server.url}?prefix=sizes&bloom_cleanup=true&bloom_keys_capacity=1000&bloom_ghosts_capacity=1000000"
    with tenure.open(url, sweep=False) as store:
        filters = store._backend._core.filters  # type: ignore[attr-defined]
        assert filters.keys.memory_bytes < filters.cleanup.memory_bytes < filters.ghosts.memory_bytes
    with tenure.open(f"{server.url}?prefix=sizes&bloom_ghosts_capacity=0", sweep=False) as store:
        filters = store._backend._core.filters  # type: ignore[attr-defined]
        assert (filters.keys is None, filters.ghosts is None) == (False, True)


def test_an_expired_lease_is_left_alone_for_the_grace(harness: RedisHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """By claims, by sweeps and by callers that wait; whoever held it may not settle meanwhile."""
    monkeypatch.setenv("TENURE_STORAGE_REDIS_GRACE", "20")
    clock = ManualClock()
    with harness.open(clock=clock) as store:
        assert store.traits.grace_ms == 20_000
        queue = store.queue("work")
        queue.enqueue(b"x")
        (held,) = queue.claim(lease=10)
        clock.advance(29)
        assert not queue.claim()
        assert store.sweep().leases == 0
        with pytest.raises(tenure.LeaseLost):
            queue.ack(held)
        clock.advance(2)
        assert queue.claim(wait=0.5)[0].id == held.id


def test_a_claim_of_one_looks_at_as_many_groups_among_many_as_among_few(server: Server, harness: RedisHarness) -> None:
    """They all stand at the same virtual time."""
    client, calls = server.client(), []
    for count in (20, 400):
        with harness.open() as store:
            queue = store.queue(f"of{count}")
            queue.configure(Policy(group=GroupPolicy(max_leased=1)))
            queue.enqueue_many([NewJob(b"x", group=f"g{n:03}") for n in range(count) for _ in range(2)])
            queue.ack(queue.claim()[0])
            client.config_resetstat()
            (held,) = queue.claim()
            queue.ack(held)
            stats = client.info("commandstats")
            calls.append(
                sum(stats[f"cmdstat_{name}"]["calls"] for name in ("hget", "zrange", "zrangebyscore", "zscore"))
            )
    assert calls[0] == calls[1]


@pytest.mark.parametrize("field", ["token", "visible_at_ms", "created_at_ms"])
def test_a_number_that_lua_does_not_keep_exactly_is_refused(harness: RedisHarness, field: str) -> None:
    with harness.open() as store, tenure.open("memory:", sweep=False) as other:
        other.queue("work").enqueue(b"x")
        job = other.queue("work").list("ready").jobs[0]
        queue = store.queue("work")
        restored = queue.restore([msgspec.structs.replace(job, **{field: 2**53 + 1})])
        assert "inexactly" in restored.refused[job.id]
        assert queue.restore([msgspec.structs.replace(job, token=2**52)]).added == [job.id]
        claim = queue.claim()
        assert [delivery.token for delivery in claim] == [2**52 + 1]
        assert not queue.ack_many(list(claim)).lost
        assert store.check().clean
