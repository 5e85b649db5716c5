"""Cron: each tick of a schedule enqueued once, however many workers run, and none forgotten while none runs.

For every periodic task one small job waits in the queue `tenure.periodic`, visible at the next tick. The worker that
claims it enqueues the task's job, by a key made of task and tick; then the job of the tick after, by its key; then
acks. A crash between any two of these repeats them, and the keys make a repetition harmless. The waiting job also
remembers the schedule: when all workers were gone for a day, it is a day late, and names the tick to catch up from.

Ticks are instants, so a local hour that occurs twice has two, and one that does not occur has none of its own: a task
for 02:30 runs at 03:00 on the day that 02:30 is left out, and once on the day it comes twice (cronsim does it as
Debian's cron).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from tenure.api.queue import Queue, claim_from, claim_request
from tenure.errors import InvalidArgument, LeaseLost, TenureError
from tenure.model.lease import Delivery
from tenure.model.retry import Backoff, Policy
from tenure.worker import log
from tenure.worker.background import BackgroundThread
from tenure.worker.context import TICK_HEADER

if TYPE_CHECKING:
    from tenure.worker.app import App
    from tenure.worker.tasks import Task

Missed = Literal["skip", "catch_up"]

QUEUE = "tenure.periodic"
#: The schedule's own queue: its jobs never die, and its keys are held well beyond the skew of two workers' clocks.
POLICY = Policy(max_attempts=1_000_000, lease=30.0, backoff=Backoff.fixed(10))
#: A tick run within this time was not missed: a worker may have been slow, or just restarted.
TOLERANCE_MS = 60_000
#: Ticks caught up in one go; the next of them waits in the queue, already due.
BATCH = 500
#: How long a tick of a task that this worker does not know is left for one that does.
UNKNOWN_MS = 3_600_000


#: The short names that cron implementations know for common schedules.
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Tick(msgspec.Struct, frozen=True):
    """The payload of a job in the schedule's queue."""

    periodic: str
    tick_ms: int


_decode_tick = msgspec.json.Decoder(Tick).decode


