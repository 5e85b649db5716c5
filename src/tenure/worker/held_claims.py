"""What a worker has in hand: claims, each one lease, and the works under them.

    Work:   waiting in the backlog ── begin() ──▶ running ── decide() ──▶ settled
                       └───────────── begin() ──▶ given back

`begin` and `decide` are each won by one caller only. Who wins `begin` starts the job or gives it back; who wins `decide`
settles it: the handler that ended, or the keeper that found its time was up.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns

from tenure.api.claim import Claim
from tenure.api.queue import Queue
from tenure.model.lease import Delivery
from tenure.worker.context import CurrentJob


class Held:
    """A claim in hand. Times are of the worker's steady clock."""

    __slots__ = ("beat_at_ms", "claim", "deadline_ms", "lease", "lost", "queue", "works")

    def __init__(self, claim: Claim, sent_ms: int, lease_ms: int) -> None:
        assert claim.lease is not None
        self.claim = claim
        self.queue: Queue = claim.queue
        self.lease: bytes = claim.lease
        #: Counted from before the claim was sent: the store's own count began later, so this one never ends after it.
        self.deadline_ms = sent_ms + lease_ms
        self.beat_at_ms = sent_ms + lease_ms // 3
        self.lost = False
        #: Those not yet settled: a heartbeat outlives the handler, so that a slow ack keeps its lease.
        self.works: set[Work] = set()


class Work:
    """One delivery in hand."""

    __slots__ = (
        "_begun", "_decided", "busy_ns", "current", "delivery", "ending", "held", "slot", "started_ns", "task",
        "timeout_at_ms",
    )  # fmt: skip

    def __init__(self, delivery: Delivery, held: Held) -> None:
        self.delivery = delivery
        self.held = held
        self.task = ""
        #: What the handler sees; there once it runs.
        self.current: CurrentJob | None = None
        self.timeout_at_ms: int | None = None
        self.started_ns = 0
        self.busy_ns: int | None = None
        #: Where it runs, for the pool to find it again.
        self.slot: object = None
        #: Why the pool was told to end it.
        self.ending: str | None = None
        self._begun = threading.Lock()
        self._decided = threading.Lock()

    def begin(self) -> bool:
        return self._begun.acquire(blocking=False)

    def decide(self) -> bool:
        return self._decided.acquire(blocking=False)

    @property
    def running(self) -> bool:
        return self._begun.locked() and not self._decided.locked()

    def stop_clock(self) -> int:
        self.busy_ns = perf_counter_ns() - self.started_ns
        return self.busy_ns


class Hands:
    """All claims of a worker. The settler, the claimer and the keeper share it."""

    def __init__(self) -> None:
        self._held: dict[bytes, Held] = {}
        self._lock = threading.Lock()

    def add(self, held: Held) -> None:
        with self._lock:
            self._held[held.lease] = held

    def settled(self, work: Work) -> None:
        held = work.held
        with self._lock:
            held.works.discard(work)
            if not held.works:
                self._held.pop(held.lease, None)

    def drop(self, held: Held) -> None:
        with self._lock:
            self._held.pop(held.lease, None)

    def all(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def works(self) -> list[Work]:
        with self._lock:
            return [work for held in self._held.values() for work in held.works]

    def works_of(self, held: Held) -> list[Work]:
        with self._lock:
            return list(held.works)
