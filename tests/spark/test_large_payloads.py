"""The largest payloads there are, through every step: bounded by bytes, not by rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark import large_payloads

JOBS = int(os.environ.get("SPARK_LARGE", "300"))


@pytest.mark.timeout(900)
def test_every_step_takes_large_payloads(spark: SparkSession, tmp_path: Path) -> None:
    seen = large_payloads.life(spark, tmp_path, 6)
    assert set(seen.values()) == {6}, seen


@pytest.mark.crash
@pytest.mark.skipif("CRASH_ROUNDS" not in os.environ, reason="20 GB on disk: in make test-crash")
@pytest.mark.timeout(3600)
def test_no_python_takes_a_gigabyte(tmp_path: Path) -> None:
    command = [sys.executable, large_payloads.__file__, str(tmp_path), str(JOBS)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert set(found["seen"].values()) == {JOBS}
    peaks = sorted(((size // 2**20, name) for name, size in found["peaks"].items()), reverse=True)
    print(f"{JOBS} jobs of 7.5 MiB; peaks in MiB: {peaks[:6]}")
    # Java has its heap (512 MB here) and, outside of it, the record batches on their way: some 1.2 GB.
    assert max(size for size, name in peaks if not name.startswith("java")) < 1024
