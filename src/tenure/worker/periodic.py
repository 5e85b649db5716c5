"""Enqueue each tick of a schedule once, however many workers run, and skip none while none runs.

Schedules are declared in code (`app.periodic`) or stored (`app.schedules.add`). For each, one small tick job waits in
the queue `tenure.periodic`, visible at the next tick. The worker that claims it enqueues the task's job, with a key
made of task and tick; then the tick job of the next tick, with its key; then acks. A crash between any two of these
repeats them, and the keys make a repetition harmless. The waiting tick job also remembers the schedule: when all
workers were gone for a day, it is a day late, and names the tick to catch up from.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tenure.api.queue import Queue, claim_from, claim_request
from tenure.api.store import Store
from tenure.contract.scheduling import TICK_HEADER, enqueue_tick
from tenure.errors import LeaseLost, TenureError
from tenure.model.lease import Delivery
from tenure.model.retry import Backoff, Policy
from tenure.model.schedule import Missed, Schedule, Ticks
from tenure.worker import log
from tenure.worker.background import BackgroundThread

if TYPE_CHECKING:
    from tenure.worker.app import App
    from tenure.worker.tasks import Task

QUEUE = "tenure.periodic"
#: The policy of the tick queue: its jobs never die, and keys are held far longer than two workers' clocks differ.
POLICY = Policy(max_attempts=1_000_000, lease=30.0, backoff=Backoff.fixed(10))
#: Milliseconds for which a tick of an unknown task is left for a worker that knows it.
UNKNOWN_MS = 3_600_000
#: Seconds between two reads of the store's schedules.
_READ_EVERY_S = 5.0
#: Prefix of the tick names of stored schedules.
_STORED_PREFIX = "schedule:"


class Tick(msgspec.Struct, frozen=True):
    """The payload of a tick job."""

    periodic: str
    tick_ms: int


_decode_tick = msgspec.json.Decoder(Tick).decode


class Due(Protocol):
    """Something whose job is enqueued at each tick."""

    @property
    def name(self) -> str:
        """Identifies what is enqueued and when: another expression, zone or argument gives another name."""

    @property
    def task_name(self) -> str: ...

    @property
    def ticks(self) -> Ticks: ...

    def enqueue(self, tick_ms: int) -> bool:
        """Enqueue its job for a tick; False if it was enqueued before."""


class Periodic:
    """A task and its schedule, as declared by `app.periodic`."""

    def __init__(self, task: Task[Any, Any, Any], cron: str, tz: str, missed: Missed, args: dict[str, Any]) -> None:
        self.task = task
        self.ticks = Ticks(cron, None, tz, missed)
        self.args = args
        #: Another expression, zone or argument is another schedule: ticks of the old one are skipped.
        self.name = f"{task.name}:{_digest(self.cron, tz, repr(sorted(args.items())), task.encoding)}"

    @property
    def task_name(self) -> str:
        return self.task.name

    @property
    def cron(self) -> str:
        return self.ticks.cron or ""

    @property
    def tz(self) -> str:
        return self.ticks.tz

    @property
    def missed(self) -> Missed:
        return self.ticks.missed

    def next(self, moment_ms: int) -> int | None:
        return self.ticks.next(moment_ms)

    def after(self, moment_ms: int) -> Iterator[int]:
        return self.ticks.after(moment_ms)

    def due(self, tick_ms: int, now_ms: int) -> tuple[list[int], int | None]:
        return self.ticks.due(tick_ms, now_ms)

    def enqueue(self, tick_ms: int) -> bool:
        """Enqueue the task's job for a tick; False if it was enqueued before."""
        payload = self.task.codec.encode_call((), self.args)
        handle = self.task.enqueue_payload(
            payload, key=self.key(tick_ms), headers={TICK_HEADER: self.ticks.local(tick_ms)}
        )
        return not handle.duplicate

    def key(self, tick_ms: int) -> str:
        return f"{self.name}:{tick_ms}"


class Scheduled:
    """A stored schedule."""

    def __init__(self, store: Store, schedule: Schedule) -> None:
        self._store, self._schedule = store, schedule
        self.name = f"{_STORED_PREFIX}{schedule.name}:{schedule.revision}"
        self.task_name = schedule.name
        self.ticks = schedule.ticks

    def enqueue(self, tick_ms: int) -> bool:
        return enqueue_tick(self._store.backend, self._schedule, tick_ms)


