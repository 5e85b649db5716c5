"""An expired lease is logged, with its id and the ids of its jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import ManualClock


@pytest.mark.parametrize("found_by", ["sweep", "claim"])
@pytest.mark.parametrize("engine", ["memory:", "rocksdb", "lmdb"])
def test_an_expiry_names_its_lease_and_jobs(
    engine: str, found_by: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "tenure")
    clock = ManualClock()
    url = engine if engine == "memory:" else f"{engine}:{tmp_path}/data"
    with tenure.open(url, clock=clock, sweep=False) as store:
        queue = store.queue("work", tenant="acme")
        queue.enqueue_many([b"x"] * 2)
        claim = queue.claim(limit=2, lease=5, worker="w1")
        clock.advance(6)
        if found_by == "sweep":
            store.sweep()
        else:
            assert len(queue.claim(limit=2)) == 2
    told: list[Any] = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    lines = [line for line in told if line["event"] == "lease_expired"]
    assert len(lines) == 1
    line = lines[0]
    assert (line["tenant"], line["queue"], line["lease"], line["worker"]) == ("acme", "work", claim.id, "w1")
    assert sorted(line["jobs"]) == sorted(delivery.id for delivery in claim)
