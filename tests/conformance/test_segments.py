"""The conformance suite where every plain job is a segment, be it alone in it: in memory always, on RocksDB with ALL_COMBINATIONS=1."""

import pytest

from tenure.storage.segments import SegmentedTransaction, SegmentUse
from tenure.testing.conformance import *  # noqa: F403 - the tests
from tenure.testing.harness import EngineHarness
from tests.combinations import ALL_COMBINATIONS

_ENGINES = ["memory", "rocksdb"] if ALL_COMBINATIONS else ["memory"]


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
