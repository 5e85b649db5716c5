"""Random verbs on a few queues: a claim from any queue finds a job wherever a claim by name would.

After every few verbs, `check` is clean. If `claim_any` finds nothing, no claim by name does; and a queue without limits
that is not paused has no ready job then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import tenure
from tenure import Backoff, GroupPolicy, NewJob, Policy
from tenure.clock import ManualClock
from tenure.errors import LeaseLost, QueueNotEmpty
from tenure.model.lease import Delivery

NAMES = [("q0", "a"), ("q1", "a"), ("q0", "b")]
#: The place of a queue is in memory where one process writes; elsewhere it is read.
STORES = [("memory", 0), ("lmdb", 1), ("lmdb", 2), ("rocksdb", 3), ("rocksdb", 4), ("memory", 5)]


class Story:
    """One store, and the verbs that a seed chooses."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.random, self.clock = url, random.Random(seed), ManualClock()
        self.store = self.opened()
        self.held: list[tuple[tenure.Queue, Delivery]] = []
        self.paused: set[tuple[str, str]] = set()

    def opened(self) -> tenure.Store:
        return tenure.open(self.url, sweep=False, clock=self.clock)

    def queue(self) -> tenure.Queue:
        return self.store.queue(*self.random.choice(NAMES))

    def job(self, **options: float) -> NewJob:
        choice = self.random.choice
        return NewJob(b"x", group=choice([None, "g", "h"]), priority=choice([0, 0, 0, 5]), **options)  # type: ignore[arg-type]  # as the verb chose

    # ── verbs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self) -> None:
        self.queue().enqueue_many([self.job() for _ in range(self.random.choice([1, 1, 2, 10]))])

    def enqueue_later(self) -> None:
        self.queue().enqueue_many([self.job(delay=self.random.choice([1, 30, 100]))])

    def enqueue_mortal(self) -> None:
        self.queue().enqueue_many([self.job(ttl=self.random.choice([1, 20]))])

    def claim(self) -> None:
        self.hold(self.queue().claim(limit=self.random.choice([1, 5]), lease=self.random.choice([10, 600])))

    def claim_any(self) -> None:
        choice = self.random.choice
        self.hold(self.store.claim_any(limit=choice([1, 3, 20]), lease=choice([10, 600]), max_bytes=choice([None, 2])))

    def hold(self, claim: tenure.Claim) -> None:
        self.held += [(claim.queue, delivery) for delivery in claim]

    def settle(self) -> None:
        if self.held:
            queue, delivery = self.held.pop(self.random.randrange(len(self.held)))
            verb = self.random.choice(["ack", "nack", "release", "fail", "cancel"])
            known = self.store.queue(queue.name.queue, queue.name.tenant)
            with suppress(LeaseLost):
                getattr(known, verb)(delivery.id if verb == "cancel" else delivery.receipt)

    def pause(self) -> None:
        name = self.random.choice(NAMES)
        self.store.queue(*name).pause()
        self.paused.add(name)

    def resume(self) -> None:
        name = self.random.choice(NAMES)
        self.store.queue(*name).resume()
        self.paused.discard(name)

    def configure(self) -> None:
        choice = self.random.choice
        groups = [None, GroupPolicy(max_leased=1), GroupPolicy(rate="1/m"), GroupPolicy(max_leased=2, weight=3)]
        self.queue().configure(
            Policy(
                max_leased=choice([None, None, 1, 2]),
                rate=choice([None, None, "1/m", "2/s"]),
                backoff=Backoff.fixed(choice([0, 0, 5])),
                max_attempts=choice([2, 5]),
                group=choice(groups),
            )
        )

    def delete(self) -> None:
        name = self.random.choice(NAMES)
        with suppress(QueueNotEmpty):
            if self.store.delete_queue(name[0], tenant=name[1], force=self.random.random() < 0.5):
                self.paused.discard(name)

    def purge(self) -> None:
        self.queue().purge(self.random.choice(["dead", "ready", "scheduled"]))

    def wait(self) -> None:
        self.clock.advance(self.random.choice([0.1, 1, 5, 30, 60, 700]))

    def sweep(self) -> None:
        self.store.sweep()

    def open_anew(self) -> None:
        if self.url != "memory:":
            self.store.close()
            self.store = self.opened()

    # ── what holds ───────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        report = self.store.check()
        assert report.clean, report.findings
        found = self.store.claim_any(lease=600)
        if found:
            self.hold(found)
            return
        for name in NAMES:
            queue = self.store.queue(*name)
            assert not queue.claim(lease=600), f"claim_any did not find a job of {name}"
            policy = queue.policy()
            limited = policy.max_leased or policy.rate or policy.group
            assert name in self.paused or limited or not queue.counts().ready, f"a job of {name} is ready, not claimed"


@pytest.mark.parametrize(("engine", "seed"), STORES)
def test_claims_from_any_queue_find_what_claims_by_name_find(tmp_path: Path, engine: str, seed: int) -> None:
    story = Story("memory:" if engine == "memory" else f"{engine}:{tmp_path / 'data'}", seed)
    often = [story.enqueue] * 4 + [story.claim_any] * 3 + [story.settle] * 6 + [story.wait] * 3 + [story.configure] * 2
    seldom = [story.enqueue_later, story.enqueue_mortal, story.claim, story.pause, story.resume, story.delete]
    verbs: list[Callable[[], None]] = [*often, *seldom, story.purge, story.sweep, story.open_anew, story.enqueue_later]
    done: list[str] = []
    for number in range(150):
        verb = story.random.choice(verbs)
        done.append(verb.__name__)
        verb()
        if not number % 3:
            try:
                story.check()
            except AssertionError as failed:
                failed.add_note(f"after {', '.join(done[-12:])}")
                raise
    story.store.close()
