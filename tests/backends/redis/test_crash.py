"""kill -9 of servers under load: nothing that was acknowledged is lost. `make test-crash` does it more often."""

from __future__ import annotations

import os

import pytest

import tenure
from tenure.testing.conformance.world import assert_sound
from tests.backends.redis.load import Load
from tests.backends.redis.servers import Cluster, Server, running, wait_until

pytestmark = pytest.mark.xdist_group("redis-cluster")
LONG = "CRASH_ROUNDS" in os.environ


def _killed(times: int) -> int:
    with (
        running(Server(fsync="always")) as server,
        tenure.open(f"{server.url}?patience=60&timeout=10", durability="disk", sweep=False) as store,
    ):
        load = Load(store)
        for _ in range(times):
            enough = load.total + 150
            wait_until(lambda n=enough: load.total >= n, "the load does not go on")
            server.kill()
            server.start()
        enough = load.total + 50
        wait_until(lambda: load.total >= enough, "the load does not go on")
        load.stop()
        load.assert_nothing_lost()
        assert not load.unknown
        return load.total


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_a_server_killed_under_load_loses_nothing_acknowledged() -> None:
    kills = 20 if LONG else 3
    total = _killed(kills)
    print(f"server killed {kills} times with appendfsync always: {total} jobs acknowledged, none lost")
    assert total > 100 * kills


def _failover(times: int, wait_replicas: int) -> Load:
    with running(Cluster(replicas=1)) as cluster:
        url = f"{cluster.url}?patience=60&timeout=3&wait_replicas={wait_replicas}"
        with tenure.open(url, sweep=False) as store:
            load = Load(store, queues=("a", "b", "c", "d"))
            for turn in range(times):
                enough = load.total + 150
                wait_until(lambda n=enough: load.total >= n, "the load does not go on", 120)
                victim = cluster.primary_of_slot(turn % 3 * 5461)
                victim.kill()
                wait_until(lambda s=turn % 3 * 5461, v=victim: cluster.moved(s, v), "no replica took over", 120)
                victim.start()
                wait_until(cluster.whole, "the cluster did not become whole again", 120)
            enough = load.total + 50
            wait_until(lambda: load.total >= enough, "the load does not go on", 120)
            load.stop()
            if wait_replicas:
                load.assert_nothing_lost()
            else:
                lost = load.enqueued - load.acked - load.there()
                back = load.acked & load.there()
                twice = sum(count > 1 for count in load.deliveries.values())
                print(
                    f"{times} failovers without WAIT: of {load.total} acknowledged jobs {len(lost)} lost or of unknown "
                    f"outcome, {len(back)} acked and there again, {twice} tokens given twice"
                )
                assert_sound(store)
            return load


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_a_primary_that_fails_over_loses_nothing_acknowledged_with_wait() -> None:
    times = 6 if LONG else 1
    load = _failover(times, 1)
    print(f"{times} failovers with WAIT 1: {load.total} jobs acknowledged, none lost")


@pytest.mark.crash
@pytest.mark.skipif(not LONG, reason="in make test-crash")
@pytest.mark.timeout(900)
def test_a_primary_that_fails_over_without_wait_leaves_a_sound_store() -> None:
    """What may be lost is in docs/redis.md; what is there agrees with itself."""
    _failover(6, 0)
