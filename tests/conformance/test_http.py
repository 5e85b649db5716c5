"""The conformance suite through the server, over TCP, with a store on RocksDB or in memory."""

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tests.conformance.remote import ENCODINGS, ServerHarness, behind, encoding_of


@pytest.fixture(params=ENCODINGS)
def harness(request, tmp_path):
    encoding = encoding_of(request.param, request.node.originalname, otherwise=False)
    made = ServerHarness(behind(request, tmp_path), tmp_path, unix=False, encoding=encoding)
    yield made
    made.destroy()
