"""The job that a handler runs: `current_job()`, a context variable, so each thread and coroutine has its own."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from zoneinfo import ZoneInfo

from tenure.clock import Clock, SystemClock
from tenure.contract.scheduling import TICK_HEADER
from tenure.errors import InvalidArgument
from tenure.model.durations import Duration
from tenure.model.job import NewJob
from tenure.worker.steps import AsyncSteps, JobSteps, NoSteps

if TYPE_CHECKING:
    from tenure.worker.flows import Flow, Step

P = ParamSpec("P")
T = TypeVar("T")
Report = Callable[[float, "str | None"], None]


class CurrentJob:
    """A handler's view of its job, with its progress and steps."""

    __slots__ = (
        "_clock", "_deadline_ms", "_lost", "_report", "attempt", "handed_over", "headers", "id", "max_attempts", "priority", "queue",
        "served", "steps", "task", "tenant", "token",
    )  # fmt: skip

    def __init__(
        self,
        task: str,
        *,
        id: str = "",
        queue: str = "",
        tenant: str = "default",
        attempt: int = 1,
        max_attempts: int = 1,
        token: int = 0,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        deadline_ms: int | None = None,
        clock: Clock | None = None,
        report: Report | None = None,
        served: tuple[str, ...] = (),
        steps: JobSteps | None = None,
    ) -> None:
        self.task = task
        #: The job's id; empty if the task was called directly, without a queue.
        self.id = id
        self.queue = queue
        self.tenant = tenant
        #: The number of this delivery, from 1, and the largest number.
        self.attempt = attempt
        self.max_attempts = max_attempts
        #: The fencing token, which grows with every delivery of this job. Systems it writes to should refuse a smaller
        #: one.
        self.token = token
        self.priority = priority
        self.headers = {} if headers is None else headers
        #: The queues, or patterns of queues, that this job's worker serves.
        self.served = served
        self._deadline_ms = deadline_ms
        self._clock = clock
        self._report = report
        self._lost: threading.Event | None = None
        self.steps = JobSteps(id, NoSteps()) if steps is None else steps
        #: Jobs to enqueue when this one is acked.
        self.handed_over: list[NewJob] = []

    def step(self, name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function once for this job, however often it is delivered: see `JobSteps.step`."""
        return self.steps.step(name, function, *args, **kwargs)

    def sleep(self, duration: Duration) -> None:
        """Release the lease and continue here after the time has passed: see `JobSteps.sleep`.

        No attempt is counted.
        """
        self.steps.sleep(duration)

    @overload
    def wait_for(self, signal: str, timeout: Duration | None = None) -> bytes: ...

    @overload
    def wait_for(self, signal: str, timeout: Duration | None = None, *, as_type: type[T]) -> T: ...

    def wait_for(self, signal: str, timeout: Duration | None = None, *, as_type: Any = bytes) -> Any:
        """Release the lease and continue here with the signal's payload: see `JobSteps.wait_for`.

        No attempt is counted.
        """
        return self.steps.wait_for(signal, timeout, as_type)

    def then(self, step: Step[Any] | Flow) -> None:
        """Enqueue a call, a chain, a group or a graph in the transaction that acks this job.

        Nothing is enqueued if the handler raises or the lease is lost. In a plain call it is enqueued at once. A job
        can enqueue at most 1,000 others so. Raises InvalidArgument for unencodable arguments.
        """
        flow = step.flow()
        if self.id:
            self.handed_over += flow.jobs(self.queue, f"{len(self.handed_over)}.")
        else:
            flow.enqueue()

    @property
    def aio(self) -> AsyncSteps:
        """`step`, `sleep` and `wait_for`, awaited."""
        return AsyncSteps(self.steps)

    @property
    def lost(self) -> bool:
        """Whether the lease is lost or the timeout has passed: stop, because the result will not be stored."""
        return self._lost is not None and self._lost.is_set()

    def mark_lost(self) -> None:
        """Set `lost`. Called by pools."""
        event = self._lost
        if event is None:
            event = self._lost = threading.Event()
        event.set()

    @property
    def remaining(self) -> float | None:
        """Seconds until the task's timeout; None if it has none."""
        if self._deadline_ms is None:
            return None
        return (self._deadline_ms - (self._clock or SystemClock()).steady_ms()) / 1000

    @property
    def deadline(self) -> datetime | None:
        """The calendar time of the task's timeout; None if it has none."""
        left = self.remaining
        if left is None:
            return None
        return datetime.fromtimestamp((self._clock or SystemClock()).wall_ms() / 1000 + left, UTC)

    @property
    def tick(self) -> datetime | None:
        """For a periodic task: the time it was due, in the schedule's time zone."""
        text = self.headers.get(TICK_HEADER)
        if text is None:
            return None
        moment, _, zone = text.rstrip("]").partition("[")
        return datetime.fromisoformat(moment).astimezone(ZoneInfo(zone))

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Store the progress (0 to 1), shown with the job. Raises LeaseLost if this worker no longer holds the job."""
        if self._report is not None:
            self._report(fraction, note)
        elif isinstance(fraction, bool) or not 0 <= fraction <= 1:
            raise InvalidArgument(f"progress {fraction!r} must be from 0 to 1")

    def __repr__(self) -> str:
        return f"<CurrentJob {self.task} {self.id or '(plain call)'} attempt {self.attempt}>"


#: structlog's `merge_contextvars` adds every context variable with this prefix to a log line. Set directly: its
#: `bind_contextvars` takes 12 µs for three of them, more than half of the time of a small job.
_log_id: contextvars.ContextVar[str] = contextvars.ContextVar("structlog_job_id")
_log_task: contextvars.ContextVar[str] = contextvars.ContextVar("structlog_task")
_log_attempt: contextvars.ContextVar[int] = contextvars.ContextVar("structlog_attempt")
_current: contextvars.ContextVar[CurrentJob | None] = contextvars.ContextVar("tenure_current_job", default=None)


def current_job() -> CurrentJob:
    """Return the running job.

    In a plain call of a task, a stand-in without a queue. Elsewhere raises InvalidArgument.
    """
    found = _current.get()
    if found is None:
        raise InvalidArgument("no task is running here: current_job() is for handlers")
    return found


def running_job() -> CurrentJob | None:
    """Return the running job, or None."""
    return _current.get()


class CurrentJobScope:
    """`with CurrentJobScope(job):` makes it `current_job()`, and adds its id to the log lines written meanwhile."""

    __slots__ = ("_attempt", "_id", "_job", "_task", "_token")

    def __init__(self, job: CurrentJob) -> None:
        self._job = job

    def __enter__(self) -> CurrentJob:
        job = self._job
        self._token = _current.set(job)
        if job.id:
            self._id, self._task, self._attempt = (
                _log_id.set(job.id),
                _log_task.set(job.task),
                _log_attempt.set(job.attempt),
            )
        return job

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._job.id:
            _log_id.reset(self._id)
            _log_task.reset(self._task)
            _log_attempt.reset(self._attempt)
        _current.reset(self._token)
