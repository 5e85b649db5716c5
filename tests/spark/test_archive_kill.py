"""Two archive runs on one root at once, killed -9 again and again: each job is in the archive once."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

import tenure
from tenure import Policy
from tenure.spark.jobs.archive import Archive
from tests.spark import archive_driver

KILLS = int(os.environ.get("ARCHIVE_KILLS", "20"))
JOBS = 300
#: One that finds the archive busy says nothing.
STEPS = ("writing", "verifying", "committing", "removed", "archived")


class Said(NamedTuple):
    driver: Driver
    step: str


class Driver:
    """A process with a Java of its own, which says what it does into a queue."""

    def __init__(self, folder: Path, url: str, said: queue.Queue[Said]) -> None:
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        command = [sys.executable, archive_driver.__file__, url, str(folder / "archive"), str(scratch)]
        self._errors = folder / f"driver-{time.monotonic_ns()}.stderr"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._said = said
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._said.put(Said(self, line))

    def errors(self) -> str:
        """The end of what it and its Java wrote to their standard error."""
        return self._errors.read_text(errors="replace")[-6000:]

    def kill(self) -> None:
        """The driver and its Java, at one blow."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


@pytest.mark.crash
@pytest.mark.timeout(600 + 120 * KILLS)
def test_each_job_once_though_runs_are_killed(tmp_path: Path) -> None:
    url = f"rocksdb:{tmp_path / 'data'}"
    dice = random.Random(os.environ.get("SPARK_SEED", "21"))
    said: queue.Queue[Said] = queue.Queue()
    with tenure.open(url, sweep=False) as store:
        jobs = store.queue("q")
        jobs.configure(Policy(retention=86_400))
        # Two are at work, the third is starting: a run is killed while another waits to take over.
        drivers = [Driver(tmp_path, url, said) for _ in range(3)]
        try:
            for number in range(KILLS):
                jobs.enqueue_many([b"%d" % n for n in range(number * JOBS, (number + 1) * JOBS)])
                jobs.ack_many(list(jobs.claim(limit=JOBS)))
                wanted = dice.choice(STEPS)
                with contextlib.suppress(queue.Empty):
                    while True:
                        said.get_nowait()  # what was done before there was something to archive
                heard = said.get(timeout=600)
                while not heard.step.startswith(wanted) or heard.step == "archived 0\n" or heard.driver not in drivers:
                    heard = said.get(timeout=600)
                drivers.remove(heard.driver)
                heard.driver.kill()
                drivers.append(Driver(tmp_path, url, said))
                print(f"killed at {heard.step.strip()!r}", flush=True)
            for driver in drivers:
                driver.kill()
            drivers.append(last := Driver(tmp_path, url, said))
            assert last.process.stdin is not None
            last.process.stdin.close()
            ended = last.process.wait(600)
            assert ended == 0, f"the last run ended with {ended}:\n{last.errors()}"
        finally:
            for driver in drivers:
                driver.kill()
        assert jobs.counts().done == 0
        assert store.check().clean
    kept = Archive(str(tmp_path / "archive"))
    found = [
        payload
        for entry in kept.entries()
        for file in (tmp_path / "archive" / entry.place).glob("*.parquet")
        for payload in pq.read_table(file, columns=["payload"]).column(0).to_pylist()
    ]
    assert sorted(map(int, found)) == list(range(KILLS * JOBS)), "none is lost, none is there twice"
    print(f"{KILLS} runs of two killed: {len(found):,} jobs in {len(kept.entries())} entries, 0 lost, 0 doubled")
