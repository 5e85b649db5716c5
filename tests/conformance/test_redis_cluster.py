"""The conformance suite on a Valkey cluster of three primaries: some themes always, all with LH_TESTS=full."""

import os
from collections.abc import Iterator

import pytest

from tenure.testing import conformance
from tenure.testing.conformance import *  # noqa: F403 - the tests
from tests.backends.redis.servers import Cluster, RedisHarness, running

pytestmark = pytest.mark.xdist_group("redis-cluster")

#: Themes that involve several queues, and so several nodes.
THEMES = ("claim", "events", "policies", "requests", "staging")

if os.environ.get("LH_TESTS") != "full":
    for name in conformance.__all__:
        if name.startswith("test_") and vars(conformance)[name].__module__.rpartition(".")[2] not in THEMES:
            del globals()[name]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(Cluster()) as made:
        yield made


@pytest.fixture
def harness(cluster: Cluster) -> RedisHarness:
    return RedisHarness(cluster.url, cluster.servers)
