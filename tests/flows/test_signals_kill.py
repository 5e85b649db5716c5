"""kill -9 during `record_step`, a wait for a signal, and `signal`: each takes effect completely or not at all.

FLOW_KILLS sets the number of kill points for each engine (default 6; `make test-crash`: 200).
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

import pytest

import tenure
from tests.crash.power_loss import Images, record
from tests.crash.test_power_loss import folder

__all__ = ["folder"]  # a fixture

POINTS = int(os.environ.get("FLOW_KILLS", "6"))
#: The rounds of the recorded process, and the verbs of each round, in order.
ROUNDS = 15
VERBS = ("step", "wait", "signal")
ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300 + 20 * POINTS)]


def done(url: str) -> int:
    """The number of verbs that took effect, by the store's rows. Then lets the job continue."""
    with tenure.open(url, durability="os", sweep=False) as store:
        assert store.check(specification=True).clean
        queue = store.queue("work")
        (job,) = [job for state in ("ready", "scheduled", "leased") for job in queue.list(state)]
        told = [(step.kind, step.name, step.value) for step in queue.steps(job.id)]
        # A step and a signal of each round, in turn.
        assert told == [(("step", "signal")[at % 2], str(at // 2), b"%d" % (at // 2)) for at in range(len(told))]
        if job.state == "leased":
            queue.release(f"{job.id}.{job.lease_id}.{job.token:x}")
        if not len(told) % 2:  # the last verb was a signal: the job is ready, or was claimed again
            assert job.state in ("ready", "leased")
            return 3 * (len(told) // 2)
        number = str(len(told) // 2)
        assert job.state in ("leased", "scheduled")
        if job.state == "scheduled":
            assert queue.signal(job.id, number)
            assert [found.id for found in queue.list("ready")] == [job.id]
        return 3 * (len(told) // 2) + (1 if job.state == "leased" else 2)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace")
@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_whole_or_not_at_all_before_a_system_call(engine: str, folder: Path) -> None:
    """The files after a kill before the n-th system call are replayed from a recording (tests/crash)."""
    run, image, chance = folder / "run", folder / "image", random.Random(16)
    run.mkdir()
    log = run / "log"
    command = [sys.executable, "-m", "tests.flows.signalling", f"{engine}:{run / 'data'}", "disk"]
    steps = record([*command, str(log), str(ROUNDS)], run / "data", log, run / "trace", ROOT)
    opened = next(n for n, step in enumerate(steps) if step.path == str(log) and step.kind == "write")
    images = Images(steps, run / "data", log, chance)
    points = sorted(chance.sample(range(opened + 1, len(steps) + 1), min(POINTS, len(steps) - opened)))
    unsaid = 0
    for point in points:
        images.play(point)
        images.killed(()).write(image)
        said = bytes(images.said).decode().split()[1:]
        assert said == [VERBS[at % 3] for at in range(len(said))]
        found = done(f"{engine}:{image}")
        assert found in (len(said), len(said) + 1), f"{len(said)} verbs had returned, {found} are there: call {point}"
        unsaid += found > len(said)
    print(f"{engine}: killed before {len(points)} of {len(steps)} calls: {unsaid} verbs had committed unsaid")
