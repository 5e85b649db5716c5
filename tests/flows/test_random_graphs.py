"""Random graphs of jobs under acks, nacks, failures, expiries, replays, cancels and restarts.

Every job runs after all its parents, each is done once, and none is stuck. `test_killed_graphs.py` also kills the
process. FLOW_GRAPHS sets the number of graphs for each store (default 6; `make test-crash`: 1,000), FLOW_JOBS their
largest size (60; 200).
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import tenure
from tenure import ManualClock, NewJob, Store
from tenure.testing.conformance.world import assert_sound
from tests.flows.graphs import POLICIES, Caller, check, policy

GRAPHS = int(os.environ.get("FLOW_GRAPHS", "6"))
LARGEST = int(os.environ.get("FLOW_JOBS", "60"))
QUEUES = ("a", "b")

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120 + 20 * GRAPHS)]


class Graph(Caller):
    """A graph in a store, and a caller that makes seeded calls."""

    def __init__(self, seed: int, url: str) -> None:
        self._url, clock = url, ManualClock()
        super().__init__(self._open(clock), clock, random.Random(seed), QUEUES)
        for name in QUEUES:
            self.store.queue(name).configure(policy(self.roll))
        self._enqueue(self.roll.randrange(2, LARGEST))

    def _open(self, clock: ManualClock) -> Store:
        return tenure.open(self._url, clock=clock, sweep=False, durability="memory" if self._url == "memory:" else "os")

    def reopen(self) -> None:
        if self._url != "memory:":  # which is not persistent
            self.store.close()
            self.store = self._open(self.clock)

    def _enqueue(self, count: int) -> None:
        """Enqueue in calls of several jobs, whose parents are in the same call, or earlier jobs that still exist."""
        roll, made, left = self.roll, list[str](), count
        while left > 0:
            size = min(left, roll.randrange(1, 30))
            jobs, after = [], []
            there = [job for job in made if self.store.get(job) is not None]
            for place in range(size):
                own = roll.sample(range(place), min(place, roll.choice([0, 0, 1, 1, 2, 8, 20])))
                old = roll.sample(there, min(len(there), roll.choice([0, 0, 1, 2])))
                after.append((own, old))
                names = [f"#{parent}" for parent in own]
                jobs.append(NewJob(
                    b"%d" % place, name=str(place), after=[*names, *old], queue=roll.choice(QUEUES),
                    on_parent_dead=roll.choice(["run", "wait"] if old else POLICIES),  # type: ignore[arg-type]
                ))  # fmt: skip
            added = [e.id for e in self.store.queue("a").enqueue_many(jobs)]
            for job, new, (own, old) in zip(added, jobs, after, strict=True):
                self.parents[job] = [*(added[parent] for parent in own), *old]
                self.policies[job] = new.on_parent_dead
            made += added
            left -= size
            for _ in range(roll.randrange(5)):
                self.step()


@pytest.mark.parametrize("engine", ["memory", "lmdb"])
def test_random_graphs(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Make blocks of two parents instead of a hundred, so that each graph has many blocks.
    monkeypatch.setattr("tenure.queueing.edges.BLOCK", 5)
    monkeypatch.setattr("tenure.queueing.edges._LEAST", 2)
    jobs = edges = 0
    for seed in range(GRAPHS):
        url = "memory:" if engine == "memory" else f"{engine}:{tmp_path / str(seed)}"
        graph = Graph(seed, url)
        for _ in range(4 * len(graph.parents)):
            graph.step()
        assert_sound(graph.store)
        graph.finish()
        check(graph)
        assert_sound(graph.store)
        graph.store.close()
        jobs += len(graph.parents)
        edges += sum(map(len, graph.parents.values()))
    print(
        f"{engine}: {GRAPHS} graphs, {jobs:,} jobs, {edges:,} edges: each ran after its parents, none twice, none stuck"
    )
