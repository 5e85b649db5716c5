"""Shared by the tests of random graphs: a caller that makes random calls, and the invariants of flows."""

from __future__ import annotations

import random
from collections.abc import Sequence

import tenure
from tenure import Backoff, Delivery, ManualClock, Policy, Store
from tenure.testing.conformance.world import all_events

POLICIES = ("cancel", "run", "wait")


def policy(roll: random.Random) -> Policy:
    return Policy(lease=30, max_attempts=2, backoff=Backoff.fixed(1), result_retention=roll.choice([0, 600]))


class Caller:
    """Works on the queues of a graph: claims, settles, moves the clock, replays, cancels."""

    def __init__(self, store: Store, clock: ManualClock, roll: random.Random, queues: Sequence[str]) -> None:
        self.store, self.clock, self.roll, self.queues = store, clock, roll, queues
        #: By job id.
        self.parents: dict[str, list[str]] = {}
        self.policies: dict[str, str] = {}
        self.held: list[Delivery] = []

    def reopen(self) -> None:
        """Close the store and open it again, if it is persistent."""

    def step(self) -> None:
        roll = self.roll
        verb = roll.choices(
            ["claim", "ack", "ack_many", "nack", "fail", "release", "later", "replay", "cancel", "sweep", "reopen"],
            [12, 10, 4, 3, 2, 1, 2, 3, 0.3, 2, 0.3],
        )[0]
        queue = self.store.queue(roll.choice(self.queues))
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
            self.reopen()
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
        """Run everything to its end: replay dead jobs, and ack all."""
        for _ in range(20 * len(self.parents)):
            self.clock.advance(31)
            self.store.sweep()
            moved = 0
            for name in self.queues:
                queue = self.store.queue(name)
                moved += queue.replay().count
                while claim := queue.claim(limit=100):
                    moved += len(queue.ack_many(list(claim)).done)
            if not moved:
                return
        raise AssertionError("it does not end")


def check(graph: Caller) -> None:
    """Check the invariants of flows, by the journal."""
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
    for name in graph.queues:
        counts = graph.store.queue(name).counts()
        assert (counts.blocked, counts.waiting, counts.leased, counts.dead) == (0, 0, 0, 0), f"stuck: {counts}"
    gone = [job for job in graph.parents if job not in done]
    assert all(ended.get(job) == "cancelled" or ended.get(job) == "died" for job in gone)
