"""The conformance suite on the memory engine."""

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tenure.testing.harness import EngineHarness


@pytest.fixture
def harness():
    made = EngineHarness("memory")
    made.race_jobs = 5_000
    return made
