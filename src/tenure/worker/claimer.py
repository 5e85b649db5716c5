"""The claimer: one thread that claims as many jobs as there is room for, and no more than can be started soon.

Room is the free slots and, if handlers are fast, as many further jobs as the slots will start within `_AHEAD` seconds
(at most a tenth of the lease): otherwise slots would be idle during a claim. Slower handlers get no job ahead of time,
so that other workers can claim it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tenure.api.queue import Queue, claim_from
from tenure.api.store import Store, claim_anywhere
from tenure.clock import Clock
from tenure.model.lease import ClaimRequest, any_queues
from tenure.worker import log
from tenure.worker.background import BackgroundThread
from tenure.worker.held_claims import HeldClaim, HeldClaims, HeldJob
from tenure.worker.periodic import QUEUE as SCHEDULE
from tenure.worker.pools.contract import Backlog, Pool

#: How much work may be claimed ahead: seconds, and jobs.
_AHEAD = 0.1
_MOST_AHEAD = 500
#: Payload bytes of one claim.
_MAX_BYTES = 64 * 1024 * 1024
#: A worker of all queues leaves the schedule's tick jobs to the tickers.
_NOT_SCHEDULES = any_queues(None, None, None, (SCHEDULE,))
#: The longest wait of a claim in the store; also how long an idle worker may take to notice its watchdog.
_WAIT_MS = 5_000
#: How many outcomes may wait to be written before claiming stops.
_UNSETTLED = 2_000


class Claimer:
    def __init__(
        self,
        queues: Sequence[Queue],
        held_claims: HeldClaims,
        backlog: Backlog,
        clock: Clock,
        stop: threading.Event,
        *,
        lease_ms: int,
        name: str,
        concurrency: int,
        pool: Pool,
        wake_heartbeat: Callable[[int], None],
        unsettled: Callable[[], int],
        anywhere: Store | None = None,
    ) -> None:
        """`anywhere`: claim from any queue of this store, in turn, instead of `queues`."""
        #: The queues to claim from. The queue watch replaces the list when a queue appears that matches a pattern.
        self.queues = list(queues)
        self._held_claims = held_claims
        self._backlog = backlog
        self._clock = clock
        self._stop = stop
        self._lease_ms = lease_ms
        self._name = name
        self._concurrency = concurrency
        self._pool = pool
        self._wake_heartbeat = wake_heartbeat
        self._unsettled = unsettled
        self._anywhere = anywhere
        # The lease counts from before the claim is sent, so time spent waiting reduces it.
        self._wait_ms = max(1, min(_WAIT_MS, lease_ms // 6))
        self._claimed_jobs = 0
        self._returned = 0
        self._ahead = 0
        self._measured = (0, 0)
        self._turn = 0
        self._room = threading.Event()
        self._waiting_for_room = False
        self._sent_ms: int | None = None
        self._failing_ms: int | None = None
        #: The last error, while claims fail.
        self.last_error: str | None = None
        self.thread = BackgroundThread("claimer", self._step)

    # ── called by other threads ───────────────────────────────────────────────────────────────────────────────────────

    def slot_freed(self) -> None:
        """Count a free slot. Called for every job, so it does almost nothing."""
        if self._waiting_for_room:
            self._room.set()

    def jobs_released(self, count: int) -> None:
        self._returned += count  # called by the heartbeat, or at the end by the worker: never by both at once
        # reset until jobs end again, or this worker would at once claim the jobs that it has just released
        self._ahead = 0
        self.slot_freed()

    def stuck_ms(self) -> int:
        """Return for how long no claim has returned, or none without an error; 0 while claims succeed."""
        now = self._clock.steady_ms()
        sent, failing = self._sent_ms, self._failing_ms
        silent = 0 if sent is None else max(0, now - sent - self._wait_ms)
        return max(silent, 0 if failing is None else now - failing)

    # ── the claimer's thread ─────────────────────────────────────────────────────────────────────────────────────────

    def _step(self) -> bool:
        if self._stop.is_set():
            return True
        if not self.queues and self._anywhere is None:
            self._stop.wait(0.2)  # there are only patterns, and no queue matches yet
            return False
        room = self._find_room()
        if room:
            sent_ms = self._sent_ms = self._clock.steady_ms()
            try:
                self._claim(room, sent_ms)
            except Exception as exc:  # noqa: BLE001 - tried again; the watchdog ends a worker that never succeeds
                self._record_failure(exc, sent_ms)
            finally:
                self._sent_ms = None
        return False

    def _in_hand(self) -> int:
        return self._claimed_jobs - self._returned - self._pool.finished[0]

    def _find_room(self) -> int:
        """Return how many jobs to claim; 0, after a short wait, if there is no room yet."""
        self._plan()
        room = self._concurrency + self._ahead - self._in_hand()
        if room > self._ahead // 2 and self._unsettled() < _UNSETTLED:
            return room
        self._room.clear()
        self._waiting_for_room = True
        # Check again after clearing the flag: a slot freed before that set no event.
        if self._concurrency + self._ahead - self._in_hand() <= self._ahead // 2 or self._unsettled() >= _UNSETTLED:
            self._room.wait(0.05)
        self._waiting_for_room = False
        return 0

    def _plan(self) -> None:
        """Set how many jobs to claim ahead, by the duration of the last ones."""
        count, busy = self._pool.finished
        jobs, took = count - self._measured[0], busy - self._measured[1]
        if jobs < self._concurrency:
            return
        self._measured = (count, busy)
        each = max(took / jobs / 1e9, 1e-6)
        horizon = min(_AHEAD, self._lease_ms / 10_000)
        wanted = int(self._concurrency * horizon / each) if each < horizon else 0
        # Grow by doubling: a few fast jobs say little about the next thousand.
        self._ahead = min(wanted, _MOST_AHEAD, max(2 * self._ahead, self._concurrency))

    def _claim(self, room: int, sent_ms: int) -> None:
        request = ClaimRequest(room, self._lease_ms, self._wait_ms, self._name, _MAX_BYTES)
        if self._anywhere is not None:
            claim = claim_anywhere(self._anywhere, request, _NOT_SCHEDULES, self._stop)
        else:
            every = self.queues
            first, self._turn = self._turn % len(every), self._turn + 1
            queues = every[first:] + every[:first]
            claim = claim_from(queues, request, self._stop)
        self._failing_ms = self.last_error = None
        if not claim:
            return
        held = HeldClaim(claim, sent_ms, self._lease_ms)
        jobs = [HeldJob(delivery, held) for delivery in claim]
        held.jobs.update(jobs)
        # From here on the heartbeat releases jobs that do not start, whatever happens in this thread.
        self._held_claims.add(held)
        self._claimed_jobs += len(jobs)
        for job in jobs:
            self._backlog.put(job)
        self._wake_heartbeat(held.heartbeat_at_ms)

    def _record_failure(self, error: Exception, sent_ms: int) -> None:
        if self._failing_ms is None:
            self._failing_ms = sent_ms
        text = str(error) or repr(error)
        if text != self.last_error:
            self.last_error = text
            log.warning("claim_failed", worker=self._name, error=text)
        self._stop.wait(0.5)
