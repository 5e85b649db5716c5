"""The conformance suite through the owner's listener, over a Unix socket, with a store on RocksDB or in memory."""

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tests.conformance.remote import ENCODINGS, ListenerHarness, behind, encoding_of


@pytest.fixture(params=ENCODINGS)
def harness(request, tmp_path):
    encoding = encoding_of(request.param, request.node.originalname, otherwise=True)
    made = ListenerHarness(behind(request, tmp_path), tmp_path, unix=True, encoding=encoding)
    yield made
    made.destroy()
