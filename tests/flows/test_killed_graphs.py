"""Random graphs whose caller is killed at random times: each job runs once, after its parents, and none is stuck.

FLOW_GRAPHS sets the number of graphs for each engine (3; `make test-crash`: 1,000), FLOW_JOBS their size (40; 200).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GRAPHS = int(os.environ.get("FLOW_GRAPHS", "3"))
LARGEST = int(os.environ.get("FLOW_JOBS", "40"))
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300 + 20 * GRAPHS)]


@pytest.mark.parametrize("engine", ["rocksdb", pytest.param("redis", marks=pytest.mark.xdist_group("redis"))])
def test_a_graph_outlives_its_callers(engine: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.flows.killed_graphs", engine, str(tmp_path), "0", str(GRAPHS), str(LARGEST)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-8000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["graphs"] == GRAPHS
    assert told["kills"] >= GRAPHS
    print(
        f"{engine}: {told['graphs']:,} graphs, {told['jobs']:,} jobs, {told['edges']:,} edges, {told['kills']:,} kills"
    )
