"""The claimer: one thread that takes as many jobs as there is room for, and no more than can be started in good time.

Room is the free slots, and, where handlers are quick, as many jobs more as the slots will start within a moment (`_AHEAD`,
at most a tenth of the lease): by the time the claims take, slots would stand idle otherwise. Handlers that take longer
than that get no job ahead of time, so that it is free for another worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tenure.api.queue import Queue, claim_from
from tenure.clock import Clock
from tenure.errors import TenureError
from tenure.model.lease import ClaimRequest
from tenure.worker import metrics
from tenure.worker.held_claims import Hands, Held, Work
from tenure.worker.pools.contract import Backlog, Pool

#: Seconds of work that may be claimed ahead of time, and jobs.
_AHEAD = 0.1
_MOST_AHEAD = 500
#: Payload bytes of one claim.
_MAX_BYTES = 64 * 1024 * 1024
#: The longest a claim waits in the store; also how long a quiet worker may take to notice its watchdog.
_WAIT_MS = 5_000
#: Outcomes that may wait to be written before no more is claimed.
_UNSETTLED = 2_000


class Claimer:
    def __init__(
        self,
        queues: Sequence[Queue],
        hands: Hands,
        backlog: Backlog,
        clock: Clock,
        stop: threading.Event,
        *,
        lease_ms: int,
        name: str,
        concurrency: int,
        pool: Pool,
        watch: Callable[[int], None],
        unsettled: Callable[[], int],
    ) -> None:
        self._queues = list(queues)
        self._hands = hands
        self._backlog = backlog
        self._clock = clock
        self._stop = stop
        self._lease_ms = lease_ms
        self._name = name
        self._concurrency = concurrency
        self._pool = pool
        self._watch = watch
        self._unsettled = unsettled
        # The lease counts from before the claim is sent, so waiting there is time taken from it.
        self._wait_ms = max(1, min(_WAIT_MS, lease_ms // 6))
        self._taken = 0
        self._returned = 0
        self._ahead = 0
        self._seen = (0, 0)
        self._turn = 0
        self._room = threading.Event()
        self._hungry = False
        self._asked_ms: int | None = None
        self._failing_ms: int | None = None
        #: The last error, while claims fail.
        self.trouble: str | None = None

    # ── told by others ───────────────────────────────────────────────────────────────────────────────────────────────

    def freed(self) -> None:
        """A slot is free: called for every job, so it does next to nothing."""
        if self._hungry:
            self._room.set()

    def given_back(self, count: int) -> None:
        self._returned += count  # by the keeper, or at the end by the runner: never by both at once
        self._ahead = 0  # until jobs end again: or this worker would take at once what it has just left to others
        self.freed()

    def stuck_ms(self) -> int:
        """For how long no claim has come back, or none without an error; 0 while all is well."""
        now = self._clock.steady_ms()
        asked, failing = self._asked_ms, self._failing_ms
        silent = 0 if asked is None else max(0, now - asked - self._wait_ms)
        return max(silent, 0 if failing is None else now - failing)

    # ── its thread ───────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        while not self._stop.is_set():
            room = self._find_room()
            if room:
                self._claim(room)

    def _in_hand(self) -> int:
        return self._taken - self._returned - self._pool.finished[0]

    def _find_room(self) -> int:
        """How many jobs to ask for; 0 after a wait, to look again."""
        self._plan()
        room = self._concurrency + self._ahead - self._in_hand()
        if room > self._ahead // 2 and self._unsettled() < _UNSETTLED:
            return room
        self._room.clear()
        self._hungry = True
        # Looked at again after `hungry` was set: a slot freed before that told nobody.
        if self._concurrency + self._ahead - self._in_hand() <= self._ahead // 2 or self._unsettled() >= _UNSETTLED:
            self._room.wait(0.05)
        self._hungry = False
        return 0

    def _plan(self) -> None:
        """How many jobs to have ahead, by how long the last ones took."""
        count, busy = self._pool.finished
        jobs, took = count - self._seen[0], busy - self._seen[1]
        if jobs < self._concurrency:
            return
        self._seen = (count, busy)
        each = max(took / jobs / 1e9, 1e-6)
        within = min(_AHEAD, self._lease_ms / 10_000)
        wanted = int(self._concurrency * within / each) if each < within else 0
        # Grown by doubling: a few quick jobs say little about the next thousand.
        self._ahead = min(wanted, _MOST_AHEAD, max(2 * self._ahead, self._concurrency))

    def _claim(self, room: int) -> None:
        first, self._turn = self._turn % len(self._queues), self._turn + 1
        queues = self._queues[first:] + self._queues[:first]
        request = ClaimRequest(room, self._lease_ms, self._wait_ms, self._name, _MAX_BYTES)
        sent = self._asked_ms = self._clock.steady_ms()
        try:
            claim = claim_from(queues, request, self._stop)
        except TenureError as exc:
            self._failed(exc, sent)
            return
        finally:
            self._asked_ms = None
        self._failing_ms = self.trouble = None
        if not claim:
            return
        held = Held(claim, sent, self._lease_ms)
        works = [Work(delivery, held) for delivery in claim]
        held.works.update(works)
        self._hands.add(held)
        self._taken += len(works)
        for work in works:
            self._backlog.put(work)
        self._watch(held.beat_at_ms)

    def _failed(self, error: TenureError, sent_ms: int) -> None:
        if self._failing_ms is None:
            self._failing_ms = sent_ms
        if str(error) != self.trouble:
            self.trouble = str(error)
            metrics.warn("claim_failed", worker=self._name, error=str(error))
        self._stop.wait(0.5)
