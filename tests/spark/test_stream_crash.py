"""The driver of a journal stream, killed -9 at random: bronze holds every event once (CRASH_ROUNDS: ten kills)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pyarrow.dataset as arrow
import pytest

import tenure
from tenure.spark.connections import opened
from tests.bulk.filling import fill

DRIVER = Path(__file__).parent / "bronze_driver.py"
KILLS = min(10, int(os.environ.get("CRASH_ROUNDS", "1")))


@pytest.mark.crash
@pytest.mark.timeout(3600 if KILLS > 1 else 600)  # a driver starts in five seconds, or in forty on a busy machine
@pytest.mark.parametrize("scheme", ["rocksdb", "lmdb"] if KILLS > 9 else ["rocksdb"])
def test_killed_at_random_every_event_is_there_once(tmp_path: Path, scheme: str):
    url, random = f"{scheme}:{tmp_path / 'data'}", Random(time.time_ns())
    with tenure.open(url, sweep=False) as store:
        fill(store)
    kills = turn = 0
    while kills < KILLS:
        expected = _busy(url, turn)
        # By turns in batches that are read from a snapshot, and in small ones that travel with their plan.
        kills += _run(url, tmp_path, random, 25_000 if turn % 2 else 1500)
        turn += 1
        assert turn < 3 * KILLS + 3, "it ends before it can be killed"
    expected = _busy(url, turn)
    assert not _run(url, tmp_path, None, 25_000)
    found = arrow.dataset(tmp_path / "bronze", format="parquet").to_table(["commit", "index"])
    assert sorted(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected
    with tenure.open(url, sweep=False) as store:
        assert store.check().clean


def _busy(url: str, turn: int) -> list[tuple[int, int]]:
    """Some large commits, for the way by a snapshot, and many small ones; the places of all events there are."""
    with opened(url) as store:  # a worker of the killed driver may have it for a moment longer
        queue = store.queue(f"busy-{turn}")
        for _ in range(23 if turn % 2 else 6):
            queue.enqueue_many([b"x"] * 1000)
        for _ in range(60):
            queue.enqueue_many([b"y"] * 10)
            queue.ack_many(queue.claim(limit=10).deliveries)
        return [(e.commit, e.index) for e in store.events(limit=10**6)]


def _run(url: str, folder: Path, random: Random | None, events: int) -> bool:
    """Drain; with `random`, kill the driver and its Java in the middle of some batch. Says whether it was killed."""
    after = 0 if random is None else random.randrange(1, 4) if events < 20_000 else 1
    with (folder / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, str(DRIVER), url, str(folder), str(events)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    seen = 0
    try:
        assert driver.stdout is not None
        for line in driver.stdout:
            if line.startswith("drained"):
                break
            seen += line.startswith("batch")
            if random is not None and seen == after:
                time.sleep(random.random() * 0.3)
                os.killpg(driver.pid, signal.SIGKILL)
        code = driver.wait()
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        assert driver.stdout is not None
        driver.stdout.close()
    assert code in (0, -signal.SIGKILL), (folder / "driver.log").read_text()[-3000:]
    return code != 0
