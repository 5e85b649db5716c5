"""`Worker`: claims jobs, has a pool run them, keeps their leases, settles them, and ends in good order.

    claimer ──▶ backlog ──▶ pool ──▶ settler         four threads of the worker's own besides the pool's:
                   └── keeper ──┘      ticker        claimer, settler, keeper, and the ticker if there is a schedule

How it ends. `stop`, SIGTERM or SIGINT: no more claims; what has not started is given back, its delivery not counted;
handlers have the grace to finish, and those that do not are given back as failed deliveries. A second signal: the same with
no grace. The watchdog ends a worker that has not been able to claim for a while, and `run` then returns non-zero.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Literal

from tenure.errors import InvalidArgument
from tenure.model.durations import Duration, duration_ms
from tenure.model.names import MAX_WORKER_BYTES, queue_name, short_text
from tenure.model.retry import whole_number
from tenure.worker import metrics
from tenure.worker.claimer import Claimer
from tenure.worker.heartbeat import Keeper
from tenure.worker.held_claims import Hands, Work
from tenure.worker.outcomes import Outcome
from tenure.worker.periodic import Ticker
from tenure.worker.pools.contract import Backlog, Pool
from tenure.worker.settler import Settler

if TYPE_CHECKING:
    from tenure.worker.app import App

PoolName = Literal["thread", "process", "async"]
#: Exit codes of `run`: handlers were cut off, the store is out of reach, a part of the worker broke.
CLEAN, CUT_OFF, NO_STORE, BROKEN = 0, 1, 5, 70
#: How long a worker that has to end at once still tries to give back what it has.
_LAST_WORDS = 1.0


class Totals:
    """A worker in numbers: written by the settler, read by whoever shows them."""

    def __init__(self) -> None:
        self.outcomes = {"done": 0, "retried": 0, "dead": 0, "released": 0, "lost": 0}
        self.last = ""


class Worker:
    """Runs the tasks of an app.

    `queues` are those of its tasks if not named. `lease` is how long a claim holds without a heartbeat (the shortest of the
    queues' policies, if not said). `grace` is what handlers get to finish when the worker is stopped. `patience` is how long it
    may be unable to claim before it gives up. `recycle` renews a process of the pool after so many jobs.
    """

    def __init__(
        self,
        app: App,
        queues: Iterable[str] | None = None,
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
        self.queue_names = list(dict.fromkeys(app.queues() if queues is None else queues))
        if not self.queue_names:
            raise InvalidArgument("this app has no tasks: define some, or name queues")
        for queue in self.queue_names:
            queue_name(queue, app.tenant)
        self.concurrency = whole_number("concurrency", concurrency, 1, 10_000)
        self.pool_name = pool
        self.name = short_text("name", name or f"{socket.gethostname()[:40]}-{os.getpid()}", MAX_WORKER_BYTES)
        self.grace = duration_ms("grace", grace) / 1000
        self._patience_ms = duration_ms("patience", patience, minimum_ms=1)
        self._lease_ms = None if lease is None else duration_ms("lease", lease, minimum_ms=30)
        self._recycle = None if recycle is None else whole_number("recycle", recycle, 1, 2**31)
        self._with_schedule = schedule and bool(app.schedule)
        for task in app.tasks.values():
            task.codec  # noqa: B018 - a task whose types cannot be read is told of now, not at its first job
        self.totals = Totals()
        self.backlog: Backlog = SimpleQueue()
        self._hands = Hands()
        self._stop = threading.Event()
        self._now = threading.Event()
        self._wake = threading.Event()
        self._code = CLEAN
        self._reason = "asked to"
        self._broken: BaseException | None = None
        self._started = False
        self._pool: Pool
        self._claimer: Claimer
        self._keeper: Keeper
        self._settler: Settler

    # ── its life ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start claiming and return. `stop` ends it; `run` is both with signals in between."""
        if self._started:
            raise InvalidArgument("this worker was started before: make another")
        self._started = True
        app, clock = self.app, self.app.clock
        metrics.METERS.register()
        self._apply_policies()
        handles = [app.store.queue(queue, app.tenant) for queue in self.queue_names]
        if self._lease_ms is None:
            self._lease_ms = min(duration_ms("lease", handle.policy().lease, minimum_ms=1) for handle in handles)
        self._settler = Settler(self._hands, clock, self._settled)
        self._pool = self._make_pool()
        self._keeper = Keeper(
            self._hands, clock, self._lease_ms, end=self._pool.end, settle=self._settle, give_back=self._give_back
        )
        self._claimer = Claimer(
            handles, self._hands, self.backlog, clock, self._stop, lease_ms=self._lease_ms, name=self.name,
            concurrency=self.concurrency, pool=self._pool, watch=self._keeper.watch, unsettled=self._settler.pending,
        )  # fmt: skip
        self._settler.thread.start()
        self._keeper.thread.start()
        try:
            self._pool.start()
        except BaseException:
            self._settler.stop()
            self._keeper.stop()
            raise
        self._parts = {"claimer": self._thread("claimer", self._claimer.run)}
        if self._with_schedule:
            ticker = Ticker(app, self.name)
            self._parts["ticker"] = self._thread("ticker", lambda: ticker.run(self._stop))
        metrics.info(
            "worker_started", worker=self.name, url=app.store.url, queues=self.queue_names, pool=self.pool_name,
            concurrency=self.concurrency, lease=self._lease_ms / 1000, tasks=sorted(app.tasks),
        )  # fmt: skip

    def run(self) -> int:
        """Work until told to stop, by a signal or by `stop` from another thread; the process's exit code."""
        with self._signals():
            if not self._started:
                self.start()
            while not self._stop.is_set():
                self._wake.wait(0.25)
                self._wake.clear()
                self._look_after()
            return self.finish()

    def stop(self, *, now: bool = False) -> None:
        """Ask it to end; `now`: without grace. Returns at once."""
        if now:
            self._now.set()
        self._stop.set()
        self._wake.set()

    def finish(self) -> int:
        """End in good order, and return once it has."""
        self._stop.set()
        metrics.info("worker_stopping", worker=self.name, reason=self._reason, running=self.running)
        for part in self._parts.values():
            part.join(5.0 if self._code == CLEAN else _LAST_WORDS)
        self._give_back_unstarted()
        ended = self._wait_for_handlers()
        if not ended:
            self._cut_off()
        self._settler.stop()
        self._settler.thread.join(_LAST_WORDS if self._now.is_set() or self._code else 10.0)
        self._settler.give_up()
        self._settler.thread.join(_LAST_WORDS)
        self._keeper.stop()
        self._keeper.thread.join(_LAST_WORDS)
        outcomes = {name: count for name, count in self.totals.outcomes.items() if count}
        metrics.info("worker_stopped", worker=self.name, code=self._code, **outcomes)
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
        """Handlers at work."""
        return sum(work.running for work in self._hands.works())

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    # ── what the pool asks (contract.Site) ───────────────────────────────────────────────────────────────────────────

    def ended(self, work: Work, outcome: Outcome) -> None:
        if work.decide():
            self._settler.put((work, outcome))

    def freed(self) -> None:
        self._claimer.freed()

    def watch(self, at_ms: int) -> None:
        self._keeper.watch(at_ms)

    def broken(self, error: BaseException) -> None:
        if self._broken is None:
            self._broken = error
        self._end(BROKEN, f"the pool broke: {error}")

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

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

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as exc:  # noqa: BLE001 - a part that dies silently is a worker that stands still
                if self._broken is None:
                    self._broken = exc
                self._end(BROKEN, f"the {name} broke: {exc}")

        thread = threading.Thread(target=guarded, name=f"tenure-{name}", daemon=True)
        thread.start()
        return thread

    def _apply_policies(self) -> None:
        store, app = self.app.store, self.app
        changed = {
            store.queue(queue, app.tenant): policy
            for queue, policy in app.policies.items()
            if store.queue(queue, app.tenant).policy() != policy
        }
        if changed:
            store.apply(changed)  # type: ignore[arg-type]  # a mapping's keys are invariant

    def _settle(self, work: Work, outcome: Outcome) -> None:
        self._settler.put((work, outcome))

    def _settled(self, work: Work, became: str) -> None:
        self.totals.outcomes[became] += 1
        self.totals.last = work.task

    def _give_back(self, work: Work) -> None:
        """A work that its caller has begun, so that nobody else will."""
        if work.decide():
            self._claimer.given_back(1)
            self._settler.put((work, Outcome("release")))

    def _give_back_unstarted(self) -> None:
        while True:
            try:
                work = self.backlog.get_nowait()
            except Empty:
                return
            if work is not None and work.begin():
                self._give_back(work)

    def _wait_for_handlers(self) -> bool:
        """True once the pool is at rest; a second signal shortens the grace to nothing."""
        until = time.monotonic() + (0.0 if self._code else self.grace)
        while not self._now.is_set():
            left = until - time.monotonic()
            if self._pool.stop(min(max(left, 0.0), 0.1)):
                return True
            if left <= 0:
                return False
        return self._pool.stop(0.0)

    def _cut_off(self) -> None:
        """Handlers that did not finish: their deliveries count, and the jobs come back at once."""
        cut = 0
        for work in self._hands.works():
            if work.begin():
                self._give_back(work)
            elif work.decide():
                work.ending = "stopped"
                self._settler.put((work, Outcome("nack", None, "the worker was stopped before it ended", 0)))
                self._pool.end(work)
                cut += 1
        self._pool.kill()
        self._pool.stop(_LAST_WORDS)
        if cut:
            self._code = self._code or CUT_OFF
            metrics.warn("handlers_cut_off", worker=self.name, count=cut)

    def _look_after(self) -> None:
        """The watchdog."""
        stuck_ms = self._claimer.stuck_ms()
        if stuck_ms > self._patience_ms:
            why = self._claimer.trouble or "the store does not answer"
            self._end(NO_STORE, f"no claim has succeeded for {stuck_ms / 1000:.0f} s: {why}")
        for thread in (self._settler.thread, self._keeper.thread):
            if not thread.is_alive():
                self._end(BROKEN, f"{thread.name} has ended")

    def _end(self, code: int, reason: str) -> None:
        if not self._stop.is_set():
            self._code, self._reason = code, reason
            metrics.error("worker_failed", worker=self.name, code=code, reason=reason)
        self.stop()

    @property
    def reason(self) -> str:
        """Why it ended."""
        return self._reason

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop it, where Python lets us listen: in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def heard(number: int, frame: FrameType | None) -> None:
            if self._stop.is_set():
                self._now.set()
            self._reason = signal.Signals(number).name
            self.stop()

        before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                with contextlib.suppress(TypeError, ValueError):
                    signal.signal(number, handler)
