"""The conformance suite on one Valkey server."""

from collections.abc import Iterator

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tests.backends.redis.servers import RedisHarness, Server, running

pytestmark = pytest.mark.xdist_group("redis")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server()) as made:
        yield made


@pytest.fixture
def harness(server: Server) -> RedisHarness:
    return RedisHarness(server.url, [server])
