"""A process that is killed before any of its data system calls leaves a store that opens, with all that was acknowledged.

A working process is recorded under strace once; what it would have left, had it been killed before call number n, is the
files with the first n calls played back: every byte that it wrote, since the system goes on. A few processes are really
killed there, by strace's fault injection. KILL_POINTS sets how many points an engine has (16; `make test-crash` says
2,000).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.power_loss import Images, Step, record
from tests.crash.test_power_loss import ROOT, acknowledged, events, folder, marks  # noqa: F401 - a fixture

POINTS = int(os.environ.get("KILL_POINTS", "16"))
#: Points of one recorded run, at most; and how many processes are really killed.
A_RUN = 500
KILLS = 2 if POINTS < 100 else 20
CALLS = 60 if POINTS < 100 else 250

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace"),
    pytest.mark.timeout(300 + 2 * POINTS),
]


def worker(engine: str, run: Path, seed: int) -> list[str]:
    """The command of a process that works in `run`, and says what was acknowledged."""
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    command = [sys.executable, "-m", "tests.crash.power_worker", f"{engine}:{run / 'data'}", "disk", str(run / "log")]
    return [*command, str(seed), "2", str(CALLS), "driver"]


def recorded(engine: str, run: Path, seed: int) -> list[Step]:
    return record(worker(engine, run, seed), run / "data", run / "log", run / "trace", ROOT)


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_killed_before_a_system_call(engine: str, folder: Path) -> None:  # noqa: F811 - the fixture
    seed = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(2**32))
    print(f"CRASH_SEED={seed}")
    chance, left, opened, runs = random.Random(seed), POINTS, 0, 0
    while left > 0:
        run = folder / "run"
        steps = recorded(engine, run, chance.randrange(2**31))
        runs += 1
        history = events(f"{engine}:{run / 'data'}")
        made = next(n for n, step in enumerate(steps) if step.path.endswith("/FORMAT.new"))
        points = chance.sample(range(made, len(steps) + 1), min(left, A_RUN, len(steps) + 1 - made))
        left -= len(points)
        images = Images(steps, run / "data", run / "log", chance)
        for point in sorted(points):
            images.play(point)
            opened += judge(engine, images, folder / "image", history, f"before call {point} of {len(steps)}")
    print(f"{engine}: {POINTS} kill points in {runs} runs: {opened} opened, the others were no store yet; nothing lost")
    assert opened > POINTS // 2


def judge(engine: str, images: Images, target: Path, history: list[tuple[object, ...]], where: str) -> bool:
    """Whether there was a store. It opens, and has all that was acknowledged, and nothing that did not happen."""
    said = bytes(images.said)
    images.write_killed(target, marks(said))
    if not (target / "FORMAT").exists():
        return False
    found = events(f"{engine}:{target}")
    assert found == history[: len(found)], f"not a prefix, {where}"
    there = {(kind, job_id) for _, _, kind, job_id, _ in found}
    missing = acknowledged(said) - there
    assert not missing, f"acknowledged and lost, {where}: {missing}"
    return True


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_really_killed(engine: str, folder: Path) -> None:  # noqa: F811 - the fixture
    """By strace, before the n-th call of a kind; the calls of all threads are counted."""
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
            there = {(kind, job_id) for _, _, kind, job_id, _ in found}
            said = log.read_bytes() if log.exists() else b""
            missing = acknowledged(said[: said.rfind(b"\n") + 1]) - there
            assert not missing, f"acknowledged and lost: {missing}"
    assert killed == KILLS
