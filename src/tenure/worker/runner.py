"""`Worker`: claims jobs, has a pool run them, extends their leases, settles them, and shuts down in order.

    claimer ──▶ backlog ──▶ pool ──▶ settler       the worker's own threads, besides the pool's: claimer, settler,
                   └─ heartbeat ─┘                 heartbeat, queue watch, and the ticker if there is a schedule

Shutdown, by `stop`, SIGTERM or SIGINT: no more claims; jobs that have not started are released, their attempt not
counted; handlers get the grace period to finish, and jobs of those that do not are returned as failed attempts. A
second signal does the same without grace. The watchdog ends a worker that could not claim for a while; then `run`
returns non-zero.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import msgspec

from tenure.errors import InvalidArgument
from tenure.model.durations import Duration, duration_ms
from tenure.model.names import MAX_WORKER_BYTES, short_text
from tenure.model.retry import Policy, whole_number
from tenure.process import signals_handled
from tenure.worker import log, metrics
from tenure.worker.background import BackgroundThread
from tenure.worker.claimer import Claimer
from tenure.worker.health import Health
from tenure.worker.heartbeat import Heartbeat
from tenure.worker.held_claims import HeldClaims, HeldJob
from tenure.worker.outcomes import Outcome
from tenure.worker.periodic import Ticker
from tenure.worker.pools.contract import Backlog, Pool
from tenure.worker.queue_watch import QueueWatch, check_names
from tenure.worker.settler import Settler

if TYPE_CHECKING:
    from tenure.worker.app import App

PoolName = Literal["thread", "process", "async"]
#: Exit codes of `run`: handlers were cut off, the store is out of reach, a part of the worker failed.
CLEAN, CUT_OFF, NO_STORE, BROKEN = 0, 1, 5, 70
#: Seconds for which a worker that must end at once still tries to release what it holds.
_FINAL_WAIT = 1.0


class Totals:
    """Outcomes of a worker's jobs: written by the settler, read by the command line and `health`."""

    def __init__(self) -> None:
        self.outcomes = {"done": 0, "retried": 0, "dead": 0, "released": 0, "lost": 0}
        self.last_task = ""


