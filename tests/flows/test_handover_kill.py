"""kill -9 during `ack(then=…)`: the ack and the enqueue both take effect, or neither.

FLOW_KILLS sets how often for each engine (default: 3 processes and 8 system calls; `make test-crash`: 200 of each).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tests.backends.redis.servers import Server, running
from tests.crash.power_loss import Images, record
from tests.crash.test_power_loss import folder

__all__ = ["folder"]  # a fixture

KILLS = int(os.environ.get("FLOW_KILLS", "3"))
POINTS = int(os.environ.get("FLOW_KILLS", "8"))
#: The number of acks of the recorded process.
RECORDED = 40
ROOT = Path(__file__).parents[2]
QUEUES = ("even", "odd")

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300 + 20 * KILLS)]


def left(url: str, queues: tuple[str, ...] = QUEUES) -> int:
    """The number of the only job, which must exist. Expires the dead process's lease."""
    with tenure.open(url, durability="os", sweep=False) as store:
        assert store.check().clean
        jobs = [job for name in queues for state in ("ready", "leased") for job in store.queue(name).list(state)]
        assert len(jobs) == 1, f"{len(jobs)} jobs: {[(job.queue, job.state, job.payload) for job in jobs]}"
        (job,) = jobs
        number = int(job.payload)
        assert job.queue == queues[number % len(queues)]
        if job.state == "leased":
            queue = store.queue(job.queue)
            queue.release(f"{job.id}.{job.lease_id}.{job.token:x}")
        return number


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server()) as made:
        yield made


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb", pytest.param("redis", marks=pytest.mark.xdist_group("redis"))])
def test_both_or_neither(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    queues = QUEUES if engine != "redis" else ("one",)
    url = f"{engine}:{tmp_path / 'data'}" if engine != "redis" else request.getfixturevalue("server").url
    roll = random.Random(7)
    before = both = neither = 0
    for _ in range(KILLS):
        command = [sys.executable, "-m", "tests.flows.handing_over", url, "os", ",".join(queues)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            time.sleep(roll.uniform(0, 0.2))
            os.kill(process.pid, signal.SIGKILL)
            said = process.stdout.read().split()
        acked = int(said[-1]) + 1 if said else before
        number = left(url, queues)
        # The ack in flight took effect with its follow-up job, or not at all.
        assert number in (acked, acked + 1), (acked, number)
        both += number == acked + 1
        neither += number == acked
        before = number
    print(f"{engine}: {KILLS} kills, {before:,} hand-overs: {both} had committed unsaid, {neither} had not")


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace")
@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_both_or_neither_before_a_system_call(engine: str, folder: Path) -> None:
    """The files after a kill before the n-th system call are replayed from a recording (tests/crash)."""
    run, image, chance = folder / "run", folder / "image", random.Random(16)
    run.mkdir()
    log = run / "log"
    command = [sys.executable, "-m", "tests.flows.handing_over", f"{engine}:{run / 'data'}", "disk", ",".join(QUEUES)]
    steps = record([*command, str(log), str(RECORDED)], run / "data", log, run / "trace", ROOT)
    opened = next(n for n, step in enumerate(steps) if step.path == str(log) and step.kind == "write")
    images = Images(steps, run / "data", log, chance)
    points = sorted(chance.sample(range(opened + 1, len(steps) + 1), min(POINTS, len(steps) - opened)))
    both = 0
    for point in points:
        images.play(point)
        images.killed(()).write(image)
        said = bytes(images.said).split()[1:]
        acked = int(said[-1]) + 1 if said else 0
        number = left(f"{engine}:{image}")
        assert number in (acked, acked + 1), f"{acked} were acked, and job {number} is there, before call {point}"
        both += number == acked + 1
    print(
        f"{engine}: killed before {len(points)} of {len(steps)} calls: {both} had committed unsaid, the others had not"
    )
