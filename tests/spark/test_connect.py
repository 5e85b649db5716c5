"""Spark Connect: the client's Python has no Java, and the source works all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tenure.spark.session import _plain_python
from tests.bulk.filling import fill


@pytest.mark.crash  # it kills nothing, but takes two Javas: `make test-crash` has the time
@pytest.mark.skipif("CRASH_ROUNDS" not in os.environ, reason="in make test-crash")
def test_a_client_reads_and_streams(tmp_path: Path):
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        fill(store)
        counts = store.queue("emails", tenant="acme").counts()
        jobs = counts.waiting + counts.leased + counts.done + counts.dead
        events = len(store.events(limit=10**6))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "connect_client.py"), url, str(tmp_path)],
        env=os.environ | {"PYSPARK_PYTHON": _plain_python()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["jobs", str(jobs), "events", str(events), "written", "10"], (
        done.stdout + done.stderr[-3000:]
    )
