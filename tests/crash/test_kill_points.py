"""A process killed before any of its data system calls leaves a store that opens with all acknowledged calls.

A working process is recorded once under strace. The files after a kill before call n are the result of replaying the
first n calls: every written byte, since the system continues to run. A few processes are really killed there, by
strace's fault injection. KILL_POINTS sets the number of points for each engine (16; `make test-crash`: 2,000).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.power_images import ROOT, Recorded, events
from tests.crash.said import Said
from tests.crash.test_power_loss import folder  # noqa: F401 - a fixture

POINTS = int(os.environ.get("KILL_POINTS", "16"))
#: The most points of one recorded run; and the number of processes that are really killed.
A_RUN = 500
KILLS = 2 if POINTS < 100 else 20
CALLS = 60 if POINTS < 100 else 250

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace"),
    pytest.mark.timeout(300 + 2 * POINTS),
]


def worker(engine: str, run: Path, seed: int) -> list[str]:
    """The command of a process that works in `run` and logs acknowledged calls."""
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    command = [sys.executable, "-m", "tests.crash.power_worker", f"{engine}:{run / 'data'}", "disk", str(run / "log")]
    return [*command, str(seed), "2", str(CALLS), "driver"]


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_killed_before_a_system_call(engine: str, folder: Path) -> None:  # noqa: F811 - the fixture
    seed = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(2**32))
    print(f"CRASH_SEED={seed}")
    chance, left, opened, distinct, runs = random.Random(seed), POINTS, 0, 0, 0
    while left > 0:
        run = Recorded(folder / "run", engine, "disk", 2, "driver", chance)
        runs += 1
        points = chance.sample(range(run.made, len(run.steps) + 1), min(left, A_RUN, len(run.steps) + 1 - run.made))
        left -= len(points)
        for point in sorted(points):
            run.play(point)
            opened += judge(run, folder / "image", f"before call {point} of {len(run.steps)}")
        distinct += run.distinct
    print(
        f"{engine}: {POINTS} kill points in {runs} runs: {opened} opened ({distinct} distinct images), the others were "
        "no store yet; nothing lost"
    )
    assert opened > POINTS // 2


def judge(run: Recorded, target: Path, where: str) -> bool:
    """Whether there was a store. Asserts that it opens, with all acknowledged calls and no invented events."""
    image = run.images.killed(run.said.marks)
    if "FORMAT" not in image.files:
        return False
    found = run.opened(image, target, claims=False)
    assert not found.refusal, f"refused, {where}: {found.refusal}"
    missing = run.missing(found.events)
    assert not missing, f"acknowledged and lost, {where}: {missing}"
    return True


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_really_killed(engine: str, folder: Path) -> None:  # noqa: F811 - the fixture
    """Killed by strace before the n-th call of a kind, counted over all threads."""
    chance = random.Random(18)
    killed = 0
    for number in range(KILLS):
        run = folder / "run"
        call = ("fdatasync", "write" if engine == "rocksdb" else "pwrite64")[number % 2]
        command = worker(engine, run, number)
        inject = f"inject={call}:signal=KILL:when={chance.randrange(1, 40)}"
        strace = ["strace", "-f", "-q", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject]
        done = subprocess.run([*strace, *command], cwd=ROOT, capture_output=True, text=True, check=False)
        killed += done.returncode != 0
        log = run / "log"
        if (run / "data" / "FORMAT").exists():
            found = events(f"{engine}:{run / 'data'}")
            there = {(event.type, event.job_id) for event in found}
            said = log.read_bytes() if log.exists() else b""
            missing = Said(said).acknowledged - there
            assert not missing, f"acknowledged and lost: {missing}"
    assert killed == KILLS
