"""A commit with a quarantine that is killed -9 and repeated under its id: each row is a job or set aside, once."""

from __future__ import annotations

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
from tenure import NewJob
from tenure.bulk.staging import Manifest
from tests.bulk import commit_driver
from tests.bulk.test_publishing import numbered, stage

#: `make test-crash` kills twenty times.
KILLS = 20 if "CRASH_ROUNDS" in os.environ else 2
ROWS, TAKEN, BAD = 6_000, 3, 7


@pytest.mark.crash
@pytest.mark.timeout(300 + 120 * KILLS)
def test_each_row_once_though_the_commit_is_killed(tmp_path: Path) -> None:
    url, root, aside = f"rocksdb:{tmp_path / 'data'}", str(tmp_path / "staging"), tmp_path / "aside"
    dice = random.Random(os.environ.get("SPARK_SEED", "21"))
    killed = jobs = refused = 0
    took = 0.4
    for number in range(10 * KILLS):
        if killed == KILLS:
            break
        write = f"write-{number}"
        first = number * ROWS
        with tenure.open(url, sweep=False) as store:
            taken = range(first, first + ROWS, TAKEN)
            for at in range(0, len(taken), 1000):
                store.queue("work").enqueue_many([NewJob(b"other", key=f"k{n}") for n in taken[at : at + 1000]])
        keys = pa.array([f"k{n}" for n in range(first, first + ROWS)])
        priorities = pa.array([99 if n % BAD == 0 else 0 for n in range(first, first + ROWS)])
        part = stage(root, write, f"p{number}-a", numbered(first, ROWS), key=keys, priority=priorities)
        command = [
            sys.executable,
            commit_driver.__file__,
            url,
            write,
            str(aside),
            Manifest(root, [part]).encode().hex(),
        ]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"open\n"
        begun = time.monotonic()
        try:
            driver.wait(dice.random() * took)
            took = min(took, 2 * (time.monotonic() - begun))  # it was quicker: aim earlier
        except subprocess.TimeoutExpired:
            os.kill(driver.pid, signal.SIGKILL)
            killed += 1
        driver.wait(30)
        driver.stdout.close()
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        bad = sum(n % BAD == 0 for n in range(first, first + ROWS))
        conflicts = sum(n % BAD != 0 for n in taken)
        jobs += ROWS - bad - conflicts
        refused += bad + conflicts
    rows = [row for file in sorted(aside.glob("[!.]*")) for row in pq.read_table(file, columns=["payload"]).to_pylist()]
    found = [row["payload"] for row in rows]
    with tenure.open(url, sweep=False) as store:
        ready: list[bytes] = []
        while claim := store.queue("work").claim(limit=10_000, lease=86_400):
            ready += [delivery.payload for delivery in claim if delivery.payload != b"other"]
        assert store.check().clean
    assert killed == KILLS
    assert (len(ready), len(found)) == (jobs, refused)
    assert len({*ready, *found}) == jobs + refused, "none is lost, none is there twice"
    print(f"{killed} kills: {jobs:,} jobs, {refused:,} rows set aside, 0 lost, 0 doubled")
