"""The keeper: one thread that extends every claim in hand, and ends what can no longer be settled.

It beats at a third of a lease, so two beats may fail before the lease does. Jobs of the claim that have not started by
its first beat are given back instead of being kept from other workers. Handlers are told when their job is lost: the
store said so, or the lease would have ended by this worker's own count, which began before the claim was sent.

In a pool of threads the keeper shares the interpreter with the handlers. One that holds it (a C extension that does not let
go of the GIL) stops the beat, and the keeper says so afterwards; in a pool of processes it cannot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tenure.clock import Clock
from tenure.errors import LeaseLost, TenureError
from tenure.worker import metrics
from tenure.worker.held_claims import Hands, Held, Work
from tenure.worker.outcomes import Outcome

#: With nothing to watch, the keeper looks again after this long.
_IDLE_MS = 3_600_000


class Keeper:
    def __init__(
        self,
        hands: Hands,
        clock: Clock,
        lease_ms: int,
        *,
        end: Callable[[Work], None],
        settle: Callable[[Work, Outcome], None],
        give_back: Callable[[Work], None],
    ) -> None:
        self._hands = hands
        self._clock = clock
        self._lease_ms = lease_ms
        self._end = end
        self._settle = settle
        self._give_back = give_back
        self._news = threading.Event()
        self._planned_ms = 0
        self._told_ms = 0
        self._stopped = False
        self.thread = threading.Thread(target=self._run, name="tenure-keeper", daemon=True)

    def watch(self, at_ms: int) -> None:
        """There is something to do at that time."""
        if at_ms < self._planned_ms:
            self._told_ms = self._clock.steady_ms()
            self._news.set()

    def stop(self) -> None:
        self._stopped = True
        self._told_ms = self._clock.steady_ms()
        self._news.set()

    def _run(self) -> None:
        while not self._stopped:
            self._news.clear()
            now = self._clock.steady_ms()
            self._planned_ms = now + _IDLE_MS
            next_ms = min((self._tend(held, now) for held in self._hands.all()), default=self._planned_ms)
            self._planned_ms = next_ms
            watched = self._hands.works()
            told = self._clock.wait(self._news, max(0, next_ms - self._clock.steady_ms()) / 1000)
            late = self._clock.steady_ms() - (self._told_ms if told else next_ms)
            if late > max(self._lease_ms // 6, 50) and not self._stopped:
                self._was_late(late, [*watched, *self._hands.works()])

    def _tend(self, held: Held, now: int) -> int:
        """Do what is due for a claim; when to look at it again."""
        if now >= held.beat_at_ms:
            self._beat(held, now)
        next_ms = held.beat_at_ms
        for work in self._hands.works_of(held):
            at = work.timeout_at_ms
            if at is None or not work.running:
                continue
            if at <= now:
                self._time_out(work)
            elif at < next_ms:
                next_ms = at
        return next_ms

    def _beat(self, held: Held, now: int) -> None:
        for work in self._hands.works_of(held):
            if work.begin():
                self._give_back(work)
        try:
            extended = held.queue.extend(held.claim, self._lease_ms / 1000)
        except LeaseLost:
            self._lost(held, "its lease has ended")
        except TenureError as exc:
            if now >= held.deadline_ms:
                self._lost(held, f"no heartbeat reached the store: {exc}")
            else:
                metrics.warn("heartbeat_failed", queue=str(held.queue.name), lease=held.lease.hex(), error=str(exc))
                held.beat_at_ms = now + max(self._lease_ms // 12, 10)
        else:
            held.deadline_ms = now + self._lease_ms
            held.beat_at_ms = now + self._lease_ms // 3
            gone = set(extended.lost)
            for work in self._hands.works_of(held) if gone else ():
                if work.delivery.id in gone:
                    self._tell(work, "it was cancelled")

    def _lost(self, held: Held, why: str) -> None:
        held.lost = True
        self._hands.drop(held)
        held.beat_at_ms = held.deadline_ms = self._clock.steady_ms() + _IDLE_MS
        for work in self._hands.works_of(held):
            self._tell(work, why)

    def _tell(self, work: Work, why: str) -> None:
        if not work.running or not work.decide():
            return  # it ended by itself: the settler hears from the store what became of it
        work.ending = "lost"
        metrics.METERS.ran(work.task, "lost", None)
        metrics.warn(
            "lease_lost", task=work.task, id=work.delivery.id, token=work.delivery.token, attempt=work.delivery.attempt,
            reason=why,
        )  # fmt: skip
        self._hands.settled(work)
        self._end(work)

    def _time_out(self, work: Work) -> None:
        if not work.decide():
            return
        work.ending = "timeout"
        work.stop_clock()
        self._settle(work, Outcome("nack", None, f"timed out after {(work.busy_ns or 0) / 1e9:.1f} s"))
        self._end(work)

    def _was_late(self, late_ms: int, watched: list[Work]) -> None:
        # Whichever of them it was may have ended by now.
        running = sorted({work.task for work in watched if work.current is not None})
        metrics.METERS.late += 1
        metrics.warn(
            "heartbeat_late", by_seconds=late_ms / 1000, lease=self._lease_ms / 1000, running=running,
            advice="a handler held the interpreter, or the machine stood still: leases may be lost. "
            "Run such tasks with --pool process, or give the worker a longer --lease.",
        )  # fmt: skip
