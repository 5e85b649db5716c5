"""The conformance suite on queues of four partitions: some themes always, all with ALL_COMBINATIONS=1.

Their order is approximate (`traits.order`): a claim takes jobs of one partition.
"""

from collections.abc import Iterator

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tests.backends.redis.servers import RedisHarness, Server, running
from tests.conformance import selection

pytestmark = pytest.mark.xdist_group("redis")

#: Themes that involve several partitions of a queue.
THEMES = ("any_queue", "claim", "settle")

selection.remove(globals(), lambda test: selection.theme_of(test) not in THEMES)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server()) as made:
        yield made


@pytest.fixture
def harness(server: Server) -> RedisHarness:
    return RedisHarness(server.url, [server], partitions="4")
