"""The conformance suite through the server: JSON over TCP, RocksDB behind it."""

import pytest

from leasehold.testing.conformance import *  # noqa: F403 - the tests
from leasehold.testing.harness import EngineHarness
from tests.conformance.remote import ServerHarness


@pytest.fixture
def harness(tmp_path):
    made = ServerHarness(
        EngineHarness("rocksdb", tmp_path / "data", quick={"durability": "os"}), tmp_path, unix=False, encoding="json"
    )
    yield made
    made.destroy()
