"""Power cuts while threads work: every image of the disk opens to a prefix of the history, whole, or is refused.

POWER_IMAGES sets how many images there are in all (48 if not said; `make test-crash` says 2,000). Each case records a working
process once for every 60 of its images.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.clock import SystemClock
from tenure.errors import Corrupt
from tests.crash.power_loss import Images, Step, record

ROOT = Path(__file__).parents[2]
IMAGES = int(os.environ.get("POWER_IMAGES", "48"))
A_RUN = 60
CALLS = 300 if IMAGES > 100 else 150
#: A folder for images that are judged wrong.
KEEP = Path(os.environ["POWER_KEEP"]) if "POWER_KEEP" in os.environ else None

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace"),
    pytest.mark.timeout(120 + 4 * IMAGES),
]


class NextBoot(SystemClock):
    """The machine was started again, a day later: what was only written may be gone, and every lease has ended."""

    def boot_id(self) -> str:
        return "after the power cut"

    def wall_ms(self) -> int:
        return super().wall_ms() + 86_400_000


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where the system has room for files there: a sync is then free."""
    shared = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="tenure-power-", dir=shared if os.access(shared, os.W_OK) else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def events(url: str, again: set[tuple[str, int]] | None = None, **options: Any) -> list[tuple[Any, ...]]:
    """All that ever happened in the store, after a check of all it holds; `again` gets what is claimed then."""
    if url.startswith("rocksdb:"):
        options["listen"] = False
    with tenure.open(url, sweep=False, clock=NextBoot(), **options) as store:
        report = store.check(specification=True)
        assert report.clean, report.findings[:5]
        found: list[tuple[Any, ...]] = []
        cursor = None
        while True:
            page = store.events(after=cursor, limit=10_000)
            if not page.events:
                if again is not None:
                    again |= given_again(store)
                return found
            found += [(e.commit, e.index, e.type, e.job_id, e.token) for e in page.events]
            cursor = page.cursor


def acknowledged(said: bytes) -> set[tuple[str, str]]:
    """(event, job) of every enqueue and ack that had returned."""
    verbs: dict[str, tuple[str, Any]] = {}
    found = set()
    for line in said.split(b"\n")[:-1]:
        words = json.loads(line)
        if words[0] == "B":
            verbs[words[1]] = (words[2], words[3])
        elif words[0] == "E":
            verb, arguments = verbs[words[1]]
            outcome = words[2]
            if verb in ("enqueue", "enqueue_many"):
                found |= {("enqueued", job_id) for job_id, duplicate in outcome if not duplicate}
            elif verb == "ack" and outcome is None:
                found.add(("done", arguments["jobs"][0][0]))
            elif verb == "ack_many" and "done" in outcome:
                found |= {("done", job_id) for job_id in outcome["done"]}
        elif words[0] == "died":
            raise AssertionError(words)
    return found


def given(said: bytes) -> set[tuple[str, int]]:
    """(job, token) of every delivery that a claim had returned."""
    claims: set[str] = set()
    found: set[tuple[str, int]] = set()
    for line in said.split(b"\n")[:-1]:
        words = json.loads(line)
        if words[0] == "B" and words[2] == "claim":
            claims.add(words[1])
        elif words[0] == "E" and words[1] in claims and words[2] is not None:
            found |= {(job_id, token) for job_id, token, _ in words[2][1]}
    return found


def given_again(store: tenure.Store) -> set[tuple[str, int]]:
    """(job, token) of all that the store gives to whoever claims."""
    found: set[tuple[str, int]] = set()
    for info in store.queues():
        queue = store.queue(info.queue, tenant=info.tenant)
        while claim := queue.claim(limit=1_000):
            found |= {(delivery.id, delivery.token) for delivery in claim}
    return found


def marks(said: bytes) -> list[bytes]:
    lines = [line for line in said.split(b"\n")[:-1][-40:] if line.startswith(b'["mark"')]
    return [bytes.fromhex(json.loads(line)[1]) for line in lines]


class Outcomes:
    def __init__(self) -> None:
        self.opened = self.refused = self.cut = self.aside = self.lost_claims = 0
        self.wrong: list[str] = []


