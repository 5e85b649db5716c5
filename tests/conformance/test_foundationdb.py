"""The conformance suite on FoundationDB: a simulated cluster, or the real one that TENURE_FDB_CLUSTER_FILE names."""

import os

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tenure.testing.fdb.harness import ClusterHarness, SimulatedHarness


@pytest.fixture
def harness():
    cluster_file = os.environ.get("TENURE_FDB_CLUSTER_FILE")
    return ClusterHarness(cluster_file) if cluster_file else SimulatedHarness()
