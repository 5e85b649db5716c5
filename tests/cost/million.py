"""The cost tests at full size, with figures:

python -m tests.cost.million          a few minutes

1. a claim after a million jobs were consumed, one by one, and one after a thousand;
2. a sweep of ten expired leases in a store of a million jobs, and in one of a thousand.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import tenure
from tenure.clock import ManualClock

CLAIMS = 800
ROUNDS = 15


def claims(folder: Path, consumed: Sequence[int]) -> list[float]:
    """The median time of a claim of one job, in microseconds, in stores where so many jobs were consumed before.

    The stores are measured in turn, so that other load on the machine slows down all of them equally.
    """
    with contextlib.ExitStack() as stack:
        queues = []
        for count in consumed:
            store = stack.enter_context(_opened(folder / f"claims-{count}"))
            queues.append(store.queue("work"))
            _consume(queues[-1], count)
        times: list[list[float]] = [[] for _ in queues]
        for queue in queues:
            queue.enqueue_many([b"x" * 100] * CLAIMS)
        gc.collect()
        gc.disable()
        try:
            for _ in range(CLAIMS):
                for queue, taken in zip(queues, times, strict=True):
                    start = time.perf_counter()
                    claim = queue.claim()
                    taken.append(time.perf_counter() - start)
                    queue.ack(claim[0])
        finally:
            gc.enable()
    return [statistics.median(taken) * 1e6 for taken in times]


def _consume(queue: tenure.Queue, count: int) -> None:
    """Consume jobs in claims of a hundred, which is faster and leaves the same tombstones."""
    while count:
        some = min(100, count)
        queue.enqueue_many([b"x" * 100] * some)
        count -= len(queue.ack_many(list(queue.claim(limit=some))).done)


def sweeps(folder: Path, sizes: Sequence[int]) -> list[float]:
    """The median time of a sweep of ten expired leases, in microseconds, in stores of these sizes, measured in turn."""
    clock = ManualClock()
    with contextlib.ExitStack() as stack:
        stores = []
        for size in sizes:
            stores.append(stack.enter_context(_opened(folder / f"sweeps-{size}", clock)))
            for at in range(0, size, 1000):
                stores[-1].queue("work").enqueue_many([b"x" * 100] * min(1000, size - at))
        times: list[list[float]] = [[] for _ in stores]
        for _ in range(ROUNDS):
            for store in stores:
                for _ in range(10):
                    assert len(store.queue("work").claim(limit=1, lease=5))
            clock.advance(6)
            for store, taken in zip(stores, times, strict=True):
                start = time.perf_counter()
                swept = store.sweep()
                taken.append(time.perf_counter() - start)
                assert swept.leases == 10
    return [statistics.median(taken) * 1e6 for taken in times]


def _opened(folder: Path, clock: ManualClock | None = None) -> tenure.Store:
    return tenure.open(f"rocksdb:{folder}", durability="os", sweep=False, clock=clock)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    options.add_argument("--jobs", type=int, default=1_000_000)
    jobs = options.parse_args().jobs
    with tempfile.TemporaryDirectory(prefix="tenure-million-") as folder:
        start = time.monotonic()
        early, late = claims(Path(folder), (1000, jobs))
        print(f"a claim of one job, RocksDB at os, median of {CLAIMS}:")
        print(f"  the     1,000th  {early:8.1f} µs")
        print(f"  the {jobs:9,}th  {late:8.1f} µs   {late / early:.2f} times ({time.monotonic() - start:.0f} s)")
        start = time.monotonic()
        small, large = sweeps(Path(folder), (1000, jobs))
        print(f"a sweep of 10 expired leases, RocksDB at os, median of {ROUNDS}:")
        print(f"  in a store of     1,000 jobs  {small:8.0f} µs")
        print(
            f"  in a store of {jobs:9,} jobs  {large:8.0f} µs   {large / small:.2f} times ({time.monotonic() - start:.0f} s)"
        )
    return 0 if late <= 1.5 * early and large <= 2 * small else 1


if __name__ == "__main__":
    sys.exit(main())
