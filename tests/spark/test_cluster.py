"""A few tests of each kind where executors are other processes: a master and two workers on this machine (`local-cluster`).

Nothing may rely on the driver's memory or file handles. `make test-crash` runs all of them so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FEW = (
    "test_read.py::test_every_table_is_read_whole_in_parts[jobs]",
    "test_stream.py::test_a_large_batch_is_read_in_parts_and_its_snapshot_dropped",
)


@pytest.mark.timeout(600)
def test_executors_are_other_processes(tmp_path: Path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--basetemp={tmp_path / 'tests'}",
            "--timeout=600",
        ]
        + [str(HERE / name) for name in FEW],
        env=os.environ | {"SPARK_MASTER": "local-cluster[2,1,1024]"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert f"{len(FEW)} passed" in done.stdout
