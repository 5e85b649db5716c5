"""Metrics of each queue over the last hour, in this process's memory.

Two sources, both read at a bounded cost however busy the store is:

    counters   the queues' own, read every TICK_S or less often, and for open pages: jobs in, out, waiting,
               leased and dead, at the end of each minute
    events     the newest of the journal, at most EVENTS a tick (further ones are skipped): how long jobs waited and
               ran, each queue's last claim, each worker's

Nothing is stored: after a restart charts start empty, and say since when.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from time import thread_time

from msgspec import Struct

from tenure import telemetry
from tenure.clock import Clock, SystemClock
from tenure.contract.backend import Backend
from tenure.contract.queue_infos import all_queues
from tenure.errors import TenureError
from tenure.model.event import Event
from tenure.model.ids import created_ms
from tenure.model.job import QueueInfo
from tenure.model.names import QueueName

TICK_S = 10.0
#: How many events are read at each tick.
EVENTS = 1_000
#: How many queues have a history: the busiest ones.
QUEUES = 2_000
MINUTES = 60
_WORKERS = 500
#: How many delayed jobs are remembered with their ready time until they are claimed.
_DELAYED = 10_000
#: A reading is used for this long, or for a multiple of the time that it took, whichever is longer.
_FRESH_MS = 1_000
_FRESH_TIMES = 20
#: The share of one core that background reading may use.
_SHARE = 0.01
#: The time over which a rate is measured.
_RATE_MS = 60_000


class Minute(Struct):
    """One minute of a queue: the counters at its end, and measurements during it."""

    minute: int
    enqueued: int = 0
    out: int = 0
    waiting: int = 0
    leased: int = 0
    dead: int = 0
    waits: int = 0
    wait_ms: int = 0
    longest_wait_ms: int = 0
    runs: int = 0
    run_ms: int = 0
    longest_run_ms: int = 0


class WorkerSeen(Struct):
    """A worker's last claim."""

    worker: str
    tenant: str
    queue: str
    at_ms: int


