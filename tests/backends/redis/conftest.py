"""One server a file of tests, which keep apart by their prefixes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.redis.servers import Server, running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server()) as made:
        yield made
