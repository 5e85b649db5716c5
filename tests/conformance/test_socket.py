"""The conformance suite through the owner's listener: over a Unix socket, RocksDB behind it."""

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tenure.testing.harness import EngineHarness
from tests.conformance.remote import ENCODINGS, ListenerHarness, encoding_of


@pytest.fixture(params=ENCODINGS)
def harness(request, tmp_path):
    inner = EngineHarness("rocksdb", tmp_path / "data", quick={"durability": "os"})
    encoding = encoding_of(request.param, request.node.originalname, otherwise=True)
    made = ListenerHarness(inner, tmp_path, unix=True, encoding=encoding)
    yield made
    made.destroy()
