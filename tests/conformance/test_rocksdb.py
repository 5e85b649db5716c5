"""The conformance suite on RocksDB: races at the default durability, everything else at what is quick."""

import pytest

from leasehold.testing.conformance import *  # noqa: F403 - the tests
from leasehold.testing.harness import EngineHarness


@pytest.fixture
def harness(tmp_path):
    return EngineHarness("rocksdb", tmp_path / "data", quick={"durability": "os"})
