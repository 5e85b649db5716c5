"""A worker on Redis."""

from __future__ import annotations

import pytest

from tenure import App
from tenure.errors import InvalidArgument
from tests.backends.redis.servers import Cluster, RedisHarness, Server, running, wait_until

pytestmark = pytest.mark.xdist_group("redis")


def test_a_worker_of_all_queues_is_refused_on_a_cluster_before_it_starts() -> None:
    with running(Cluster()) as cluster:
        app = App(RedisHarness(cluster.url, []).url)
        with pytest.raises(InvalidArgument, match="name the worker's queues"):
            app.worker(queues="*").start()
        app.close()


def test_a_worker_of_all_queues(server: Server) -> None:
    app = App(RedisHarness(server.url, [server]).url)
    seen: list[int] = []

    @app.task(name="note")
    def note(n: int) -> None:
        seen.append(n)

    worker = app.worker(queues="*")
    worker.start()
    for n, (queue, tenant) in enumerate([("emails", "default"), ("else", "acme"), ("where", "zebra")]):
        app.store.queue(queue, tenant).enqueue(b'{"task":"note","args":{"n":%d}}' % n)
    wait_until(lambda: sorted(seen) == [0, 1, 2], "a job of some queue was not run")
    worker.stop()
    app.close()
