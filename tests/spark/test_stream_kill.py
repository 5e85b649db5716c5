"""A stream into the queue whose driver is killed -9 again and again: each row is there once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tenure
from tests.spark import stream_driver

KILLS = int(os.environ.get("SPARK_KILLS", "2"))
FILES, ROWS = 6 * (KILLS + 1), 1_500


def start(tmp_path: Path, url: str) -> subprocess.Popen[bytes]:
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    command = [
        sys.executable,
        stream_driver.__file__,
        str(tmp_path / "in"),
        url,
        str(tmp_path / "checkpoint"),
        str(scratch),
    ]
    return subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE)


def kill(driver: subprocess.Popen[bytes]) -> None:
    """The driver and its Java, at one blow; Spark's Python workers end when their Java is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(30)
    if driver.stderr:
        driver.stderr.close()


@pytest.mark.crash
@pytest.mark.timeout(300 + 120 * KILLS)
@pytest.mark.parametrize("scheme", ["lmdb", "rocksdb"])
def test_each_row_once_though_the_driver_is_killed(tmp_path: Path, scheme: str) -> None:
    """RocksDB is this process's then, and the driver's Pythons come in through it."""
    url = f"{scheme}:{tmp_path / 'data'}"
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        rows = pa.array([str(file * ROWS + row) for row in range(ROWS)])
        pq.write_table(pa.table({"payload": rows}), tmp_path / "in" / f"{file:03d}.parquet")
    dice = random.Random(os.environ.get("SPARK_SEED", "7"))
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        for _ in range(KILLS):
            before = queue.counts().enqueued
            driver = start(tmp_path, url)
            try:
                wait_for(lambda before=before: queue.counts().enqueued > before, driver)
                time.sleep(dice.random() * 0.4)
            finally:
                kill(driver)
            assert driver.returncode == -signal.SIGKILL
        driver = start(tmp_path, url)
        try:
            _, errors = driver.communicate(timeout=300)
        finally:
            kill(driver)
        assert driver.returncode == 0, errors.decode()[-2_000:]
        assert queue.counts().enqueued == FILES * ROWS
        found: list[bytes] = []
        while claim := queue.claim(limit=10_000, lease=86_400):
            found += [delivery.payload for delivery in claim]
        assert sorted(map(int, found)) == list(range(FILES * ROWS))
        assert store.check().clean
    print(f"{scheme}: driver killed {KILLS} times, {FILES * ROWS:,} rows in {FILES} files, each a job once")


def wait_for(condition, driver: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 300
    while not condition():
        if driver.poll() is not None:
            assert driver.stderr
            raise AssertionError(f"the driver ended by itself: {driver.stderr.read().decode()[-2_000:]}")
        assert time.monotonic() < until, "the stream did not get going"
        time.sleep(0.02)
