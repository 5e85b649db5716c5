"""The conformance suite with every plain job in a segment, even a single one: in memory; RocksDB with LH_TESTS=full."""

import os

import pytest

from tenure.storage.segments import SegmentedTransaction, SegmentUse
from tenure.testing.conformance import *  # noqa: F403 - the tests
from tenure.testing.harness import EngineHarness

_ENGINES = ["memory", "rocksdb"] if os.environ.get("LH_TESTS") == "full" else ["memory"]


@pytest.fixture(params=_ENGINES)
def harness(request, tmp_path, monkeypatch):
    monkeypatch.setattr(SegmentedTransaction, "LEAST", 1)
    monkeypatch.setattr(SegmentUse, "RESTS", 0)
    if request.param == "memory":
        made = EngineHarness("memory")
    else:
        made = EngineHarness("rocksdb", tmp_path / "data", quick={"durability": "os"})
    made.race_jobs = 5_000
    return made
