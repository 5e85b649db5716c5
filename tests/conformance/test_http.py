"""The conformance suite through the server: over TCP, with RocksDB or memory behind it. `selection` says which tests."""

import pytest

from tenure.testing.conformance import *  # noqa: F403 - the tests
from tests.conformance import selection
from tests.conformance.remote import ServerHarness, behind


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "harness" in metafunc.fixturenames:
        encodings = selection.encodings_of(metafunc.function.__name__, "server")
        metafunc.parametrize("harness", encodings, indirect=True)


@pytest.fixture
def harness(request, tmp_path):
    made = ServerHarness(behind(request, tmp_path), tmp_path, unix=False, encoding=request.param)
    yield made
    made.destroy()


selection.remove(globals(), lambda test: not selection.encodings_of(test, "server"))
