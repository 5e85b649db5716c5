"""The pytest plugin: registered by the package, so that a program's tests need only name the fixtures.

    leasehold_clock      a ManualClock
    leasehold_bench      leasehold_bench(app): the app on a store in memory until the test ends
    leasehold_app        a new app on such a store; `leasehold_app.bench` is its bench

Everything of Leasehold is imported by the fixtures, so that a test run which uses none of them pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from leasehold.clock import ManualClock
    from leasehold.testing.bench import Bench
    from leasehold.worker.app import App


@pytest.fixture
def leasehold_clock() -> ManualClock:
    """A clock that stands still until it is told to move."""
    from leasehold.clock import ManualClock

    return ManualClock()


@pytest.fixture
def leasehold_bench(leasehold_clock: ManualClock) -> Iterator[Callable[[App], Bench]]:
    """Put an app on a store in memory, until the test ends."""
    from leasehold.testing.bench import Bench

    with ExitStack() as benches:
        yield lambda app: benches.enter_context(Bench(app, leasehold_clock))


@pytest.fixture
def leasehold_app(leasehold_bench: Callable[[App], Bench]) -> App:
    """A new app on a store in memory. Its bench is `leasehold_app.bench`."""
    from leasehold.worker.app import App

    app = App("memory:")
    app.bench = leasehold_bench(app)  # type: ignore[attr-defined]  # for this one, which is a test's
    return app
