"""Tasks that do nothing, end to end: enqueued one by one, then run by one worker with four threads.

A round of a peer is between two of Tenure's, and is compared with their mean: what slows the machine slows both.
Outside of a full run peers get a fifth of the calls: their rate does not depend on it, and the slowest takes minutes.
The time is that of enqueueing, plus from the first call's run to the last one's: a worker's start does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from bench.peers.server_process import Missing
from bench.peers.tasks import PEERS, STAMPS, TaskPeer, noop
from bench.rows import Row, Setting, spread
from bench.runner import Run, Section
from tenure import App

THREADS = 4
NAME = "tasks"
SETTING = Setting("os", 1, None, THREADS, "thread")


class OurTasks:
    name = "Tenure (rocksdb)"
    note = "leases and acks; one call enqueued at a time"

    def __init__(self, folder: Path) -> None:
        self._app = App(f"rocksdb:{folder}", durability="os")
        self._task = self._app.task(name="noop")(noop)

    def enqueue(self, count: int) -> None:
        for number in range(count):
            self._task.delay(number)

    def work(self, count: int, threads: int) -> None:
        worker = self._app.worker(concurrency=threads)
        worker.start()
        while worker.totals.outcomes["done"] < count:
            time.sleep(0.002)
        worker.stop()
        worker.finish()

    def close(self) -> None:
        self._app.close()


def measure(peer: TaskPeer, count: int) -> tuple[float, float]:
    """Return (calls enqueued a second, calls run a second)."""
    STAMPS.clear()
    began = time.perf_counter()
    peer.enqueue(count)
    enqueued = time.perf_counter() - began
    peer.work(count, THREADS)
    assert len(STAMPS) == count, f"{peer.name} ran {len(STAMPS)} of {count}"
    return count / enqueued, count / max(STAMPS[-1] - STAMPS[0], 1e-9)


def rows(run: Run) -> Iterator[Row]:
    count, of_peers = run.pick((200, 0), (10_000, 2_000), (10_000, 10_000))
    ours_found: list[tuple[float, float]] = []

    def ours() -> float:
        peer = OurTasks(run.new_folder("tasks"))
        try:
            ours_found.append(measure(peer, count))
        finally:
            peer.close()
        return _combined_rate(ours_found[-1])

    last = ours()
    found: list[Row] = []
    for name, opener in PEERS.items() if run.size != "quick" else ():
        try:
            peer = opener(run.new_folder(name))
        except Missing as exc:
            found.append(Row(NAME, name, SETTING, skipped=str(exc)))
            continue
        try:
            theirs = measure(peer, of_peers)
        finally:
            peer.close()
        before, last = last, ours()
        row = Row(NAME, peer.name, SETTING, _combined_rate(theirs), "tasks/s", note=f"{_parts(theirs)}; {peer.note}")
        row.ratio, row.ratio_of = mean((before, last)) / _combined_rate(theirs), "Tenure / this"
        found.append(row.expect("> 1", row.ratio > 1))
    middle, low, high = spread([_combined_rate(one) for one in ours_found])
    best = sorted(ours_found, key=_combined_rate)[len(ours_found) // 2]
    yield Row(NAME, OurTasks.name, SETTING, middle, "tasks/s", low, high, note=f"{_parts(best)}; {OurTasks.note}")
    yield from found


def _combined_rate(rates: tuple[float, float]) -> float:
    return 1 / sum(1 / rate for rate in rates)


def _parts(rates: tuple[float, float]) -> str:
    return f"enqueue {rates[0]:,.0f}/s, run {rates[1]:,.0f}/s"


SECTION = Section(
    NAME,
    "10,000 tasks that do nothing, end to end through one worker with four threads, `os`",
    "Tenure's rounds before and after / this one",
    rows,
)
