"""Two archive runs on one root at once, killed -9 again and again: each job is in the archive once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tenure
from tenure import Policy
from tenure.spark.jobs.archive import Archive
from tests.spark import archive_driver

KILLS = int(os.environ.get("ARCHIVE_KILLS", "20"))
JOBS = 300


def start(tmp_path: Path, url: str) -> subprocess.Popen[str]:
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, archive_driver.__file__, url, str(tmp_path / "archive"), str(scratch)]
    return subprocess.Popen(
        command, cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def kill(driver: subprocess.Popen[str]) -> None:
    """The driver and its Java, at one blow."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(30)
    if driver.stdout:
        driver.stdout.close()


@pytest.mark.crash
@pytest.mark.timeout(300 + 240 * KILLS)
def test_each_job_once_though_runs_are_killed(tmp_path: Path) -> None:
    url = f"rocksdb:{tmp_path / 'data'}"
    dice = random.Random(os.environ.get("SPARK_SEED", "21"))
    wanted: set[bytes] = set()
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("q")
        queue.configure(Policy(retention=86_400))
        for number in range(KILLS):
            payloads = [b"%d" % n for n in range(number * JOBS, (number + 1) * JOBS)]
            wanted.update(payloads)
            queue.enqueue_many(payloads)
            queue.ack_many(list(queue.claim(limit=JOBS)))
            drivers = [start(tmp_path, url), start(tmp_path, url)]
            try:
                step = dice.choice(["writing", "verifying", "committing", "removed", "archived"])
                assert drivers[0].stdout is not None
                for line in drivers[0].stdout:
                    if line.startswith((step, "archived", "busy")):
                        break
            finally:
                for driver in drivers:
                    kill(driver)
        last = start(tmp_path, url)
        try:
            assert last.wait(300) == 0
        finally:
            kill(last)
        assert queue.counts().done == 0
        assert store.check().clean
    kept = Archive(str(tmp_path / "archive"))
    found = [
        payload
        for entry in kept.entries()
        for file in (kept.root / entry.place).glob("*.parquet")
        for payload in pq.read_table(file, columns=["payload"]).column(0).to_pylist()
    ]
    assert len(found) == len(wanted), "none is there twice"
    assert set(found) == wanted, "none is lost"
    print(f"{KILLS} times two runs killed: {len(found):,} jobs in {len(kept.entries())} runs, 0 lost, 0 doubled")
