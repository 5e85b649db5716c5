"""The conformance suite on RocksDB: races at the default durability, all other tests at a faster one."""

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tenure.testing.harness import EngineHarness


@pytest.fixture
def harness(tmp_path):
    return EngineHarness("rocksdb", tmp_path / "data", quick={"durability": "os"})
