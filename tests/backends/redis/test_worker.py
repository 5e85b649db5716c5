"""A worker on Redis."""

from __future__ import annotations

import pytest

from tenure import App
from tenure.errors import InvalidArgument
from tests.backends.redis.servers import RedisHarness, Server

pytestmark = pytest.mark.xdist_group("redis")


def test_a_worker_of_all_queues_is_refused_before_it_starts(server: Server) -> None:
    app = App(RedisHarness(server.url, []).url)
    with pytest.raises(InvalidArgument, match="name the worker's queues"):
        app.worker(queues="*").start()
    app.close()
