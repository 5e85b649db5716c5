"""kill -9 of servers under load: nothing that was acknowledged is lost. `make test-crash` does it more often."""

from __future__ import annotations

import os

import pytest

import leasehold
from tests.redis.load import Load
from tests.redis.servers import Cluster, Server, running, wait_until

pytestmark = pytest.mark.xdist_group("redis-cluster")
LONG = "CRASH_ROUNDS" in os.environ


def _killed(times: int) -> int:
    with (
        running(Server(fsync="always")) as server,
        leasehold.open(f"{server.url}?patience=60&timeout=10", durability="disk", sweep=False) as store,
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
    assert _killed(kills) > 100 * kills


def _failover(times: int) -> None:
    with running(Cluster(replicas=1)) as cluster:
        url = f"{cluster.url}?patience=60&timeout=3&wait_replicas=1"
        with leasehold.open(url, sweep=False) as store:
            load = Load(store, queues=("a", "b", "c", "d"))
            for turn in range(times):
                enough = load.total + 150
                wait_until(lambda n=enough: load.total >= n, "the load does not go on", 60)
                victim = cluster.primary_of_slot(turn % 3 * 5461)
                victim.kill()
                wait_until(lambda s=turn % 3 * 5461, v=victim: cluster.moved(s, v), "no replica took over", 60)
                victim.start()
                wait_until(cluster.whole, "the cluster did not become whole again", 60)
            enough = load.total + 50
            wait_until(lambda: load.total >= enough, "the load does not go on", 60)
            load.stop()
            load.assert_nothing_lost()


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_a_primary_that_fails_over_loses_nothing_acknowledged_with_wait() -> None:
    _failover(6 if LONG else 1)
