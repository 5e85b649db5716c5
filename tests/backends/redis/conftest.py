"""One server a file of tests, which keep apart by their prefixes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure.api.store import Store
from tenure.clock import ManualClock
from tests.backends.redis.servers import RedisHarness, Server, running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server()) as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(server: Server, clock: ManualClock) -> Iterator[Store]:
    with RedisHarness(server.url, [server]).open(clock=clock) as made:
        yield made
