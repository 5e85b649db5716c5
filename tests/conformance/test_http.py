"""The conformance suite through the server: over TCP, RocksDB behind it."""

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tenure.testing.harness import EngineHarness
from tests.conformance.remote import ENCODINGS, ServerHarness, encoding_of


@pytest.fixture(params=ENCODINGS)
def harness(request, tmp_path):
    inner = EngineHarness("rocksdb", tmp_path / "data", quick={"durability": "os"})
    encoding = encoding_of(request.param, request.node.originalname, otherwise=False)
    made = ServerHarness(inner, tmp_path, unix=False, encoding=encoding)
    yield made
    made.destroy()
