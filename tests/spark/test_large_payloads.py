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
    # Three of one partition: more than a chunk, a batch and a page take.
    seen = large_payloads.life(spark, tmp_path, 3)
    assert set(seen.values()) == {3}, seen


@pytest.mark.crash
@pytest.mark.skipif("CRASH_ROUNDS" not in os.environ, reason="20 GB on disk: in make test-crash")
@pytest.mark.timeout(3600)
def test_no_python_takes_a_gigabyte(tmp_path: Path) -> None:
    command = [sys.executable, large_payloads.__file__, str(tmp_path), str(JOBS)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert set(found["seen"].values()) == {JOBS}
    print(f"{JOBS} jobs of 7.5 MiB; MiB of the largest process: {found['peaks']}")
    # Java has its heap (512 MB here) and, outside of it, the record batches on their way.
    assert max(step["python"]["own"] for step in found["peaks"].values()) < 1024
