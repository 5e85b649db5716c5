"""The conformance suite on queues of four partitions: some themes always, all with LH_TESTS=full.

Their order is approximate (`traits.order`): a claim takes jobs of one partition.
"""

import os
from collections.abc import Iterator

import pytest

from tenure.testing import conformance
from tenure.testing.conformance import *  # noqa: F403 - the tests
from tests.backends.redis.servers import RedisHarness, Server, running

pytestmark = pytest.mark.xdist_group("redis")

#: Themes that involve several partitions of a queue.
THEMES = ("claim", "settle")

if os.environ.get("LH_TESTS") != "full":
    for name in conformance.__all__:
        if name.startswith("test_") and vars(conformance)[name].__module__.rpartition(".")[2] not in THEMES:
            del globals()[name]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server()) as made:
        yield made


@pytest.fixture
def harness(server: Server) -> RedisHarness:
    return RedisHarness(server.url, [server], partitions="4")