class Worker:
    """Runs the tasks of an app.

    `queues` are names or patterns (`host-*`, matched as queues appear); default: those of its tasks; `"*"` means any
    queue of any tenant, in turn (`Store.claim_any`). `lease` is how long a claim holds without a heartbeat (default:
    the shortest of the queues' policies). `grace` is the time for handlers to finish when the worker is stopped.
    `patience` is how long claims may fail before it gives up. `recycle` replaces a process of the pool after so many
    jobs.
    """

    def __init__(
        self,
        app: App,
        queues: Iterable[str] | Literal["*"] | None = None,
        *,
        concurrency: int = 4,
        pool: PoolName = "thread",
        lease: Duration | None = None,
        grace: Duration = 30,
        patience: Duration = 60,
        name: str | None = None,
        recycle: int | None = None,
        schedule: bool = True,
    ) -> None:
        self.app = app
        queues = app.served if queues is None else queues
        self.anywhere = queues == "*"
        self.queue_names = list(dict.fromkeys(app.queues() if queues is None else queues))
        if not self.queue_names:
            raise InvalidArgument("this app has no tasks: define some, or name queues")
        check_names(self.queue_names, app.tenant)
        self.served = tuple(self.queue_names)
        self.concurrency = whole_number("concurrency", concurrency, 1, 10_000)
        self.pool_name = pool
        self.name = short_text("name", name or f"{socket.gethostname()[:40]}-{os.getpid()}", MAX_WORKER_BYTES)
        self.grace = duration_ms("grace", grace) / 1000
        self._patience_ms = duration_ms("patience", patience, minimum_ms=1)
        self._lease_ms = None if lease is None else duration_ms("lease", lease, minimum_ms=30)
        self._recycle = None if recycle is None else whole_number("recycle", recycle, 1, 2**31)
        self._with_schedule = schedule
        for task in app.tasks.values():
            task.codec  # noqa: B018 - raise now, not at its first job, for a task whose types cannot be encoded
        self.totals = Totals()
        self.backlog: Backlog = SimpleQueue()
        self._held_claims = HeldClaims()
        self._stop = threading.Event()
        self._stop_now = threading.Event()
        self._wake = threading.Event()
        self._code = CLEAN
        self._reason = "stop was called"
        self._broken: BaseException | None = None
        self._started = False
        self._pool: Pool
        self._claimer: Claimer
        self._heartbeat: Heartbeat
        self._settler: Settler
        self._queue_watch: QueueWatch
        self._parts: dict[str, BackgroundThread] = {}

    # ── start and stop ───────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start claiming and return. `stop` ends it; `run` does both with signals in between."""
        if self._started:
            raise InvalidArgument("this worker was started before: make another")
        app, clock = self.app, self.app.clock
        if self.anywhere and not app.store.traits.any_queue:
            raise InvalidArgument(f"{app.store.url} has no claims from any queue: name the worker's queues")
        self._started = True
        log.load()
        metrics.METERS.register()
        self._apply_policies()
        self._queue_watch = QueueWatch(app, self.queue_names, self._stop, self._serve)
        handles = [app.store.queue(queue, app.tenant) for queue in self._queue_watch.initial_queues()]
        if self._lease_ms is None:
            leases = [duration_ms("lease", handle.policy().lease, minimum_ms=1) for handle in handles]
            self._lease_ms = min(leases, default=duration_ms("lease", Policy().lease))
        self._settler = Settler(self._held_claims, clock, self._count_settled)
        self._pool = self._make_pool()
        self._heartbeat = Heartbeat(
            self._held_claims, clock, self._lease_ms, end=self._pool.end, settle=self._settle, release=self._release
        )
        self._claimer = Claimer(
            handles, self._held_claims, self.backlog, clock, self._stop, lease_ms=self._lease_ms, name=self.name,
            concurrency=self.concurrency, pool=self._pool, wake_heartbeat=self._heartbeat.wake_by,
            unsettled=self._settler.pending, anywhere=app.store if self.anywhere else None,
        )  # fmt: skip
        self._settler.thread.start()
        self._heartbeat.thread.start()
        try:
            self._pool.start()
        except BaseException:
            self._settler.stop()
            self._heartbeat.stop()
            raise
        self._parts = {"claimer": self._claimer.thread, "queue watch": self._queue_watch.thread}
        if self._with_schedule:
            self._parts["ticker"] = Ticker(app, self.name).thread(self._stop)
        for part in self._parts.values():
            part.start()
        log.info(
            "worker_started", worker=self.name, url=app.store.url, queues=self.queue_names, pool=self.pool_name,
            concurrency=self.concurrency, lease=self._lease_ms / 1000, tasks=sorted(app.tasks),
        )  # fmt: skip

    def run(self) -> int:
        """Work until a signal, or `stop` from another thread; return the process's exit code."""
        with signals_handled(self._stop_by):
            if not self._started:
                self.start()
            try:
                while not self._stop.is_set():
                    self._wake.wait(0.25)
                    self._wake.clear()
                    self._check_parts()
            except BaseException as exc:  # noqa: BLE001 - from a signal handler: shut down in order, then raise
                self._broken = exc
                self._fail(BROKEN, f"interrupted by {exc!r}")
            return self.finish()

    def stop(self, *, now: bool = False) -> None:
        """Ask it to end; `now`: without grace. Returns at once."""
        if now:
            self._stop_now.set()
        self._stop.set()
        self._wake.set()

    def finish(self) -> int:
        """Shut down in order; returns once it has ended."""
        self._stop.set()
        log.info("worker_stopping", worker=self.name, reason=self._reason, running=self.running)
        for part in self._parts.values():
            part.join(5.0 if self._code == CLEAN else _FINAL_WAIT)
        self._release_unstarted()
        ended = self._wait_for_handlers()
        if not ended:
            self._cut_off()
        self._settler.stop()
        self._settler.thread.join(_FINAL_WAIT if self._stop_now.is_set() or self._code else 10.0)
        self._settler.give_up()
        self._settler.thread.join(_FINAL_WAIT)
        self._heartbeat.stop()
        self._heartbeat.thread.join(_FINAL_WAIT)
        outcomes = {name: count for name, count in self.totals.outcomes.items() if count}
        log.info("worker_stopped", worker=self.name, code=self._code, **outcomes)
        if self._broken is not None:
            raise self._broken
        return self._code

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.finish()

    @property
    def running(self) -> int:
        """The number of running handlers."""
        return sum(job.is_running for job in self._held_claims.jobs())

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def health(self) -> Health:
        """Return whether it can claim and settle: the answer to `GET /health`."""
        return Health(
            self.name, self._problem(), self.running, self.concurrency, self.queue_names, dict(self.totals.outcomes)
        )

    def _problem(self) -> str | None:
        if not self._parts:
            return "it has not started"
        if self._stop.is_set():
            return f"it is stopping: {self._reason}"
        stuck_ms = self._claimer.stuck_ms()
        if stuck_ms > min(self._patience_ms, 10_000) / 2:
            why = self._claimer.last_error or "the store does not answer"
            return f"no claim has succeeded for {stuck_ms / 1000:.0f} s: {why}"
        for thread in self._threads():
            if not thread.is_alive():
                return f"{thread.name} has ended"
            if thread.failure is not None:
                return f"{thread.name} fails: {thread.failure}"
        return None

    # ── called by the pool (contract.PoolHost) ───────────────────────────────────────────────────────────────────────

    def job_ended(self, job: HeldJob, outcome: Outcome) -> None:
        if job.try_settle():
            self._settler.put((job, outcome))

    def slot_freed(self) -> None:
        self._claimer.slot_freed()

    def watch_timeout(self, at_ms: int) -> None:
        self._heartbeat.wake_by(at_ms)

    def pool_broken(self, error: BaseException) -> None:
        if self._broken is None:
            self._broken = error
        self._fail(BROKEN, f"the pool broke: {error}")

    # ── internals ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _make_pool(self) -> Pool:
        if self.pool_name == "thread":
            from tenure.worker.pools.threads import ThreadPool

            return ThreadPool(self)
        if self.pool_name == "process":
            from tenure.worker.pools.processes import ProcessPool

            return ProcessPool(self, recycle=self._recycle)
        if self.pool_name == "async":
            from tenure.worker.pools.aio import AsyncPool

            return AsyncPool(self)
        raise InvalidArgument(f"pool={self.pool_name!r}: thread, process or async")

    def _threads(self) -> list[BackgroundThread]:
        return [self._settler.thread, self._heartbeat.thread, *self._parts.values()]

    def _serve(self, queues: list[str]) -> None:
        self._claimer.queues = [self.app.store.queue(queue, self.app.tenant) for queue in queues]

    def _apply_policies(self) -> None:
        """Set the policies of the app's queues, and the rates of its tasks on their queues."""
        store, app = self.app.store, self.app
        changed: dict[str, Policy] = {}
        rates = app.rates()
        for name in sorted({*app.policies, *rates}):
            now = store.queue(name, app.tenant).policy()
            wanted = app.policies.get(name, now)
            if name in rates:
                wanted = msgspec.structs.replace(wanted, rate=rates[name])
            if wanted != now:
                changed[name] = wanted
        if changed:
            store.apply(dict(changed.items()), app.tenant)

    def _settle(self, job: HeldJob, outcome: Outcome) -> None:
        self._settler.put((job, outcome))

    def _count_settled(self, job: HeldJob, outcome_name: str) -> None:
        self.totals.outcomes[outcome_name] += 1
        self.totals.last_task = job.task

    def _release(self, job: HeldJob) -> None:
        """Release a job for which the caller won `try_begin`, so that nobody starts it."""
        if job.try_settle():
            self._claimer.jobs_released(1)
            self._settler.put((job, Outcome("release")))

    def _release_unstarted(self) -> None:
        while True:
            try:
                job = self.backlog.get_nowait()
            except Empty:
                return
            if job is not None and job.try_begin():
                self._release(job)

    def _wait_for_handlers(self) -> bool:
        """Wait for the pool; return True once no handler runs. A second signal ends the grace."""
        until = time.monotonic() + (0.0 if self._code else self.grace)
        while not self._stop_now.is_set():
            left = until - time.monotonic()
            if self._pool.stop(min(max(left, 0.0), 0.1)):
                return True
            if left <= 0:
                return False
        return self._pool.stop(0.0)

    def _cut_off(self) -> None:
        """Fail the jobs of handlers that did not finish: their attempts count, and they are ready at once."""
        cut = 0
        for job in self._held_claims.jobs():
            if job.try_begin():
                self._release(job)
            elif job.try_settle():
                self._settler.put((job, Outcome("nack", None, "the worker was stopped before it ended", 0)))
                self._pool.end(job)
                cut += 1
        self._pool.kill()
        self._pool.stop(_FINAL_WAIT)
        if cut:
            self._code = self._code or CUT_OFF
            log.warning("handlers_cut_off", worker=self.name, count=cut)

    def _check_parts(self) -> None:
        """The watchdog: end a worker that cannot claim, or has lost one of its threads."""
        stuck_ms = self._claimer.stuck_ms()
        if stuck_ms > self._patience_ms:
            why = self._claimer.last_error or "the store does not answer"
            self._fail(NO_STORE, f"no claim has succeeded for {stuck_ms / 1000:.0f} s: {why}")
        for thread in self._threads():
            if not thread.is_alive() and not self._stop.is_set():
                self._fail(BROKEN, f"{thread.name} has ended")

    def _fail(self, code: int, reason: str) -> None:
        if not self._stop.is_set():
            self._code, self._reason = code, reason
            log.error("worker_failed", worker=self.name, code=code, reason=reason)
        self.stop()

    @property
    def reason(self) -> str:
        """Why it ended."""
        return self._reason

    def _stop_by(self, number: signal.Signals) -> None:
        """End after SIGTERM or SIGINT; a second one ends it without grace."""
        if self._stop.is_set():
            self._stop_now.set()
        self._reason = number.name
        self.stop()
