"""Random graphs of jobs, whose caller is killed by SIGKILL at a random time, and continues in a new process.

python -m tests.flows.killed_graphs ENGINE FOLDER FIRST COUNT JOBS
    ENGINE is rocksdb, lmdb or redis; graphs FIRST to FIRST + COUNT - 1 have up to JOBS jobs each.
    Prints one line of JSON: graphs, jobs, edges, kills. Exits with 1 and prints the seed of the first invalid graph.

This process forks a child for each life of a caller, and never opens a store itself. A graph follows from its seed;
which earlier jobs still existed as parents is written to a file before each call. So a new process knows the graph from
the seed, the file and the journal. On Redis, the server of every tenth graph is killed instead, and restarted.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import tenure
from tenure import ManualClock, NewJob, Store
from tenure.errors import OpenError, Unavailable
from tenure.testing.conformance.world import all_events, assert_sound
from tests.backends.redis.servers import PATIENCE, Server, wait_until
from tests.flows.graphs import POLICIES, Caller, check, policy

#: The most kills of a graph; then it runs to its end.
DEATHS = 3
#: Seconds between the starts of two lives: all earlier leases have expired.
LATER = 100_000
#: Modules that a store imports when it is opened or checked.
PRELOADED = (
    "prometheus_client",
    "tenure.backends.owner.backend",
    "tenure.backends.redis.opening",
    "tenure.model.specification",
    "tenure.queueing.checking",
    "tenure.storage.engines.lmdb",
    "tenure.storage.engines.rocksdb",
)


class Node(NamedTuple):
    queue: str
    #: Numbers of parents in the same call, and in earlier calls.
    own: list[int]
    old: list[int]
    policy: str


def plan(seed: int, largest: int, queues: tuple[str, ...]) -> list[list[Node]]:
    """The calls of a graph, each a list of jobs, which are numbered over all calls."""
    roll, count = random.Random(seed), 0
    calls: list[list[Node]] = []
    left = roll.randrange(2, largest)
    while left > 0:
        size = min(left, roll.randrange(1, 30))
        call = []
        for place in range(size):
            own = roll.sample(range(place), min(place, roll.choice([0, 0, 1, 1, 2, 8])))
            old = roll.sample(range(count), min(count, roll.choice([0, 0, 1, 2])))
            call.append(Node(roll.choice(queues), [count + n for n in own], old, roll.choice(POLICIES)))
        calls.append(call)
        count += size
        left -= size
    return calls


def opened(url: str, clock: ManualClock) -> Store:
    """Open the store. A server that restarts refuses at first, and `open` raises at once: try again."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return tenure.open(url, clock=clock, sweep=False, durability="os")
        except (Unavailable, OpenError):
            if not url.startswith("redis") or time.monotonic() > until:
                raise
            time.sleep(0.05)


