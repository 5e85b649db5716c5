"""Random graphs of jobs under acks, nacks, failures, expiries, replays, cancels and restarts.

Every job runs after all its parents, each is done once, and none is stuck. FLOW_GRAPHS sets how many graphs a store
(6 if not said; `make test-crash` says 1,000), FLOW_JOBS how large they are at most (60; 200).
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import tenure
from tenure import Backoff, Delivery, ManualClock, NewJob, Policy, Store
from tenure.testing.conformance.world import all_events, assert_sound

GRAPHS = int(os.environ.get("FLOW_GRAPHS", "6"))
LARGEST = int(os.environ.get("FLOW_JOBS", "60"))
POLICIES = ("cancel", "run", "wait")
QUEUES = ("a", "b")

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120 + 20 * GRAPHS)]


class Graph:
    """A graph in a store, and a caller that does whatever the seed says."""

    def __init__(self, seed: int, url: str) -> None:
        self.roll = random.Random(seed)
        self.clock = ManualClock()
        self._url = url
        self.store = self._open()
        for name in QUEUES:
            self.store.queue(name).configure(
                Policy(lease=30, max_attempts=2, backoff=Backoff.fixed(1), result_retention=self.roll.choice([0, 600]))
            )
        self.parents: dict[str, list[str]] = {}
        self.policies: dict[str, str] = {}
        self.held: list[Delivery] = []
        self._enqueue(self.roll.randrange(2, LARGEST))

    def _open(self) -> Store:
        return tenure.open(
            self._url, clock=self.clock, sweep=False, durability="memory" if self._url == "memory:" else "os"
        )

    def _enqueue(self, count: int) -> None:
        """In calls of several jobs; a job waits for some of its own call, and for some of before that are still there."""
        roll, made, left = self.roll, list[str](), count
        while left > 0:
            size = min(left, roll.randrange(1, 30))
            jobs, after = [], []
            there = [job for job in made if self.store.get(job) is not None]
            for place in range(size):
                own = roll.sample(range(place), min(place, roll.choice([0, 0, 1, 1, 2, 8])))
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

    def step(self) -> None:
        roll = self.roll
        verb = roll.choices(
            ["claim", "ack", "ack_many", "nack", "fail", "release", "later", "replay", "cancel", "sweep", "reopen"],
            [12, 10, 4, 3, 2, 1, 2, 3, 0.3, 2, 0.3],
        )[0]
        queue = self.store.queue(roll.choice(QUEUES))
        mine = [d for d in self.held if d.queue == queue.name.queue]
        if verb == "claim":
            self.held += list(queue.claim(limit=roll.randrange(1, 8)))
        elif verb == "later":
            self.clock.advance(roll.choice([1, 31]))
        elif verb == "replay":
            queue.replay(limit=roll.randrange(1, 5))
        elif verb == "cancel":
            queue.cancel(roll.choice(list(self.parents)))
        elif verb == "sweep":
            self.store.sweep()
        elif verb == "reopen":
            if self._url != "memory:":  # which keeps nothing
                self.store.close()
                self.store = self._open()
        elif mine and verb == "ack_many":
            queue.ack_many(mine)
            self.held = [d for d in self.held if d not in mine]
        elif mine:
            self._settle(verb, roll.choice(mine))

    def _settle(self, verb: str, delivery: Delivery) -> None:
        queue = self.store.queue(delivery.queue)
        self.held.remove(delivery)
        try:
            if verb == "ack":
                queue.ack(delivery, result=delivery.payload if self.roll.random() < 0.5 else None)
            elif verb in ("nack", "fail"):
                getattr(queue, verb)(delivery, "broken")
            else:
                queue.release(delivery)
        except tenure.LeaseLost:
            pass

    def finish(self) -> None:
        """Let everything that can run do so: dead jobs are replayed, and all is acked."""
        for _ in range(20 * len(self.parents)):
            self.clock.advance(31)
            self.store.sweep()
            moved = 0
            for name in QUEUES:
                queue = self.store.queue(name)
                moved += queue.replay().count
                while claim := queue.claim(limit=100):
                    moved += len(queue.ack_many(list(claim)).done)
            if not moved:
                return
        raise AssertionError("it does not end")


def check(graph: Graph) -> None:
    """The laws of flows, by the journal."""
    ended: dict[str, str] = {}
    done: dict[str, int] = {}
    for event in all_events(graph.store):
        job = event.job_id
        if job not in graph.parents:
            continue
        if event.type == "claimed":
            for parent in graph.parents[job]:
                by = ended.get(parent)
                fits = by == "done" or (by is not None and graph.policies[job] == "run")
                assert fits, f"{job} ran, and its parent {parent} was {by or 'not at an end'}"
        elif event.type == "done":
            done[job] = done.get(job, 0) + 1
            ended[job] = "done"
        elif event.type == "died" or (event.state == "gone" and event.type != "retired"):
            ended.setdefault(job, event.type)
    assert set(done.values()) <= {1}
    for name in QUEUES:
        counts = graph.store.queue(name).counts()
        assert (counts.blocked, counts.waiting, counts.leased, counts.dead) == (0, 0, 0, 0), f"stuck: {counts}"
    gone = [job for job in graph.parents if job not in done]
    assert all(ended.get(job) == "cancelled" or ended.get(job) == "died" for job in gone)


@pytest.mark.parametrize("engine", ["memory", "rocksdb", "lmdb"])
def test_random_graphs(engine: str, tmp_path: Path) -> None:
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
