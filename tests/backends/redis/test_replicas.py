"""`wait_replicas`: a write is acknowledged only after a replica has it, also one that is repeated."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

import tenure
from tenure.api.store import Store
from tenure.errors import Unavailable
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tests.backends.redis.servers import Server, free_ports, running, wait_until

pytestmark = pytest.mark.xdist_group("redis")
WORK = QueueName("default", "work")


@pytest.fixture(scope="module")
def replica(server: Server) -> Iterator[Server]:
    with running(Server("--replicaof", "127.0.0.1", str(server.port), port=free_ports(1)[0])) as made:
        wait_until(lambda: made.client().info("replication")["master_link_status"] == "up", "no link")
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server(port=free_ports(1)[0])) as made:
        yield made


@pytest.fixture
def url(server: Server, replica: Server) -> Iterator[str]:
    yield f"redis://127.0.0.1:{server.port}?wait_replicas=1&timeout=1&patience=1"
    os.kill(replica.pid, signal.SIGCONT)


def claim(store: Store) -> object:
    return store.queue("work").claim(limit=1, id="c", worker="w")


def enqueue(store: Store) -> object:
    return store._backend.once(b"r").enqueue(WORK, [JobRequest(b"x")])


def stage(store: Store) -> object:
    return store._backend.begin_write("w", b"", 60_000)


@pytest.mark.parametrize("verb", [claim, enqueue, stage])
def test_a_write_that_no_replica_has_is_not_acknowledged_to_anyone(
    url: str, replica: Server, verb: Callable[[Store], object]
) -> None:
    with tenure.open(url, sweep=False) as first, tenure.open(url, sweep=False) as second:
        first.queue("work").enqueue(b"1")
        second.queue("work").counts()  # it knows the queue
        os.kill(replica.pid, signal.SIGSTOP)
        with pytest.raises(Unavailable):
            verb(first)
        with pytest.raises(Unavailable):  # another client repeats it, on a connection that has written nothing
            verb(second)
        os.kill(replica.pid, signal.SIGCONT)
        verb(second)
