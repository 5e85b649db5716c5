"""A slot that moves to another server of the cluster: verbs wait for it, and nothing is written to half of a queue."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis.crc import key_slot

import tenure
from tenure.api.store import Store
from tenure.errors import Unavailable
from tests.backends.redis.servers import Cluster, Server, running

pytestmark = pytest.mark.xdist_group("redis-cluster")


def commands_of(store: Store) -> Any:
    return store._backend._core.commands  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(Cluster()) as made:
        yield made


class Move:
    """A queue's slot on its way from one server to another, key by key."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self.slot = key_slot(f"{prefix}:{{default/work}}".encode())
        self.source = cluster.primary_of_slot(self.slot)
        self.target = next(server for server in cluster.primaries if server is not self.source)
        self._call(self.target, "SETSLOT", self.slot, "IMPORTING", self._call(self.source, "MYID"))
        self._call(self.source, "SETSLOT", self.slot, "MIGRATING", self._call(self.target, "MYID"))

    @staticmethod
    def _call(server: Server, *command: object) -> Any:
        return server.client().execute_command("CLUSTER", *command)

    def keys(self, server: Server) -> set[bytes]:
        return set(self._call(server, "GETKEYSINSLOT", self.slot, 100))

    def move(self, count: int) -> None:
        for key in sorted(self.keys(self.source))[:count]:
            self.source.client().execute_command("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000)

    def finish(self) -> None:
        self.move(100)
        for server in (self.target, self.source):
            self._call(server, "SETSLOT", self.slot, "NODE", self._call(self.target, "MYID"))


def test_verbs_wait_while_a_slot_moves_and_go_on_at_its_new_server(cluster: Cluster) -> None:
    with tenure.open(f"{cluster.url}?prefix=wait&patience=60", sweep=False) as store:
        queue = store.queue("work")
        queue.enqueue_many([b"x"] * 10)
        move = Move(cluster, "wait")
        move.move(3)
        retried = threading.Event()
        commands_of(store).on_retry = lambda reason: retried.set()
        added: list[object] = []
        waiting = threading.Thread(target=lambda: added.append(queue.enqueue(b"y")))
        waiting.start()
        assert retried.wait(60)
        move.finish()
        waiting.join(60)
        assert len(added) == 1
        assert len(queue.claim(limit=100)) == 11
        assert store.check().clean


def test_a_slot_that_does_not_arrive_in_time_is_unavailable(cluster: Cluster) -> None:
    with tenure.open(f"{cluster.url}?prefix=late&patience=0.2", sweep=False) as store:
        queue = store.queue("work")
        queue.enqueue(b"x")
        move = Move(cluster, "late")
        move.move(3)
        for verb in (queue.counts, lambda: queue.enqueue(b"y"), lambda: queue.claim()):
            with pytest.raises(Unavailable, match="moves to"):
                verb()
        assert len(move.keys(move.target)) == 3, "a verb wrote to the server that had half of the keys"
        move.finish()
        assert queue.counts().ready == 1


def test_a_moved_slot_costs_one_more_trip_once(cluster: Cluster) -> None:
    with tenure.open(f"{cluster.url}?prefix=once", sweep=False) as store:
        queue = store.queue("work")
        queue.enqueue(b"x")
        Move(cluster, "once").finish()
        commands = commands_of(store)
        queue.counts()
        before = commands.trips
        queue.counts()
        assert commands.trips == before + 1
