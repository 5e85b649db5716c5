"""The pytest plugin. The package registers it, so tests only have to name its fixtures.

    tenure_clock      a ManualClock
    tenure_bench      tenure_bench(app): the app on a store in memory until the test ends
    tenure_app        a new app on such a store; `tenure_app.bench` is its bench

The fixtures import Tenure when they are used, so the plugin costs nothing in a test run without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tenure.clock import ManualClock
    from tenure.testing.bench import Bench
    from tenure.worker.app import App


@pytest.fixture
def tenure_clock() -> ManualClock:
    """A clock that moves only when the test moves it."""
    from tenure.clock import ManualClock

    return ManualClock()


@pytest.fixture
def tenure_bench(tenure_clock: ManualClock) -> Iterator[Callable[[App], Bench]]:
    """Put an app on a store in memory, until the test ends."""
    from tenure.testing.bench import Bench

    with ExitStack() as benches:
        yield lambda app: benches.enter_context(Bench(app, tenure_clock))


@pytest.fixture
def tenure_app(tenure_bench: Callable[[App], Bench]) -> App:
    """A new app on a store in memory. Its bench is `tenure_app.bench`."""
    from tenure.worker.app import App

    app = App("memory:")
    app.bench = tenure_bench(app)  # type: ignore[attr-defined]  # only this test's app has it
    return app