class QueueHistory:
    """One queue's minutes, oldest first, and its recent counters."""

    def __init__(self) -> None:
        self.minutes: deque[Minute] = deque(maxlen=MINUTES + 1)
        #: (time, enqueued, out) of the last ticks.
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=int(_RATE_MS / 1000 / TICK_S) + 1)
        self.last_claim_ms: int | None = None

    def minute(self, number: int) -> Minute:
        if not self.minutes or self.minutes[-1].minute < number:
            before = self.minutes[-1] if self.minutes else None
            made = Minute(number)
            if before is not None:
                made.enqueued, made.out = before.enqueued, before.out
                made.waiting, made.leased, made.dead = before.waiting, before.leased, before.dead
            self.minutes.append(made)
        return self.minutes[-1]

    def count(self, info: QueueInfo, now_ms: int, *, new: bool) -> None:
        """Add a reading. `new`: the queue was created while the history was running, so all its jobs are recent."""
        counts = info.counts
        if not self.minutes:
            before = Minute(now_ms // 60_000 - 1)
            if not new:
                before.enqueued, before.out = counts.enqueued, counts.done + counts.removed
            self.minutes.append(before)
        minute = self.minute(now_ms // 60_000)
        minute.enqueued, minute.out = counts.enqueued, counts.done + counts.removed
        minute.waiting, minute.leased, minute.dead = counts.waiting, counts.leased, counts.dead
        if not self._recent or now_ms - self._recent[-1][0] >= TICK_S * 900:
            self._recent.append((now_ms, minute.enqueued, minute.out))

    def rates(self, info: QueueInfo, now_ms: int) -> tuple[float | None, float | None]:
        """Return jobs in and out per second, over the last minute or less; None if too little time has passed."""
        if not self._recent:
            return None, None
        time_ms, enqueued, out = self._recent[0]
        seconds = (now_ms - time_ms) / 1000
        if seconds < 1:
            return None, None
        counts = info.counts
        return (counts.enqueued - enqueued) / seconds, (counts.done + counts.removed - out) / seconds


class History:
    """The last hour of all queues. Thread-safe. `start` begins to read; `stop` ends it."""

    def __init__(self, backend: Backend, clock: Clock | None = None) -> None:
        self._backend = backend
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._queues: dict[QueueName, QueueHistory] = {}
        self._infos: Sequence[QueueInfo] = ()
        #: When the last reading began, by the steady clock, and its CPU seconds.
        self._read_ms: int | None = None
        self._cost_s = 0.0
        self._cursor: str | None = None
        self._delayed: OrderedDict[str, int] = OrderedDict()
        self._workers: OrderedDict[str, WorkerSeen] = OrderedDict()
        #: When the history begins, by the store's time.
        self.since_ms: int | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tenure-dashboard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.tick()
            except Exception as exc:  # noqa: BLE001 - the next tick may find the store well again
                if not self._stopping.is_set():
                    telemetry.warn("dashboard_history_failed", exc)
            self._stopping.wait(max(TICK_S, self._cost_s / _SHARE))

    def tick(self) -> None:
        """Read the counters and the new events."""
        self.infos()
        try:
            events = self._new_events()
        except TenureError:
            self._cursor = None  # the journal was trimmed past it, or the store was replaced: continue at the end
            return
        with self._lock:
            for event in events:
                self._note(event)

    def moment(self) -> int:
        """Return the current time, for the parameter `after` of `infos`."""
        return self._clock.steady_ms()

    def infos(self, after: int | None = None) -> Sequence[QueueInfo]:
        """Return all queues with their counters from a recent reading; `after`: from one that began after that time."""
        with self._lock:
            now = self._clock.steady_ms()
            oldest = now - max(_FRESH_MS, self._cost_s * 1000 * _FRESH_TIMES) if after is None else after
            if self._read_ms is None or self._read_ms <= oldest:
                began = thread_time()
                self._infos, self._read_ms = all_queues(self._backend, None), now
                self._cost_s = thread_time() - began
                self._count(self._infos)
            return self._infos

    def of(self, name: QueueName) -> QueueHistory | None:
        return self._queues.get(name)

    def workers(self) -> list[WorkerSeen]:
        """Return the workers that claimed recently, the last to claim first."""
        with self._lock:
            return list(reversed(self._workers.values()))

    def _count(self, infos: Sequence[QueueInfo]) -> None:
        now_ms, first = self._backend.now_ms(), self.since_ms is None
        if first:
            self.since_ms = now_ms
        if len(infos) > QUEUES:
            infos = sorted(infos, key=lambda info: -(info.counts.waiting + info.counts.leased + info.counts.dead))
        there = {}
        for info in infos[:QUEUES]:
            name = QueueName(info.tenant, info.queue)
            there[name] = self._queues.get(name) or QueueHistory()
            there[name].count(info, now_ms, new=not first)
        self._queues = there

    def _new_events(self) -> Sequence[Event]:
        if self._cursor is None:
            self._cursor = self._backend.newest_events(1).cursor
            return ()
        page = self._backend.events(self._cursor, EVENTS, 0, None)
        if len(page.events) == EVENTS:  # far behind: skip to the newest
            newest = self._backend.newest_events(EVENTS)
            self._cursor = newest.cursor
            return newest.events
        self._cursor = page.cursor
        return page.events

    def _note(self, event: Event) -> None:
        history = self._queues.get(QueueName(event.tenant, event.queue))
        if history is None or event.job_id is None:
            return
        if event.type == "claimed":
            self._note_claim(history, event)
        elif event.lease_id is not None and event.type in ("done", "retried", "died"):
            minute, ran = history.minute(event.time_ms // 60_000), event.time_ms - created_ms(_id(event.lease_id))
            minute.runs, minute.run_ms = minute.runs + 1, minute.run_ms + max(ran, 0)
            minute.longest_run_ms = max(minute.longest_run_ms, ran)
        if event.type != "claimed" and event.at_ms is not None and event.at_ms > event.time_ms:
            self._delayed[event.job_id] = event.at_ms
            if len(self._delayed) > _DELAYED:
                self._delayed.popitem(last=False)

    def _note_claim(self, history: QueueHistory, event: Event) -> None:
        assert event.job_id is not None
        history.last_claim_ms = event.time_ms
        if event.text:
            self._workers.pop(event.text, None)
            self._workers[event.text] = WorkerSeen(event.text, event.tenant, event.queue, event.time_ms)
            if len(self._workers) > _WORKERS:
                self._workers.popitem(last=False)
        ready_ms = self._delayed.pop(event.job_id, None)
        if ready_ms is None and event.attempt == 1:
            ready_ms = created_ms(_id(event.job_id))
        if ready_ms is not None:
            minute, waited = history.minute(event.time_ms // 60_000), max(event.time_ms - ready_ms, 0)
            minute.waits, minute.wait_ms = minute.waits + 1, minute.wait_ms + waited
            minute.longest_wait_ms = max(minute.longest_wait_ms, waited)


def _id(text: str) -> bytes:
    return bytes.fromhex(text)
