"""Tests that share something dear (a JVM, a cluster) run in one process: that the runner keeps groups is itself tested."""

import os

import pytest


@pytest.mark.xdist_group("a-group")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="runs are spread over processes by make test")
def test_a_group_is_known_to_the_runner(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@a-group")
