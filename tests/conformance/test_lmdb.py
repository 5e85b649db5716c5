"""The conformance suite on LMDB, which several processes may have open at once."""

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tenure.testing.harness import EngineHarness


@pytest.fixture
def harness(tmp_path):
    return EngineHarness("lmdb", tmp_path / "data")
