"""A test bench for an app: its tasks on a store in memory, run one by one, with a clock that the test moves."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal

import msgspec

from tenure.api import opening
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.model.durations import Duration, duration_ms
from tenure.model.job import Job
from tenure.model.lease import Delivery
from tenure.worker import execution
from tenure.worker.app import AnyTask, App
from tenure.worker.codec import is_json, open_envelope
from tenure.worker.context import CurrentJob
from tenure.worker.outcomes import Outcome
from tenure.worker.parent_results import payload_with_results
from tenure.worker.periodic import Ticker
from tenure.worker.steps import JobSteps, QueueSteps

#: Long enough that no handler under test loses its lease.
_LEASE = 86_400.0


class TaskRun(msgspec.Struct, frozen=True):
    """One run of a handler."""

    task: str
    id: str
    attempt: int
    outcome: Literal["done", "retried", "dead"]
    result: Any = None
    error: str | None = None
    exception: BaseException | None = None

    @property
    def ok(self) -> bool:
        return self.outcome == "done"


class Call(msgspec.Struct, frozen=True):
    """A task call that waits in a queue: its arguments by name, or by position if they have none."""

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    job: Job


class Bench:
    """`with Bench(app) as bench:` connects the app to a store in memory, and back to its own at the end."""

    def __init__(self, app: App, clock: ManualClock | None = None) -> None:
        self.app = app
        self.clock = ManualClock() if clock is None else clock
        self.store: Store
        self._ticker = Ticker(app, "bench")

    def __enter__(self) -> Bench:
        app = self.app
        self._before = (app._given, app._url, app.clock, app.inline)
        self.store = opening.open("memory:", clock=self.clock, sweep=False, durability="memory")
        app.use(self.store)
        app.clock, app.inline = self.clock, False
        self.store.apply(dict(app.policies.items()), app.tenant)
        if app.schedule:
            self._ticker.prepare()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        app = self.app
        app._given, app._url, app.clock, app.inline = self._before
        self.store.close()

    # ── run ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def run_next(self, *queues: str) -> TaskRun | None:
        """Run the next due job of these queues, or of all the app's, in this thread; None if there is none."""
        names = queues or tuple(self.app.queues())
        if not names:
            return None
        handles = [self.store.queue(name, self.app.tenant) for name in names]
        claim = self.store.claim(handles, 1, _LEASE, worker="bench")
        return self._run(claim.queue, claim[0]) if claim else None

    def drain(self, limit: int = 1000, *, forward: bool = False) -> list[TaskRun]:
        """Run all due jobs, and the jobs that they enqueue, until none is left.

        `forward` moves the clock to scheduled jobs, so that delayed jobs and retries run too. Raises AssertionError
        after `limit` runs: a job that enqueues itself would never end.
        """
        ran: list[TaskRun] = []
        while True:
            one = self.run_next()
            if one is not None:
                ran.append(one)
                _require(len(ran) <= limit, f"more than {limit} jobs ran: does one enqueue itself?")
            elif not (forward and self._forward()):
                return ran

    def advance(self, seconds: Duration) -> int:
        """Move the clock, and enqueue the jobs of every schedule tick on the way. Returns how many jobs."""
        enqueued = 0
        until = self.clock.wall_ms() + duration_ms("seconds", seconds)
        while True:
            now = self.clock.wall_ms()
            ticks = [tick for one in self.app.schedule.values() if (tick := one.next(now)) is not None]
            at = min((tick for tick in ticks if tick <= until), default=until)
            self.clock.advance((at - now) / 1000)
            if self.app.schedule:
                enqueued += self._ticker.step()
                self._ticker.prepare()
            if at >= until:
                return enqueued

    def _forward(self) -> bool:
        """Move the clock to the next job of the app's queues; False if none is scheduled."""
        names = set(self.app.queues())
        later = [job for job in self.store.upcoming(limit=1000) if job.queue in names]
        if not later:
            return False
        self.clock.advance(max(0, later[0].visible_at_ms - self.clock.wall_ms()) / 1000 + 0.001)
        return True

    def _run(self, queue: Queue, delivery: Delivery) -> TaskRun:
        job = CurrentJob(
            _task_of(delivery.payload), id=delivery.id, queue=delivery.queue, tenant=delivery.tenant,
            attempt=delivery.attempt, max_attempts=delivery.max_attempts, token=delivery.token,
            priority=delivery.priority, headers=delivery.headers, clock=self.clock,
            report=lambda fraction, note: queue.progress(delivery, fraction, note),
            steps=JobSteps(delivery.id, QueueSteps(queue, delivery), self.app.types, self.clock),
        )  # fmt: skip
        caught: list[BaseException] = []
        payload = payload_with_results(queue, delivery, delivery.payload)
        outcome = execution.run(self.app, job, payload, caught.append)
        (answer,) = queue.settle_many([outcome.settle(delivery.proof)])
        if answer is not None:
            raise answer
        return self._task_run(job, outcome, caught[0] if caught else None)

    def _task_run(self, job: CurrentJob, outcome: Outcome, exception: BaseException | None) -> TaskRun:
        if outcome.verb == "ack":
            result = self.app.tasks[job.task].codec.decode_result(outcome.result)
            return TaskRun(job.task, job.id, job.attempt, "done", result)
        dead = outcome.verb == "fail" or job.attempt >= job.max_attempts
        return TaskRun(job.task, job.id, job.attempt, "dead" if dead else "retried", None, outcome.error, exception)

    # ── look ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueued(self, task: AnyTask | None = None) -> list[Call]:
        """The waiting calls of one task or of all: due ones first, then by time."""
        queues = {one.queue for one in self.app.tasks.values()} | ({task.queue} if task is not None else set())
        calls: list[Call] = []
        for state in ("ready", "scheduled"):
            for queue in sorted(queues):
                handle = self.store.queue(queue, self.app.tenant)
                for job in handle.list(state, 10_000).jobs:
                    name = _task_of(job.payload)
                    if name in self.app.tasks and (task is None or name == task.name):
                        calls.append(self._call(handle, self.app.tasks[name], job))
        return calls

    def assert_enqueued(self, task: AnyTask, /, *args: Any, **kwargs: Any) -> Call:
        """Assert that a call of the task waits, with these arguments (or any, if none are given). Returns it."""
        calls = self.enqueued(task)
        if not args and not kwargs:
            _require(calls, f"no call of {task.name} waits")
            return calls[0]
        payload = task.codec.encode_call(args, kwargs)
        wanted = task.codec.decode_call(open_envelope(payload).args, is_json(payload))
        found = [call for call in calls if (call.args, call.kwargs) == wanted]
        waiting = "".join(f"\n  {call.args} {call.kwargs}" for call in calls) or " none"
        _require(found, f"no call of {task.name} with {args} {kwargs} waits. Waiting are:{waiting}")
        return found[0]

    def assert_not_enqueued(self, task: AnyTask) -> None:
        calls = self.enqueued(task)
        _require(not calls, f"{len(calls)} calls of {task.name} wait")

    def assert_dead(self, task: AnyTask, error: str = "") -> Job:
        """Assert that a job of the task is dead with an error that contains this text. Returns it."""
        jobs = self.store.queue(task.queue, self.app.tenant).list("dead", 10_000).jobs
        dead = [job for job in jobs if _task_of(job.payload) == task.name]
        found = [job for job in dead if error in (job.error or "")]
        died = "".join(f"\n  {(job.error or '').partition(chr(10))[0]}" for job in dead) or " none"
        _require(found, f"no job of {task.name} died of {error!r}. Dead are:{died}")
        return found[0]

    @staticmethod
    def _call(queue: Queue, task: AnyTask, job: Job) -> Call:
        payload = payload_with_results(queue, job.id, job.payload)
        args, kwargs = task.codec.decode_call(open_envelope(payload).args, is_json(payload))
        return Call(task.name, args, kwargs, job)


def _task_of(payload: bytes) -> str:
    try:
        return open_envelope(payload).task
    except ValueError:
        return "(unreadable)"


def _require(fact: object, message: str) -> None:
    """Raise AssertionError if the fact is false. No `assert`: pytest would add to the message of a plugin's assert."""
    if not fact:
        raise AssertionError(message)
