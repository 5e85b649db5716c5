"""The conformance suite where every plain job is a segment, be it alone in it: on the engines that keep segments."""

import pytest

from leasehold.storage.segmented import Habits, SegmentedTransaction
from leasehold.testing.conformance import *  # noqa: F403 - the tests
from leasehold.testing.harness import EngineHarness


@pytest.fixture(params=["memory", "rocksdb"])
def harness(request, tmp_path, monkeypatch):
    monkeypatch.setattr(SegmentedTransaction, "LEAST", 1)
    monkeypatch.setattr(Habits, "RESTS", 0)
    if request.param == "memory":
        made = EngineHarness("memory")
    else:
        made = EngineHarness("rocksdb", tmp_path / "data", quick={"durability": "os"})
    made.race_jobs = 5_000
    return made
