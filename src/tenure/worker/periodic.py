"""Each tick of a schedule enqueued once, however many workers run, and none forgotten while none runs.

What is periodic is declared in code (`app.periodic`) or stored (`app.schedules.add`). For each one small job waits in the queue `tenure.periodic`, visible at the next tick. The worker that
claims it enqueues the task's job, by a key made of task and tick; then the job of the tick after, by its key; then
acks. A crash between any two of these repeats them, and the keys make a repetition harmless. The waiting job also
remembers the schedule: when all workers were gone for a day, it is a day late, and names the tick to catch up from.
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
#: The schedule's own queue: its jobs never die, and its keys are held well beyond the skew of two workers' clocks.
POLICY = Policy(max_attempts=1_000_000, lease=30.0, backoff=Backoff.fixed(10))
#: How long a tick of a task that this worker does not know is left for one that does.
UNKNOWN_MS = 3_600_000
#: Seconds after which a worker looks again what schedules the store has.
_LOOK = 5.0
#: Names of ticks of the store's schedules begin with this.
_STORED = "schedule:"


class Tick(msgspec.Struct, frozen=True):
    """The payload of a job in the schedule's queue."""

    periodic: str
    tick_ms: int


_decode_tick = msgspec.json.Decoder(Tick).decode


class Due(Protocol):
    """Something that is due again and again, and is enqueued at each tick."""

    @property
    def name(self) -> str:
        """Stands for what is enqueued and when: another expression, zone or argument is another name."""

    @property
    def task_name(self) -> str: ...

    @property
    def ticks(self) -> Ticks: ...

    def enqueue(self, tick_ms: int) -> bool:
        """Enqueue its job for a tick; False if it was enqueued before."""


class Periodic:
    """A task and when it runs: what `app.periodic` declares."""

    def __init__(self, task: Task[Any, Any, Any], cron: str, tz: str, missed: Missed, args: dict[str, Any]) -> None:
        self.task = task
        self.ticks = Ticks(cron, None, tz, missed)
        self.args = args
        #: Another expression, zone or argument is another schedule: ticks of the old one are passed over.
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
        """The task's job for a tick; False if it was enqueued before."""
        payload = self.task.codec.encode_call((), self.args)
        handle = self.task.enqueue_payload(
            payload, key=self.key(tick_ms), headers={TICK_HEADER: self.ticks.local(tick_ms)}
        )
        return not handle.duplicate

    def key(self, tick_ms: int) -> str:
        return f"{self.name}:{tick_ms}"


class Scheduled:
    """A schedule of the store."""

    def __init__(self, store: Store, schedule: Schedule) -> None:
        self._store, self._schedule = store, schedule
        self.name = f"{_STORED}{schedule.name}:{schedule.revision}"
        self.task_name = schedule.name
        self.ticks = schedule.ticks

    def enqueue(self, tick_ms: int) -> bool:
        return enqueue_tick(self._store.backend, self._schedule, tick_ms)


def await_tick(store: Store, tenant: str, due: Due, tick_ms: int) -> None:
    """Let a small job wait for a tick, in the schedule's queue; nothing where one does already."""
    payload = msgspec.json.encode(Tick(due.name, tick_ms))
    store.queue(QUEUE, tenant).enqueue(payload, at=tick_ms / 1000, key=f"{due.name}:{tick_ms}")


class Ticker:
    """A worker's part in the schedule: lets a job wait for each next tick, and runs those that are due."""

    def __init__(self, app: App, worker: str) -> None:
        self._app = app
        self._worker = worker
        self._seeded: dict[str, int] = {}

    def thread(self, stop: threading.Event) -> BackgroundThread:
        """A thread that keeps the schedule until `stop` is set."""

        def step() -> bool:
            if not stop.is_set():
                try:
                    if self.prepare():
                        self.step(wait=_LOOK, cancel=stop)
                    else:
                        self._app.clock.wait(stop, _LOOK, _LOOK)
                except Exception as exc:  # noqa: BLE001 - tried again: a schedule that ends silently is missed too late
                    log.warning("schedule_failed", error=str(exc) or repr(exc))
                    self._app.clock.wait(stop, 5.0, 5.0)
            return stop.is_set()

        return BackgroundThread("ticker", step)

    def prepare(self) -> bool:
        """Let the next tick of everything periodic wait in the queue; False if there is nothing periodic, not even paused."""
        stored = self._app.store.schedules(self._app.tenant)
        if not stored and not self._app.schedule:
            return False
        queue, now = self._queue(), self._app.clock.wall_ms()
        if not self._seeded and queue.policy() != POLICY:
            queue.configure(POLICY)
        for name, due in self._all(stored).items():
            upcoming = due.ticks.next(now)
            if upcoming is not None and self._seeded.get(name) != upcoming:
                await_tick(self._app.store, self._app.tenant, due, upcoming)
                self._seeded[name] = upcoming
        return True

    def _all(self, stored: Iterable[Schedule]) -> dict[str, Due]:
        """What the app declares, and of what the store has what is not paused, by name."""
        kept = [Scheduled(self._app.store, schedule) for schedule in stored if not schedule.paused]
        found: list[Due] = [*self._app.schedule.values(), *kept]
        return {due.name: due for due in found}

    def step(self, wait: float = 0.0, cancel: threading.Event | None = None) -> int:
        """Enqueue the jobs of all ticks that are due; how many those were."""
        queue = self._queue()
        request = claim_request(16, None, wait, self._worker, None, None)
        claim = claim_from((queue,), request, cancel)
        known = self._all(self._app.store.schedules(self._app.tenant)) if claim else {}
        return sum(self._run_tick(queue, delivery, known) for delivery in claim)

    def _run_tick(self, queue: Queue, delivery: Delivery, known: Mapping[str, Due]) -> int:
        now = self._app.clock.wall_ms()
        try:
            try:
                tick = _decode_tick(delivery.payload)
            except Exception as exc:  # noqa: BLE001 - not one of ours, or damaged: it must not stop the others
                log.warning("tick_unreadable", id=delivery.id, error=str(exc))
                queue.fail(delivery, f"not a tick: {exc}")
                return 0
            periodic = known.get(tick.periodic)
            if periodic is None:
                # A schedule of the store was paused, changed or removed. Of another, a worker of another release may know;
                # if none came for an hour, it is gone from the code.
                if tick.periodic.startswith(_STORED) or now - tick.tick_ms > UNKNOWN_MS:
                    queue.ack(delivery)
                else:
                    queue.nack(delivery, "this worker has no such periodic task")
                return 0
            try:
                ticks, upcoming = periodic.ticks.due(tick.tick_ms, now)
                enqueued = sum([periodic.enqueue(moment) for moment in ticks])
                if upcoming is not None:
                    await_tick(self._app.store, self._app.tenant, periodic, upcoming)
            except TenureError as exc:
                log.warning("tick_failed", task=periodic.task_name, tick_ms=tick.tick_ms, error=str(exc))
                queue.nack(delivery, str(exc))
                return 0
            queue.ack(delivery)
        except LeaseLost:
            return 0  # the worker that has it now repeats it, and the keys make a repetition harmless
        if tick.tick_ms not in ticks:
            log.warning("ticks_skipped", task=periodic.task_name, since=_iso(tick.tick_ms))
        return enqueued

    def _queue(self) -> Queue:
        return self._app.store.queue(QUEUE, self._app.tenant)


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
