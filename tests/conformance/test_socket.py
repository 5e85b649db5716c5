"""The conformance suite through the owner's listener: MessagePack over a Unix socket, RocksDB behind it."""

import pytest

from leasehold.testing.conformance import *  # noqa: F403 - the tests
from leasehold.testing.harness import EngineHarness
from tests.conformance.remote import ListenerHarness


@pytest.fixture
def harness(tmp_path):
    inner = EngineHarness("rocksdb", tmp_path / "data", quick={"durability": "os"})
    made = ListenerHarness(inner, tmp_path, unix=True, encoding="msgpack")
    yield made
    made.destroy()