class Periodic:
    """A task and when it runs."""

    def __init__(self, task: Task[Any, Any, Any], cron: str, tz: str, missed: Missed, args: dict[str, Any]) -> None:
        from cronsim import CronSim, CronSimError

        if missed not in get_args(Missed):
            raise InvalidArgument(f"missed={missed!r}: skip or catch_up")
        try:
            self.zone = ZoneInfo(tz)
        except (ZoneInfoNotFoundError, ValueError):
            raise InvalidArgument(f"there is no time zone {tz!r}: write it as in Europe/Berlin") from None
        cron = NICKNAMES.get(cron.strip().lower(), cron)
        try:
            CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError as exc:
            raise InvalidArgument(f"{cron!r} is not a cron expression: {exc}") from None
        self.task = task
        self.cron = cron
        self.tz = tz
        self.missed = missed
        self.args = args
        #: Another expression, zone or argument is another schedule: ticks of the old one are passed over.
        self.name = f"{task.name}:{_digest(cron, tz, repr(sorted(args.items())), task.encoding)}"

    def after(self, moment_ms: int) -> Iterator[int]:
        """The ticks after a moment, in milliseconds since 1970."""
        from cronsim import CronSim

        for tick in CronSim(self.cron, datetime.fromtimestamp(moment_ms / 1000, self.zone)):
            yield round(tick.timestamp() * 1000)

    def next(self, moment_ms: int) -> int | None:
        """None: the expression names a day that never comes again."""
        return next(self.after(moment_ms), None)

    def due(self, tick_ms: int, now_ms: int) -> tuple[list[int], int | None]:
        """Which ticks, from this one up to now, are to be enqueued, and the one to wait for then."""
        if self.missed == "skip":
            oldest = now_ms - TOLERANCE_MS
            first = [tick_ms] if tick_ms >= oldest else []
            rest = [] if tick_ms > now_ms else self._until(max(tick_ms, oldest - 1), now_ms)
            return first + rest, self.next(now_ms)
        ticks = [tick_ms, *self._until(tick_ms, now_ms, BATCH)]
        return ticks, self.next(ticks[-1])

    def _until(self, after_ms: int, now_ms: int, limit: int | None = None) -> list[int]:
        found: list[int] = []
        for tick in self.after(after_ms):
            if tick > now_ms or (limit is not None and len(found) >= limit):
                break
            found.append(tick)
        return found

    def enqueue(self, tick_ms: int) -> bool:
        """The task's job for a tick; False if it was enqueued before."""
        payload = self.task.codec.encode_call((), self.args)
        local = datetime.fromtimestamp(tick_ms / 1000, self.zone).isoformat()
        handle = self.task.enqueue_payload(payload, key=self.key(tick_ms), headers={TICK_HEADER: f"{local}[{self.tz}]"})
        return not handle.duplicate

    def key(self, tick_ms: int) -> str:
        return f"{self.name}:{tick_ms}"


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
                    self.prepare()
                    self.step(wait=5.0, cancel=stop)
                except Exception as exc:  # noqa: BLE001 - tried again: a schedule that ends silently is missed too late
                    log.warning("schedule_failed", error=str(exc) or repr(exc))
                    self._app.clock.wait(stop, 5.0, 5.0)
            return stop.is_set()

        return BackgroundThread("ticker", step)

    def prepare(self) -> None:
        """Let the next tick of every periodic task wait in the queue; nothing where it does already."""
        queue = self._queue()
        if not self._seeded and queue.policy() != POLICY:
            queue.configure(POLICY)
        now = self._app.clock.wall_ms()
        for periodic in self._app.schedule.values():
            upcoming = periodic.next(now)
            if upcoming is not None and self._seeded.get(periodic.name) != upcoming:
                self._await(queue, periodic, upcoming)
                self._seeded[periodic.name] = upcoming

    def step(self, wait: float = 0.0, cancel: threading.Event | None = None) -> int:
        """Enqueue the jobs of all ticks that are due; how many those were."""
        queue = self._queue()
        request = claim_request(16, None, wait, self._worker, None, None)
        claim = claim_from((queue,), request, cancel)
        return sum(self._run_tick(queue, delivery) for delivery in claim)

    def _run_tick(self, queue: Queue, delivery: Delivery) -> int:
        now = self._app.clock.wall_ms()
        try:
            try:
                tick = _decode_tick(delivery.payload)
            except Exception as exc:  # noqa: BLE001 - not one of ours, or damaged: it must not stop the others
                log.warning("tick_unreadable", id=delivery.id, error=str(exc))
                queue.fail(delivery, f"not a tick: {exc}")
                return 0
            periodic = self._app.schedule.get(tick.periodic)
            if periodic is None:
                # A worker of another release may know it; if none came for an hour, it is gone from the code.
                if now - tick.tick_ms > UNKNOWN_MS:
                    queue.ack(delivery)
                else:
                    queue.nack(delivery, "this worker has no such periodic task")
                return 0
            try:
                ticks, upcoming = periodic.due(tick.tick_ms, now)
                enqueued = sum([periodic.enqueue(moment) for moment in ticks])
                if upcoming is not None:
                    self._await(queue, periodic, upcoming)
            except TenureError as exc:
                log.warning("tick_failed", task=periodic.task.name, tick_ms=tick.tick_ms, error=str(exc))
                queue.nack(delivery, str(exc))
                return 0
            queue.ack(delivery)
        except LeaseLost:
            return 0  # the worker that has it now repeats it, and the keys make a repetition harmless
        if tick.tick_ms not in ticks:
            log.warning("ticks_skipped", task=periodic.task.name, since=_iso(tick.tick_ms))
        return enqueued

    def _await(self, queue: Queue, periodic: Periodic, tick_ms: int) -> None:
        payload = msgspec.json.encode(Tick(periodic.name, tick_ms))
        queue.enqueue(payload, at=tick_ms / 1000, key=periodic.key(tick_ms))

    def _queue(self) -> Queue:
        return self._app.store.queue(QUEUE, self._app.tenant)


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