def judge(images: Images, target: Path, history: list[tuple[Any, ...]], durability: str, told: Outcomes) -> None:
    said = bytes(images.said)
    lost = images.write(target, marks(said))
    if not (target / "FORMAT").exists():
        return  # it was not a store yet
    told.cut += bool(lost)
    if KEEP is not None:
        shutil.rmtree(KEEP / "last", ignore_errors=True)
        shutil.copytree(target, KEEP / "last")
    try:
        again: set[tuple[str, int]] = set()
        found = events(f"rocksdb:{target}", again)
    except Corrupt as refusal:
        told.refused += 1
        print(f"refused: {refusal} (lost: {lost})")
        if KEEP is not None:
            (KEEP / "last").rename(KEEP / f"refused-{random.random()}")
        return
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} (lost: {lost})") from error
    told.aside += (target / "lost").exists()
    told.opened += 1
    assert found == history[: len(found)], f"not a prefix (lost: {lost})"
    if durability == "disk":
        there = {(kind, job_id) for _, _, kind, job_id, _ in found}
        missing = acknowledged(said) - there
        assert not missing, f"acknowledged and lost: {missing} (lost: {lost})"
    told.lost_claims += len(given(said) - {(job_id, token) for _, _, kind, job_id, token in found if kind == "claimed"})
    twice = given(said) & again
    assert not twice, f"tokens given twice: {twice} (lost: {lost})"


def recorded(folder: Path, durability: str, threads: int, logs: str, seed: int) -> list[Step]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    worker = [sys.executable, "-m", "tests.crash.power_worker", f"rocksdb:{folder / 'data'}", durability]
    command = [*worker, str(folder / "log"), str(seed), str(threads), str(CALLS), logs]
    return record(command, folder / "data", folder / "log", folder / "trace", ROOT)


def moments(steps: list[Step], run: Path, count: int, chance: random.Random) -> list[int]:
    """When the power goes: half of them, if possible, where two logs have bytes that are not durable."""
    images = Images(steps, run / "data", run / "log", chance)
    begun = next(n for n, step in enumerate(steps) if step.path.endswith("/FORMAT.new"))
    two = []
    for moment in range(begun, len(steps) + 1):
        images.play(moment)
        if len([path for path in images.unsynced() if path.endswith(".log")]) > 1:
            two.append(moment)
    often = [chance.choice(two) for _ in range(count // 2 if two else 0)]
    return sorted(often + [chance.randrange(begun, len(steps) + 1) for _ in range(count - len(often))])


@pytest.mark.parametrize("logs", ["driver", "own"])
@pytest.mark.parametrize("threads", [1, 4, 16])
@pytest.mark.parametrize("durability", ["os", "disk"])
def test_power_cut(folder: Path, durability: str, threads: int, logs: str) -> None:
    seed = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(2**32))
    print(f"CRASH_SEED={seed}")
    chance = random.Random(seed)
    told = Outcomes()
    left = max(1, IMAGES // 12)
    while left > 0:
        count = min(left, A_RUN)
        left -= count
        run = folder / "run"
        steps = recorded(run, durability, threads, logs, chance.randrange(2**31))
        history = events(f"rocksdb:{run / 'data'}")
        images = Images(steps, run / "data", run / "log", chance)
        for moment in moments(steps, run, count, chance):
            images.play(moment)
            target = folder / "image"
            try:
                judge(images, target, history, durability, told)
            except AssertionError as error:
                told.wrong.append(f"at {moment} of {len(steps)}: {error}"[:500])
                if KEEP is not None:
                    (KEEP / "last").rename(KEEP / f"{durability}-{threads}-{logs}-{moment}-{chance.random()}")
    print(
        f"{durability}, {threads} threads, logs by {logs}: {told.opened} opened ({told.aside} with logs set aside), "
        f"{told.refused} refused, {len(told.wrong)} wrong; {told.cut} had lost bytes; {told.lost_claims} claims lost, no token given twice"
    )
    assert not told.wrong, "\n".join(told.wrong[:10])