def enqueue_tick_job(store: Store, tenant: str, due: Due, tick_ms: int) -> None:
    """Enqueue the tick job for a tick, unless it exists."""
    payload = msgspec.json.encode(Tick(due.name, tick_ms))
    store.queue(QUEUE, tenant).enqueue(payload, at=tick_ms / 1000, key=f"{due.name}:{tick_ms}")


class Ticker:
    """A worker's part in the schedule: enqueues the tick job of each next tick, and runs those that are due."""

    def __init__(self, app: App, worker: str) -> None:
        self._app = app
        self._worker = worker
        self._seeded: dict[str, int] = {}

    def thread(self, stop: threading.Event) -> BackgroundThread:
        """Return a thread that runs the schedule until `stop` is set."""

        def step() -> bool:
            if not stop.is_set():
                try:
                    if self.prepare():
                        self.step(wait=_READ_EVERY_S, cancel=stop)
                    else:
                        self._app.clock.wait(stop, _READ_EVERY_S, _READ_EVERY_S)
                except Exception as exc:  # noqa: BLE001 - tried again: a silent end would be noticed too late
                    log.warning("schedule_failed", error=str(exc) or repr(exc))
                    self._app.clock.wait(stop, 5.0, 5.0)
            return stop.is_set()

        return BackgroundThread("ticker", step)

    def prepare(self) -> bool:
        """Enqueue the tick job of every schedule's next tick; False if there is no schedule, not even a paused one."""
        stored = self._app.store.schedules(self._app.tenant)
        if not stored and not self._app.schedule:
            return False
        queue, now = self._queue(), self._app.clock.wall_ms()
        if not self._seeded and queue.policy() != POLICY:
            queue.configure(POLICY)
        for name, due in self._active(stored).items():
            upcoming = due.ticks.next(now)
            if upcoming is not None and self._seeded.get(name) != upcoming:
                enqueue_tick_job(self._app.store, self._app.tenant, due, upcoming)
                self._seeded[name] = upcoming
        return True

    def _active(self, stored: Iterable[Schedule]) -> dict[str, Due]:
        """Return the app's schedules and the stored ones that are not paused, by name."""
        unpaused = [Scheduled(self._app.store, schedule) for schedule in stored if not schedule.paused]
        found: list[Due] = [*self._app.schedule.values(), *unpaused]
        return {due.name: due for due in found}

    def step(self, wait: float = 0.0, cancel: threading.Event | None = None) -> int:
        """Enqueue the jobs of all due ticks; return how many."""
        queue = self._queue()
        request = claim_request(16, None, wait, self._worker, None, None)
        claim = claim_from((queue,), request, cancel)
        known = self._active(self._app.store.schedules(self._app.tenant)) if claim else {}
        return sum(self._run_tick(queue, delivery, known) for delivery in claim)

    def _run_tick(self, queue: Queue, delivery: Delivery, known: Mapping[str, Due]) -> int:
        now = self._app.clock.wall_ms()
        try:
            try:
                tick = _decode_tick(delivery.payload)
            except Exception as exc:  # noqa: BLE001 - a foreign or damaged payload must not stop the others
                log.warning("tick_unreadable", id=delivery.id, error=str(exc))
                queue.fail(delivery, f"not a tick: {exc}")
                return 0
            periodic = known.get(tick.periodic)
            if periodic is None:
                # A stored schedule was paused, changed or removed. A declared one may be known to a worker of another
                # release; if none took it within an hour, it is gone from the code.
                if tick.periodic.startswith(_STORED_PREFIX) or now - tick.tick_ms > UNKNOWN_MS:
                    queue.ack(delivery)
                else:
                    queue.nack(delivery, "this worker has no such periodic task")
                return 0
            try:
                ticks, upcoming = periodic.ticks.due(tick.tick_ms, now)
                enqueued = sum([periodic.enqueue(moment) for moment in ticks])
                if upcoming is not None:
                    enqueue_tick_job(self._app.store, self._app.tenant, periodic, upcoming)
            except TenureError as exc:
                log.warning("tick_failed", task=periodic.task_name, tick_ms=tick.tick_ms, error=str(exc))
                queue.nack(delivery, str(exc))
                return 0
            queue.ack(delivery)
        except LeaseLost:
            return 0  # the worker that has it now repeats it, and the keys make that harmless
        if tick.tick_ms not in ticks:
            log.warning("ticks_skipped", task=periodic.task_name, since=_iso(tick.tick_ms))
        return enqueued

    def _queue(self) -> Queue:
        return self._app.store.queue(QUEUE, self._app.tenant)


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