class Life(Caller):
    """One life of the caller: it finds out what was done, and continues."""

    def __init__(self, url: str, notes: Path, seed: int, life: int, largest: int) -> None:
        clock = ManualClock()
        clock.advance(life * LATER)
        queues = ("a",) if url.startswith("redis") else ("a", "b")
        roll = random.Random(1000 * seed + life)
        super().__init__(opened(url, clock), clock, roll, queues)
        self._notes = notes
        self.plan = plan(seed, largest, queues)
        self._queue_of = [node.queue for call in self.plan for node in call]
        self.store.events(limit=1, consumer="laws")  # which keeps the journal
        for name in queues:
            self.store.queue(name).configure(policy(random.Random(seed)))
        self.ids: list[str] = []
        self._remember()

    def _remember(self) -> None:
        """Find the calls that were made and their ids: each queue's jobs are enqueued in the order of their numbers."""
        made: dict[str, list[str]] = {name: [] for name in self.queues}
        for event in all_events(self.store):
            if event.type == "enqueued" and event.job_id is not None:
                made[event.queue].append(event.job_id)
        taken = {name: iter(ids) for name, ids in made.items()}
        notes = [json.loads(line) for line in self._notes.read_text().splitlines()] if self._notes.exists() else []
        total, self.calls = sum(map(len, made.values())), 0
        for place, call in enumerate(self.plan):
            if len(self.ids) >= total:
                break
            self.ids += [next(taken[node.queue]) for node in call]
            self.calls += 1
            # The last try of a call is the one that took effect.
            self._learn(place, [note for note in notes if note["call"] == place][-1]["old"])
        assert len(self.ids) == total, "a call took effect in part"

    def _learn(self, place: int, old: list[list[int]]) -> None:
        first = sum(map(len, self.plan[:place]))
        for number, (node, kept) in enumerate(zip(self.plan[place], old, strict=True), first):
            self.parents[self.ids[number]] = [self.ids[n] for n in (*node.own, *kept)]
            self.policies[self.ids[number]] = node.policy

    def enqueue(self, place: int) -> None:
        call = self.plan[place]
        old = [[n for n in node.old if self._may_be_parent(n, node.policy)] for node in call]
        with self._notes.open("a") as file:
            file.write(json.dumps({"call": place, "old": old}) + "\n")
        first = len(self.ids)
        jobs = [
            NewJob(
                b"%d" % number, name=str(number), queue=node.queue, on_parent_dead=node.policy,  # type: ignore[arg-type]
                after=[*(f"#{n}" for n in node.own), *(self.ids[n] for n in kept)],
            )
            for number, (node, kept) in enumerate(zip(call, old, strict=True), first)
        ]  # fmt: skip
        self.ids += [added.id for added in self.store.queue("a").enqueue_many(jobs)]
        self._learn(place, old)

    def _may_be_parent(self, number: int, policy: str) -> bool:
        job = self.store.queue(self._queue_of[number]).get(self.ids[number])
        return job is not None and not (job.state == "dead" and policy == "cancel")

    def live(self) -> tuple[int, int]:
        """Continue until all jobs have ended. Returns (jobs, edges)."""
        for place in range(self.calls, len(self.plan)):
            self.enqueue(place)
            for _ in range(self.roll.randrange(5)):
                self.step()
        for _ in range(3 * len(self.ids)):
            self.step()
        assert_sound(self.store)
        self.finish()
        check(self)
        assert_sound(self.store)
        self.store.close()
        return len(self.parents), sum(map(len, self.parents.values()))


# ── who kills ────────────────────────────────────────────────────────────────────────────────────────────────────────


def lived(
    url: str, notes: Path, seed: int, life: int, largest: int, kill_after: float | None, server: Server | None
) -> bool:
    """Run one life in a child process; False: it was killed. With `server`, that is killed instead."""
    child = os.fork()
    if not child:
        code = 1
        try:
            found = Life(url, notes, seed, life, largest).live()
            notes.with_suffix(".done").write_text(json.dumps(found))
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        if server is None:
            os.kill(child, signal.SIGKILL)
        else:
            server.kill()
            server.start()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.waitstatus_to_exitcode(status) == 0, f"seed {seed}, life {life}"
    return True


def run(engine: str, folder: Path, first: int, count: int, largest: int) -> dict[str, int]:
    for module in PRELOADED:  # before the forks, not in each of them
        importlib.import_module(module)
    told = {"graphs": 0, "jobs": 0, "edges": 0, "kills": 0}
    server = Server(fsync="always") if engine == "redis" else None
    roll, usual = random.Random(first), 0.5
    try:
        for seed in range(first, first + count):
            home = folder / str(seed)
            home.mkdir(parents=True)
            url = f"{server.url}?prefix=g{seed}" if server is not None else f"{engine}:{home / 'data'}"
            notes, life = home / "notes", 0
            deaths = roll.randrange(1, DEATHS + 1)
            while True:
                began = time.monotonic()
                after = roll.uniform(0, usual) if life < deaths else None
                told["kills"] += after is not None
                if lived(url, notes, seed, life, largest, after, server if seed % 10 == 0 else None):
                    usual = 0.9 * usual + 0.1 * (time.monotonic() - began) if after is None else usual
                    break
                life += 1
                if server is not None:
                    _quiet(server)
            jobs, edges = json.loads(notes.with_suffix(".done").read_text())
            told["graphs"] += 1
            if told["graphs"] % 50 == 0:
                print(json.dumps(told), file=sys.stderr, flush=True)
            told["jobs"] += jobs
            told["edges"] += edges
            shutil.rmtree(home)
            if server is not None:
                server.client().flushall()
    finally:
        if server is not None:
            server.stop()
    return told


def _quiet(server: Server) -> None:
    """Wait until the server has executed the requests of the dead process."""
    client = server.client()
    wait_until(lambda: len(client.client_list()) == 1, "a connection of the dead process stays")
    client.close()


if __name__ == "__main__":
    engine, folder, *numbers = sys.argv[1:]
    print(json.dumps(run(engine, Path(folder), *map(int, numbers))))
