"""Latency: from an enqueue to the return of a waiting claim, and of one commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import tenure
from bench.rows import Row, Setting, percentile
from bench.runner import Run

_WAKE_MS = 5.0


def rows(run: Run) -> Iterator[Row]:
    for durability in ("os", "disk"):
        with tenure.open(f"rocksdb:{run.new_folder('latency')}", durability=durability) as store:
            yield from _wake_up(store, run.pick(20, 500, 2000))
            yield from _commits(store, run.pick(20, 1000, 5000))


def _wake_up(store: tenure.Store, samples: int) -> Iterator[Row]:
    """One thread waits in a claim; another enqueues shortly after.

    Measured from before the enqueue to the claim's return.
    """
    queue = store.queue("wake")
    returned: SimpleQueue[float] = SimpleQueue()
    waiting = threading.Event()

    def consume() -> None:
        for _ in range(samples):
            waiting.set()
            claim = queue.claim(wait=10)
            returned.put(time.perf_counter())
            queue.ack(claim[0])

    consumer = threading.Thread(target=consume)
    consumer.start()
    took = []
    for _ in range(samples):
        waiting.wait()
        waiting.clear()
        time.sleep(0.002)  # until then the claim has found nothing, and waits
        began = time.perf_counter()
        queue.enqueue(b"x" * 128)
        took.append((returned.get() - began) * 1000)
    consumer.join()
    yield from _percentiles(
        f"enqueue to a waiting claim's return ({samples:,} times)", store.durability, took, _WAKE_MS
    )


def _commits(store: tenure.Store, samples: int) -> Iterator[Row]:
    queue = store.queue("commits")
    took = []
    for _ in range(samples):
        began = time.perf_counter()
        queue.enqueue(b"x" * 128)
        took.append((time.perf_counter() - began) * 1000)
    yield from _percentiles(f"one commit (enqueue of one job, {samples:,} times)", store.durability, took, None)


def _percentiles(what: str, durability: str, took: list[float], limit_ms: float | None) -> Iterator[Row]:
    setting = Setting(durability, 1, clients=1, kind="thread")
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        row = Row("latency", f"{what}, {name}", setting, percentile(took, part), "ms", min(took), max(took))
        if limit_ms is not None and name == "p99":
            row.ratio, row.ratio_of = percentile(took, part) / limit_ms, "to the target"
            row.expect(f"< {limit_ms:g} ms", percentile(took, part) < limit_ms)
        yield row
