"""Opens the images of a recorded run: each opens to a prefix of the history, or is refused.

    cut_the_power ──▶ several runs, on all cores ──▶ one_run: records a process, and checks hundreds of its images

Of equal images one is opened. The opened store must contain all calls that were acknowledged at each image's time.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import tenure
from tenure.clock import SystemClock
from tenure.errors import Corrupt
from tenure.model.event import Event
from tests.crash.power_loss import Image, Images, record
from tests.crash.said import Said

ROOT = Path(__file__).parents[2]
#: The most images of one recorded run; and the number of calls of its process.
A_RUN = 600
CALLS = 150
#: From this many images on, runs are distributed over all cores.
MANY = 200
#: The number of events that are read at once.
PAGE = 10_000
#: A folder for failing images.
KEEP = Path(os.environ["POWER_KEEP"]) if "POWER_KEEP" in os.environ else None


class NextBoot(SystemClock):
    """The clock after a restart of the machine a day later: unsynced data may be lost, and every lease has ended."""

    def boot_id(self) -> str:
        return "after the power cut"

    def wall_ms(self) -> int:
        return super().wall_ms() + 86_400_000


def events(url: str, again: set[tuple[str, int]] | None = None, specification: bool = True) -> list[Event]:
    """Check the store and return all its events; `again` gets the deliveries that a claim returns then.

    Without `specification`, the journal is not replayed: for an image whose events the caller compares with a replayed
    history. A prefix of a legal history is legal, since the specification takes one event after the other.
    """
    options: dict[str, Any] = {"listen": False} if url.startswith("rocksdb:") else {}
    with tenure.open(url, sweep=False, clock=NextBoot(), **options) as store:
        report = store.check(specification=specification)
        assert report.clean, report.findings[:5]
        found: list[Event] = []
        cursor = None
        while True:
            page = store.events(after=cursor, limit=PAGE)
            found += page.events
            if len(page.events) < PAGE:
                if again is not None:
                    again |= given_again(store)
                return found
            cursor = page.cursor


def given_again(store: tenure.Store) -> set[tuple[str, int]]:
    """(job, token) of all jobs that can be claimed."""
    found: set[tuple[str, int]] = set()
    for info in store.queues():
        queue = store.queue(info.queue, tenant=info.tenant)
        while claim := queue.claim(limit=1_000):
            found |= {(delivery.id, delivery.token) for delivery in claim}
    return found


class Opened(NamedTuple):
    """The result of opening an image: the number of events of the history, or a refusal."""

    events: int
    #: (job, token) of all deliveries that were claimed then.
    again: frozenset[tuple[str, int]]
    refusal: str
    set_aside: bool


class Recorded:
    """One recorded run of a working process, and the result of opening each image, by its digest."""

    def __init__(self, run: Path, engine: str, durability: str, threads: int, logs: str, chance: random.Random) -> None:
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        self.engine = engine
        self.durability = durability
        worker = [sys.executable, "-m", "tests.crash.power_worker", f"{engine}:{run / 'data'}", durability]
        command = [*worker, str(run / "log"), str(chance.randrange(2**31)), str(threads), str(CALLS), logs]
        self.steps = record(command, run / "data", run / "log", run / "trace", ROOT)
        #: The step from which on the folder is a store.
        self.made = next(n for n, step in enumerate(self.steps) if step.path.endswith("/FORMAT.new"))
        self.history = events(f"{engine}:{run / 'data'}")
        self._places = {(event.type, event.job_id): place for place, event in reversed(list(enumerate(self.history)))}
        self.images = Images(self.steps, run / "data", run / "log", chance)
        self.said = Said()
        self._heard = 0
        self._opened: dict[bytes, Opened] = {}

    def play(self, until: int) -> None:
        self.images.play(until)
        self.said.feed(bytes(self.images.said[self._heard :]))
        self._heard = len(self.images.said)

    def opened(self, image: Image, target: Path, claims: bool = True) -> Opened:
        """Open the image, or return the result of an equal one."""
        found = self._opened.get(image.digest)
        if found is None:
            image.write(target)
            again: set[tuple[str, int]] = set()
            try:
                there = events(f"{self.engine}:{target}", again if claims else None, specification=False)
            except Corrupt as refusal:
                found = Opened(0, frozenset(), str(refusal), False)
            except Exception as error:
                raise AssertionError(f"{type(error).__name__}: {error} (lost: {image.lost})") from error
            else:
                assert there == self.history[: len(there)], f"not a prefix (lost: {image.lost})"
                found = Opened(len(there), frozenset(again), "", (target / "lost").exists())
            self._opened[image.digest] = found
        return found

    @property
    def distinct(self) -> int:
        return len(self._opened)

    def missing(self, events: int) -> set[tuple[str, str]]:
        """Calls that are acknowledged by now and are not among the first `events` events."""
        nowhere = len(self.history)
        return {known for known in self.said.acknowledged if self._places.get(known, nowhere) >= events}


class Outcomes:
    """The results of the images of some runs."""

    def __init__(self) -> None:
        self.images = self.distinct = self.opened = self.refused = self.cut = self.aside = self.lost_claims = 0
        self.cpu_seconds = 0.0
        self.wrong: list[str] = []

    def add(self, other: Outcomes) -> None:
        for name, found in vars(other).items():
            setattr(self, name, getattr(self, name) + found)


def judge(run: Recorded, target: Path, outcomes: Outcomes) -> None:
    image = run.images.cut(run.said.marks)
    if "FORMAT" not in image.files:
        return  # it was not a store yet
    outcomes.images += 1
    outcomes.cut += bool(image.lost)
    found = run.opened(image, target)
    if found.refusal:
        outcomes.refused += 1
        print(f"refused: {found.refusal} (lost: {image.lost})")
        keep(image, "refused")
        return
    outcomes.aside += found.set_aside
    outcomes.opened += 1
    given = run.said.given
    if run.durability == "disk":
        missing = run.missing(found.events)
        assert not missing, f"acknowledged and lost: {missing} (lost: {image.lost})"
    claimed = {(event.job_id, event.token) for event in run.history[: found.events] if event.type == "claimed"}
    outcomes.lost_claims += len(given - claimed)
    twice = given & found.again
    assert not twice, f"tokens given twice: {twice} (lost: {image.lost})"


def keep(image: Image, name: str) -> None:
    """Copy the image to the folder POWER_KEEP, if it is set."""
    if KEEP is not None:
        image.write(KEEP / f"{name}-{image.digest.hex()[:12]}")


def moments(run: Recorded, count: int, chance: random.Random) -> list[int]:
    """Points of power loss: half of them, if possible, where two logs have bytes that are not durable."""
    steps = run.steps
    images = Images(steps, run.images.folder, run.images.log, chance)
    two = []
    for moment in range(run.made, len(steps) + 1):
        images.play(moment)
        if len([path for path in images.unsynced() if path.endswith(".log")]) > 1:
            two.append(moment)
    often = [chance.choice(two) for _ in range(count // 2 if two else 0)]
    return sorted(often + [chance.randrange(run.made, len(steps) + 1) for _ in range(count - len(often))])


class Kind(NamedTuple):
    """The kind of process that is recorded."""

    engine: str
    durability: str
    threads: int
    logs: str


def one_run(folder: Path, kind: Kind, seed: int, images: int) -> Outcomes:
    """Open `images` images of one recorded process."""
    chance, outcomes, cpu = random.Random(seed), Outcomes(), time.process_time()
    here = folder / str(seed)
    here.mkdir()
    run = Recorded(here / "run", *kind, chance)
    for moment in moments(run, images, chance):
        run.play(moment)
        try:
            judge(run, here / "image", outcomes)
        except AssertionError as error:
            outcomes.wrong.append(f"seed {seed}, at {moment} of {len(run.steps)}: {error}"[:500])
    outcomes.distinct = run.distinct
    outcomes.cpu_seconds = time.process_time() - cpu
    shutil.rmtree(here)
    return outcomes


def cut_the_power(folder: Path, kind: Kind, images: int) -> Outcomes:
    """Open `images` images of one kind of process, in several runs."""
    seed = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(2**32))
    print(f"CRASH_SEED={seed}")
    cores = os.cpu_count() or 1
    runs = 1 if images < MANY else -(-images // (A_RUN * cores)) * cores
    shares = [(images + number) // runs for number in range(runs)]
    seeds = random.Random(seed).sample(range(2**32), runs)
    total, began = Outcomes(), time.monotonic()
    if runs == 1:
        total.add(one_run(folder, kind, *seeds, *shares))
    else:
        with ProcessPoolExecutor(cores, get_context("forkserver")) as pool:
            for outcomes in pool.map(partial(one_run, folder, kind), seeds, shares):
                total.add(outcomes)
    print(
        f"{kind.engine}, {kind.durability}, {kind.threads} threads, logs by {kind.logs}: {total.images} images "
        f"({total.distinct} distinct), {total.opened} opened ({total.aside} with logs set aside), "
        f"{total.refused} refused, {len(total.wrong)} wrong; {total.cut} had lost bytes; {total.lost_claims} claims lost, "
        f"no token given twice; {time.monotonic() - began:.0f} s, {total.cpu_seconds:.1f} s of a core"
    )
    return total
