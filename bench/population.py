"""A process with a store full of jobs that runs rounds of lives on request; separate, so that its memory can be
measured and it can be killed.

python -m bench.population PATH SPEC     a store of that population; then, a line of JSON in, a line of JSON out:
    {"do": "lives", "seconds": s}        → enqueue, claim, ack: microseconds a job
    {"do": "claims", "samples": n}       → milliseconds of each claim of one job
    {"do": "looks", "samples": n}        → a page of 100 ready jobs, and a sweep: microseconds of each, the least of n
    {"do": "memory"}                     → resident bytes
    {"do": "close"}                      → seconds the closing took
python -m bench.population PATH open     seconds from opening the store to its first claim
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import tenure
from bench.lives import live, payloads_of
from tenure import NewJob

_A_FILL = 1000  # jobs a transaction while filling


@dataclass(frozen=True)
class Population:
    """The contents of the store before the measurement, and the shape of the jobs that are added."""

    name: str
    waiting: int = 0
    delayed: int = 0
    queues: int = 1
    priorities: int = 1
    payload: int = 128
    batch: int = 100


# ── the process ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Client:
    """Runs lives in each queue in turn, over as many priorities as the population has."""

    def __init__(self, store: tenure.Store, population: Population) -> None:
        self._queues = [store.queue(f"q{index}") for index in range(population.queues)]
        self._turns = cycle(self._queues)
        self._queue = self._queues[0]
        self._priorities = population.priorities

    def fill(self, population: Population) -> None:
        for delay, wanted in ((86_400.0, population.delayed), (None, population.waiting)):
            share = wanted // population.queues
            a_fill = min(share, max(1, min(_A_FILL, (8 << 20) // population.payload)))
            for queue in self._queues:
                jobs = [
                    NewJob(payload, delay=delay, priority=index % self._priorities)
                    for index, payload in enumerate(payloads_of(a_fill, population.payload))
                ]
                for _ in range(share // a_fill if share else 0):
                    queue.enqueue_many(jobs)

    def enqueue(self, payloads: Sequence[bytes]) -> object:
        self._queue = next(self._turns)
        if len(payloads) == 1:
            return self._queue.enqueue(payloads[0])
        if self._priorities == 1:
            return self._queue.enqueue_many(payloads)
        return self._queue.enqueue_many(
            [NewJob(payload, priority=index % self._priorities) for index, payload in enumerate(payloads)]
        )

    def claim(self, limit: int) -> Sequence[Any]:
        return self._queue.claim(limit).deliveries

    def ack(self, claimed: Sequence[Any]) -> object:
        return self._queue.ack_many(claimed)

    def list_ready(self, limit: int) -> object:
        return next(self._turns).list("ready", limit)

    def close(self) -> None:
        pass


def _serve(path: str, population: Population) -> None:
    store = tenure.open(f"rocksdb:{path}", durability="os")
    client = _Client(store, population)
    began = time.perf_counter()
    client.fill(population)
    filled = time.perf_counter() - began
    _settle(store)
    _say(filled=filled)
    payloads = payloads_of(population.batch, population.payload)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "lives":
            jobs, stages = live(client, payloads, time.perf_counter() + command["seconds"])
            _say(jobs=jobs, us=[1e6 * seconds / jobs for seconds in stages[:3]])
        elif command["do"] == "claims":
            _say(ms=_claims(client, command["samples"], payloads[0]))
        elif command["do"] == "looks":
            _say(us=_looks(store, client, command["samples"]))
        elif command["do"] == "memory":
            _say(bytes=resident())
        else:
            began = time.perf_counter()
            store.close()
            _say(seconds=time.perf_counter() - began)


def _settle(store: tenure.Store) -> None:
    """Wait up to a minute until RocksDB has compacted after the filling: a life should not pay for that."""
    tables: Any = store._backend._engine.inner._tables  # type: ignore[attr-defined]  # the only place that knows
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(
        table.property_int_value("rocksdb.compaction-pending")
        or table.property_int_value("rocksdb.num-running-compactions")
        for table in tables
    ):
        time.sleep(0.1)


def _claims(client: _Client, samples: int, payload: bytes) -> list[float]:
    took = []
    for _ in range(samples):
        client.enqueue([payload])
        client.ack(client.claim(1))  # the first claim of one job splits a batch that is stored as one record
        began = time.perf_counter()
        claimed = client.claim(1)
        took.append((time.perf_counter() - began) * 1000)
        client.ack(claimed)
    return took


def _looks(store: tenure.Store, client: _Client, samples: int) -> list[float]:
    while store.sweep().more:  # process what the earlier lives left: from here on nothing is due
        pass
    listed, swept = [], []
    for _ in range(samples):
        began = time.perf_counter()
        client.list_ready(100)
        middle = time.perf_counter()
        store.sweep()
        listed.append(middle - began)
        swept.append(time.perf_counter() - middle)
    return [1e6 * min(listed), 1e6 * min(swept)]


def _open(path: str) -> None:
    began = time.perf_counter()
    with tenure.open(f"rocksdb:{path}", durability="os") as store:
        opened = time.perf_counter() - began
        got = len(store.queue("q0").claim(1))
        _say(opened=opened, claimed=time.perf_counter() - began, got=got)


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


# ── its parent ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Child:
    """Such a process, and its store's folder, which outlives it."""

    def __init__(self, path: Path, population: Population) -> None:
        self.path = path
        self.population = population
        self._process = _start(path, json.dumps(asdict(population)))
        self.filled: float | None = None

    def wait_filled(self) -> float:
        if self.filled is None:
            self.filled = float(self._answer()["filled"])
        return self.filled

    def ask(self, do: str, **how: object) -> dict[str, Any]:
        self.wait_filled()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **how}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with {self.population.name} ended early")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """Kill it without closing, as a crash would."""
        self._process.kill()
        self._process.communicate()


def open_seconds(path: Path) -> float:
    """Return the seconds from opening the store in a fresh process to its first claim."""
    process = _start(path, "open")
    line, _ = process.communicate()
    answer = json.loads(line)
    assert answer["got"] == 1, "the reopened store has nothing to claim"
    return float(answer["claimed"])


def _start(path: Path, argument: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.population", str(path), argument],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[2] == "open":
        _open(sys.argv[1])
    else:
        _serve(sys.argv[1], Population(**json.loads(sys.argv[2])))
