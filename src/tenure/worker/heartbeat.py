"""The heartbeat: one thread that extends every claim of the worker, and ends handlers whose job can no longer be
settled.

It extends at a third of a lease, so two heartbeats may fail before the lease ends. Jobs of a claim that have not
started by its first heartbeat are released, so that other workers can claim them. Handlers are notified when their job
is lost: the store said so, or the lease would have ended by this worker's own count, which began before the claim was
sent.

In a pool of threads the heartbeat shares the interpreter with the handlers. A handler that holds the GIL (a C extension
that does not release it) stops the heartbeat, which warns afterwards; in a pool of processes it cannot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tenure.clock import Clock
from tenure.errors import LeaseLost
from tenure.worker import log, metrics
from tenure.worker.background import BackgroundThread
from tenure.worker.held_claims import HeldClaim, HeldClaims, HeldJob
from tenure.worker.outcomes import Outcome

#: Milliseconds to sleep if nothing is due.
_IDLE_MS = 3_600_000


class Heartbeat:
    def __init__(
        self,
        held_claims: HeldClaims,
        clock: Clock,
        lease_ms: int,
        *,
        end: Callable[[HeldJob], None],
        settle: Callable[[HeldJob, Outcome], None],
        release: Callable[[HeldJob], None],
    ) -> None:
        self._held_claims = held_claims
        self._clock = clock
        self._lease_ms = lease_ms
        self._end = end
        self._settle = settle
        self._release = release
        self._woken = threading.Event()
        self._planned_ms = 0
        self._woken_ms = 0
        self._stopped = False
        self.thread = BackgroundThread("heartbeat", self._step)

    def wake_by(self, at_ms: int) -> None:
        """Wake the thread at that time at the latest."""
        if at_ms < self._planned_ms:
            self._woken_ms = self._clock.steady_ms()
            self._woken.set()

    def stop(self) -> None:
        self._stopped = True
        self._woken_ms = self._clock.steady_ms()
        self._woken.set()

    def _step(self) -> bool:
        self._woken.clear()
        now = self._clock.steady_ms()
        self._planned_ms = now + _IDLE_MS
        next_ms = min((self._service(claim, now) for claim in self._held_claims.claims()), default=self._planned_ms)
        self._planned_ms = next_ms
        before = self._held_claims.jobs()
        self.thread.failure = None  # the next statement waits, perhaps for an hour
        woken = self._clock.wait(self._woken, max(0, next_ms - self._clock.steady_ms()) / 1000)
        late = self._clock.steady_ms() - (self._woken_ms if woken else next_ms)
        if late > max(self._lease_ms // 6, 50) and not self._stopped:
            # The job that caused the delay may have ended by now.
            self._warn_late(late, [*before, *self._held_claims.jobs()])
        return self._stopped

    def _service(self, claim: HeldClaim, now: int) -> int:
        """Do what is due for a claim; return when to check it again.

        Catches every exception, so that all claims get their turn.
        """
        try:
            if now >= claim.heartbeat_at_ms:
                self._extend(claim, now)
            return self._end_overdue(claim, now)
        except Exception as exc:  # noqa: BLE001 - see the docstring
            log.error("heartbeat_failed", queue=str(claim.queue.name), error=repr(exc), exc_info=exc)
            return now + max(self._lease_ms // 12, 10)

    def _end_overdue(self, claim: HeldClaim, now: int) -> int:
        """End the handlers whose timeout has passed; return when the next timeout or heartbeat is due."""
        next_ms = claim.heartbeat_at_ms
        for job in self._held_claims.jobs_of(claim):
            at = job.timeout_at_ms
            if at is None or not job.is_running:
                continue
            if at <= now:
                self._time_out(job)
            elif at < next_ms:
                next_ms = at
        return next_ms

    def _extend(self, claim: HeldClaim, now: int) -> None:
        for job in self._held_claims.jobs_of(claim):
            if job.try_begin():
                self._release(job)
        try:
            extended = claim.queue.extend(claim.claim, self._lease_ms / 1000)
        except LeaseLost:
            self._lost(claim, "its lease has ended")
        except Exception as exc:  # noqa: BLE001 - the lease is still valid for a while: try again
            if now >= claim.deadline_ms:
                self._lost(claim, f"no heartbeat reached the store: {exc}")
            else:
                log.warning("heartbeat_failed", queue=str(claim.queue.name), lease=claim.lease.hex(), error=str(exc))
                claim.heartbeat_at_ms = now + max(self._lease_ms // 12, 10)
        else:
            claim.deadline_ms = now + self._lease_ms
            claim.heartbeat_at_ms = now + self._lease_ms // 3
            gone = set(extended.lost)
            for job in self._held_claims.jobs_of(claim) if gone else ():
                if job.delivery.id in gone:
                    self._end_lost(job, "it was cancelled")

    def _lost(self, claim: HeldClaim, why: str) -> None:
        claim.lost = True
        self._held_claims.remove_claim(claim)
        claim.heartbeat_at_ms = claim.deadline_ms = self._clock.steady_ms() + _IDLE_MS
        for job in self._held_claims.jobs_of(claim):
            self._end_lost(job, why)

    def _end_lost(self, job: HeldJob, why: str) -> None:
        if not job.is_running or not job.try_settle():
            return  # it ended by itself: the settler learns the outcome from the store
        metrics.METERS.record(job.task, "lost", None)
        log.warning(
            "lease_lost", task=job.task, id=job.delivery.id, token=job.delivery.token, attempt=job.delivery.attempt,
            reason=why,
        )  # fmt: skip
        self._held_claims.remove_job(job)
        self._end(job)

    def _time_out(self, job: HeldJob) -> None:
        if not job.try_settle():
            return
        job.stop_clock()
        self._settle(job, Outcome("nack", None, f"timed out after {(job.busy_ns or 0) / 1e9:.1f} s"))
        self._end(job)

    def _warn_late(self, late_ms: int, jobs: list[HeldJob]) -> None:
        running = sorted({job.task for job in jobs if job.current is not None})
        metrics.METERS.late += 1
        log.warning(
            "heartbeat_late", by_seconds=late_ms / 1000, lease=self._lease_ms / 1000, running=running,
            advice="a handler held the interpreter, or the machine stood still: leases may be lost. "
            "Run such tasks with --pool process, or give the worker a longer --lease.",
        )  # fmt: skip
