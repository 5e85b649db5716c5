"""Concurrency: threads that share a sync (group commit), and processes on one LMDB."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tenure
from bench.lives import live, payloads_of
from bench.ours import Ours
from bench.rows import Row, Setting, paired_ratio, spread
from bench.runner import Run

_THREADS = (1, 8, 64)


def group_commit(run: Run) -> Iterator[Row]:
    """Measure enqueues of one job by 1, 8 and 64 threads, each on its own store, in turn."""
    stores = {count: tenure.open(f"rocksdb:{run.new_folder(f't{count}')}", durability="disk") for count in _THREADS}
    rates: dict[int, list[float]] = {count: [] for count in _THREADS}
    grouped: dict[int, list[float]] = {count: [] for count in _THREADS}
    try:
        for count, store in stores.items():
            _commit(store, count, min(0.2, run.seconds))
        for _ in range(run.rounds):
            for count, store in stores.items():
                rate, a_sync = _commit(store, count, max(run.seconds, run.pick(0.05, 0.6, 1.0)))
                rates[count].append(rate)
                grouped[count].append(a_sync)
    finally:
        for store in stores.values():
            store.close()
    for count in _THREADS:
        middle, low, high = spread(rates[count])
        a_sync = spread(grouped[count])[0]
        row = Row(
            "group-commit", "enqueue", Setting("disk", 1, clients=count, kind="thread"), middle, "commits/s", low, high,
            note=f"{a_sync:.1f} commits a sync",
        )  # fmt: skip
        if count > 1:
            row.ratio, row.ratio_of = paired_ratio(rates[count], rates[1]), "to 1 thread"
        if count == 64 and row.ratio is not None:
            row.expect(">= 3 times 1 thread", row.ratio >= 3)
            row.expect(">= 15 commits a sync", a_sync >= 15)
        yield row


def _commit(store: tenure.Store, threads: int, seconds: float) -> tuple[float, float]:
    """Return commits a second, and commits a sync."""
    queue = store.queue("bench")
    syncer: Any = store._backend._engine.group_commit  # type: ignore[attr-defined]  # the only place that counts syncs
    payload = b"x" * 128
    counts = [0] * threads
    gate = threading.Barrier(threads + 1)
    until = [0.0]

    def run(index: int) -> None:
        gate.wait()
        done = 0
        while time.perf_counter() < until[0]:
            queue.enqueue(payload)
            done += 1
        counts[index] = done

    running = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for thread in running:
        thread.start()
    syncs = syncer.syncs
    until[0] = time.perf_counter() + seconds
    began = time.perf_counter()
    gate.wait()
    for thread in running:
        thread.join()
    elapsed = time.perf_counter() - began
    return sum(counts) / elapsed, sum(counts) / max(1, syncer.syncs - syncs)


# ── LMDB ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def lmdb_processes(run: Run) -> Iterator[Row]:
    """Measure lives by 1 and by 4 processes on one store."""
    counts = (1, 4)
    rates: dict[int, list[float]] = {count: [] for count in counts}
    seconds = run.pick(0.1, 1.0, 2.0)
    for _ in range(run.pick(1, 3, 5)):
        for count in counts:
            rates[count].append(_processes(run.new_folder(f"lmdb{count}"), count, seconds))
    for count in counts:
        middle, low, high = spread(rates[count])
        row = Row(
            "lmdb",
            "Tenure (lmdb)",
            Setting("disk", 100, clients=count, kind="process"),
            middle,
            "lives/s",
            low,
            high,
        )
        if count > 1:
            row.ratio, row.ratio_of = paired_ratio(rates[count], rates[1]), "to 1 process"
        yield row


def _processes(path: Path, count: int, seconds: float) -> float:
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.concurrency", str(path), str(seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(count)
    ]  # fmt: skip
    try:
        for child in children:  # all have opened the store before any begins
            assert child.stdout is not None
            child.stdout.readline()
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        results: list[dict[str, float]] = [json.loads(child.communicate()[0]) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    return sum(result["jobs"] for result in results) / max(result["elapsed"] for result in results)


def _child(path: str, seconds: float) -> None:
    ours = Ours(Path(path), "disk", "lmdb")
    client = ours.client()
    payloads = payloads_of(100, 128)
    live(client, payloads, time.perf_counter() + 0.05)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    jobs, _ = live(client, payloads, began + seconds)
    print(json.dumps({"jobs": jobs, "elapsed": time.perf_counter() - began}), flush=True)
    ours.close()


if __name__ == "__main__":
    _child(sys.argv[1], float(sys.argv[2]))
