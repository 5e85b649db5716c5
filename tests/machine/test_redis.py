"""The state machine on one Valkey server and on a cluster of three."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tenure.api.store import Store
from tenure.clock import ManualClock
from tests.backends.redis.servers import Cluster, RedisHarness, Server, running
from tests.machine.profiles import PATIENCE, looking
from tests.machine.reference import ApartGroupReference, ApartReference
from tests.machine.test_groups import machine as grouped_machine
from tests.machine.test_machine import machine

pytestmark = pytest.mark.xdist_group("redis")


class RedisPlace:
    """A prefix on a server, which survives the end of a process."""

    def __init__(self, harness: RedisHarness) -> None:
        self._harness = harness

    def open(self, clock: ManualClock) -> Store:
        return self._harness.open(clock=clock)

    def reopen(self, store: Store, clock: ManualClock) -> Store:
        store.close()
        return self.open(clock)

    crash = reopen

    def destroy(self, store: Store) -> None:
        store.close()
        self._harness.destroy()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server()) as made:
        yield made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(Cluster()) as made:
        yield made


@pytest.mark.timeout(PATIENCE)
def test_one_server(server: Server) -> None:
    made = machine(lambda: RedisPlace(RedisHarness(server.url, [server])), ApartReference)
    run_state_machine_as_test(made, settings=looking(10))


@pytest.mark.timeout(PATIENCE)
def test_groups(server: Server) -> None:
    made = grouped_machine(lambda: RedisPlace(RedisHarness(server.url, [server])), ApartGroupReference)
    run_state_machine_as_test(made, settings=looking(8))


@pytest.mark.timeout(PATIENCE)
def test_cluster(cluster: Cluster) -> None:
    made = machine(lambda: RedisPlace(RedisHarness(cluster.url, cluster.servers)), ApartReference)
    run_state_machine_as_test(made, settings=looking(8))
