"""For every test: a busy machine is slow, which is no failure of a property; the same cases in every run, unless deep; and no log of another test."""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("DEBUG_WRITER_LOCK", "1")  # functions that require the writer's lock assert that it is held
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell runs what it has in the background so, and the tests' children would not end by Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile(
    "patient",
    deadline=None,
    derandomize=os.environ.get("HYPOTHESIS_PROFILE") != "deep",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """What a command line sets for its process does not outlive the test that ran it in this one."""
    root, own = logging.getLogger(), logging.getLogger("tenure")
    handlers, level = list(root.handlers), own.level
    yield
    own.setLevel(level)
    for handler in root.handlers[:]:
        if handler not in handlers and type(handler).__module__.startswith("tenure."):
            root.removeHandler(handler)
