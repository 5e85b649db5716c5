"""The claims that a worker holds, each one lease, and their jobs.

    HeldJob:   waiting in the backlog ── try_begin() ──▶ running ── try_settle() ──▶ settled
                          └───────────── try_begin() ──▶ released

`try_begin` and `try_settle` each return True to one caller only. The caller that wins `try_begin` starts or releases
the job. The caller that wins `try_settle` decides the outcome: the pool whose handler ended, or the heartbeat that
found the job's time was up.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns

from tenure.api.claim import Claim
from tenure.api.queue import Queue
from tenure.model.lease import Delivery
from tenure.worker.context import CurrentJob


class HeldClaim:
    """A claim that this worker holds. Times are of the worker's steady clock."""

    __slots__ = ("claim", "deadline_ms", "heartbeat_at_ms", "jobs", "lease", "lost", "queue")

    def __init__(self, claim: Claim, sent_ms: int, lease_ms: int) -> None:
        assert claim.lease is not None
        self.claim = claim
        self.queue: Queue = claim.queue
        self.lease: bytes = claim.lease
        #: Counted from before the claim was sent: the store's own count began later, so this deadline is never too
        #: late.
        self.deadline_ms = sent_ms + lease_ms
        self.heartbeat_at_ms = sent_ms + lease_ms // 3
        self.lost = False
        #: Jobs not yet settled: the heartbeat continues after the handler, so that a slow ack keeps its lease.
        self.jobs: set[HeldJob] = set()


class HeldJob:
    """One delivery that this worker holds."""

    __slots__ = (
        "_begun", "_settled", "busy_ns", "claim", "current", "delivery", "slot", "started_ns", "task", "timeout_at_ms",
    )  # fmt: skip

    def __init__(self, delivery: Delivery, claim: HeldClaim) -> None:
        self.delivery = delivery
        self.claim = claim
        self.task = ""
        #: The handler's view of the job; set when it starts.
        self.current: CurrentJob | None = None
        self.timeout_at_ms: int | None = None
        self.started_ns = 0
        self.busy_ns: int | None = None
        #: Where it runs, so that the pool can find it again.
        self.slot: object = None
        self._begun = threading.Lock()
        self._settled = threading.Lock()

    def try_begin(self) -> bool:
        """Return True to the one caller that may start or release it."""
        return self._begun.acquire(blocking=False)

    def try_settle(self) -> bool:
        """Return True to the one caller that may decide its outcome."""
        return self._settled.acquire(blocking=False)

    @property
    def is_running(self) -> bool:
        return self._begun.locked() and not self._settled.locked()

    def stop_clock(self) -> int:
        """Return the nanoseconds since it was started; 0 if it was not."""
        self.busy_ns = perf_counter_ns() - self.started_ns if self.started_ns else 0
        return self.busy_ns


class HeldClaims:
    """All claims of a worker, shared by settler, claimer and heartbeat."""

    def __init__(self) -> None:
        self._claims: dict[bytes, HeldClaim] = {}
        self._lock = threading.Lock()

    def add(self, claim: HeldClaim) -> None:
        with self._lock:
            self._claims[claim.lease] = claim

    def remove_job(self, job: HeldJob) -> None:
        """Remove a settled job; a claim without jobs is no longer extended."""
        claim = job.claim
        with self._lock:
            claim.jobs.discard(job)
            if not claim.jobs:
                self._claims.pop(claim.lease, None)

    def remove_claim(self, claim: HeldClaim) -> None:
        with self._lock:
            self._claims.pop(claim.lease, None)

    def claims(self) -> list[HeldClaim]:
        with self._lock:
            return list(self._claims.values())

    def jobs(self) -> list[HeldJob]:
        with self._lock:
            return [job for claim in self._claims.values() for job in claim.jobs]

    def jobs_of(self, claim: HeldClaim) -> list[HeldJob]:
        with self._lock:
            return list(claim.jobs)
