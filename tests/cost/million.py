"""The same promises at full size, with their figures:

python -m tests.cost.million          a few minutes

1. a claim after a million jobs were consumed, one by one, and one after a thousand;
2. a sweep of ten expired leases in a store of a million jobs, and in one of a thousand.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import leasehold
from leasehold.clock import ManualClock

WINDOW = 400  # claims that are timed on either side of a mark


def claims(folder: Path, marks: Sequence[int], batch: int = 1) -> list[float]:
    """The median time of a claim of one job, in microseconds, around each mark: so many were consumed before."""
    medians = []
    with leasehold.open(f"rocksdb:{folder / 'claims'}", durability="os", sweep=False) as store:
        queue = store.queue("work")
        consumed = 0
        for mark in marks:
            while consumed < mark - WINDOW:
                # In claims of a hundred, so that it takes minutes; what they leave behind is the same.
                todo = min(100, mark - WINDOW - consumed)
                queue.enqueue_many([b"x" * 100] * todo)
                consumed += len(queue.ack_many(list(queue.claim(limit=todo))).done)
            queue.enqueue_many([b"x" * 100] * 2 * WINDOW)
            times = []
            gc.collect()
            gc.disable()
            for _ in range(2 * WINDOW):
                start = time.perf_counter()
                claim = queue.claim(limit=batch)
                times.append(time.perf_counter() - start)
                assert len(claim) == batch
                queue.ack(claim[0])
                consumed += 1
            gc.enable()
            medians.append(statistics.median(times) * 1e6)
    return medians


def sweeps(folder: Path, sizes: Sequence[int], rounds: int = 15) -> list[float]:
    """The median time of a sweep of ten expired leases, in microseconds, in stores of these sizes."""
    medians = []
    for size in sizes:
        clock = ManualClock()
        with leasehold.open(f"rocksdb:{folder / f'sweeps-{size}'}", durability="os", sweep=False, clock=clock) as store:
            queue = store.queue("work")
            for at in range(0, size, 1000):
                queue.enqueue_many([b"x" * 100] * min(1000, size - at))
            times = []
            for _ in range(rounds):
                for _ in range(10):
                    assert len(queue.claim(limit=1, lease=5))
                clock.advance(6)
                start = time.perf_counter()
                swept = store.sweep()
                times.append(time.perf_counter() - start)
                assert swept.leases == 10
            medians.append(statistics.median(times) * 1e6)
    return medians


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    options.add_argument("--jobs", type=int, default=1_000_000)
    jobs = options.parse_args().jobs
    with tempfile.TemporaryDirectory(prefix="leasehold-million-") as folder:
        start = time.monotonic()
        early, late = claims(Path(folder), (1000, jobs))
        print(f"a claim of one job, RocksDB at os, median of {2 * WINDOW}:")
        print(f"  the     1,000th  {early:8.1f} µs")
        print(f"  the {jobs:9,}th  {late:8.1f} µs   {late / early:.2f} times ({time.monotonic() - start:.0f} s)")
        start = time.monotonic()
        small, large = sweeps(Path(folder), (1000, jobs))
        print("a sweep of 10 expired leases, RocksDB at os, median of 15:")
        print(f"  in a store of     1,000 jobs  {small:8.0f} µs")
        print(
            f"  in a store of {jobs:9,} jobs  {large:8.0f} µs   {large / small:.2f} times ({time.monotonic() - start:.0f} s)"
        )
    return 0 if late <= 1.5 * early and large <= 2 * small else 1


if __name__ == "__main__":
    sys.exit(main())
