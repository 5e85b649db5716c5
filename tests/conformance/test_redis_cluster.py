"""The conformance suite on a Valkey cluster of three primaries: some themes always, all with ALL_COMBINATIONS=1."""

from collections.abc import Iterator

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tests.backends.redis.servers import Cluster, RedisHarness, running
from tests.conformance import selection

pytestmark = pytest.mark.xdist_group("redis-cluster")

#: Themes that involve several queues, and so several nodes.
THEMES = ("any_queue", "claim", "events", "policies", "requests", "staging")

selection.remove(globals(), lambda test: selection.theme_of(test) not in THEMES)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(Cluster()) as made:
        yield made


@pytest.fixture
def harness(cluster: Cluster, request: pytest.FixtureRequest) -> RedisHarness:
    one_slot = selection.theme_of(request.node.originalname) == "any_queue"  # a claim from any queue is one step
    return RedisHarness(cluster.url, cluster.servers, one_slot=str(one_slot).lower())
