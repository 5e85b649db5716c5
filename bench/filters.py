"""The three Bloom filters of the seed, each where it could still save something, with and without.

keys       before a large job with a key is sent: one that was sent before is looked for first (in the store, on by default)
ghosts     before a job that may be gone is looked at: the look must be made all the same (here only)
cleanup    of ids that others have removed: a step takes what is there, so none is met twice (here only)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import leasehold
from bench.peers.serving import Missing
from bench.peers.valkey import Valkey
from bench.rows import Row, Setting, spread
from bench.runner import Run, Section
from leasehold.model.ids import job_id_bytes

_NAME = "redis-filters"


def rows(run: Run) -> Iterator[Row]:
    from leasehold.clock import SystemClock
    from leasehold.stores.redis.filters import RotatingFilter

    try:
        server = Valkey(run.new_folder("valkey"), "os")
    except Missing as exc:
        yield Row(_NAME, "Valkey", Setting("os", 1), skipped=str(exc))
        return
    try:
        jobs, rounds = run.pick(10, 100, 300), run.pick(1, 7, 15)
        for size, repeated in ((256 * 1024, 0.5), (256 * 1024, 0.0), (128, 0.5)):
            what = f"keys: enqueue, {repeated:.0%} of them repeated"
            plain: list[float] = []
            filtered: list[float] = []
            for turn in range(rounds):
                order = [(plain, 0), (filtered, 100_000)]
                for into, capacity in order if turn % 2 else order[::-1]:
                    into.append(
                        _keyed(server._socket, f"{size}-{repeated}-{turn}-{capacity}", capacity, size, repeated, jobs)
                    )
            yield from _pair(what, size, plain, filtered)
        ghosts = RotatingFilter(SystemClock(), 100_000, 0.01, 1800)
        plain, filtered = [], []
        with leasehold.open(f"redis+unix://{server._socket}?prefix=ghosts", sweep=False) as store:
            queue = store.queue("bench")
            gone = [e.id for e in queue.enqueue_many([b"x"] * jobs)]
            queue.purge("ready")
            for job in gone:
                ghosts.add(job_id_bytes(job))
            for _ in range(rounds):
                plain.append(_timed(jobs, lambda: [queue.get(job) for job in gone]))
                # A filter may be wrong, and a live job must be seen: what it says decides nothing.
                filtered.append(_timed(jobs, lambda: [(job_id_bytes(job) in ghosts, queue.get(job)) for job in gone]))
        yield from _pair("ghosts: look at jobs that are gone", 128, plain, filtered)
    finally:
        server.close()


def _keyed(socket: Path, prefix: str, capacity: int, size: int, repeated: float, jobs: int) -> float:
    draw = random.Random(17)
    payload = draw.randbytes(size)
    with leasehold.open(f"redis+unix://{socket}?prefix=f{prefix}&bloom_capacity={capacity}", sweep=False) as store:
        queue = store.queue("bench")

        def work() -> None:
            new = 0
            for _ in range(jobs):
                if new and draw.random() < repeated:
                    number = draw.randrange(new)
                else:
                    number, new = new, new + 1
                queue.enqueue(payload, key=f"k{number}")

        return _timed(jobs, work)


def _timed(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) / count * 1e6


def _pair(what: str, size: int, plain: list[float], filtered: list[float]) -> Iterator[Row]:
    setting = Setting("os", 1, size)
    middle, low, high = spread(plain)
    yield Row(_NAME, f"{what}, without", setting, middle, "µs each", low, high)
    middle, low, high = spread(filtered)
    row = Row(_NAME, f"{what}, with the filter", setting, middle, "µs each", low, high)
    ratios = sorted(a / b for a, b in zip(filtered, plain, strict=True))
    row.ratio, row.ratio_of = ratios[len(ratios) // 2], "to without"
    yield row


SECTION = Section(_NAME, "Bloom filters in front of the store on Redis, with and without", "time, to without", rows)
