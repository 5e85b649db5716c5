"""The interface between the worker and its pools, and the code that the pools share."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol

from tenure.errors import InvalidArgument
from tenure.worker import log
from tenure.worker.codec import open_envelope
from tenure.worker.context import CurrentJob
from tenure.worker.held_claims import HeldJob
from tenure.worker.outcomes import FailureRules, Outcome
from tenure.worker.parent_results import payload_with_results
from tenure.worker.steps import JobSteps, QueueSteps

if TYPE_CHECKING:
    from tenure.worker.app import App

Backlog = SimpleQueue["HeldJob | None"]
"""Jobs to be started, in order. Each None ends one slot."""

_SLOT_FAILED = FailureRules()
_UNREADABLE = "(unreadable)"


class PoolHost(Protocol):
    """The worker, as a pool sees it."""

    app: App
    backlog: Backlog
    concurrency: int
    #: The queues, or patterns of queues, that this worker claims from.
    served: tuple[str, ...]

    def job_ended(self, job: HeldJob, outcome: Outcome) -> None:
        """Report that a handler has ended. Settles the job, unless it is settled."""

    def slot_freed(self) -> None:
        """Report that a slot is free again."""

    def watch_timeout(self, at_ms: int) -> None:
        """Report that a job's timeout passes at `at_ms`."""

    def pool_broken(self, error: BaseException) -> None:
        """Report that the pool cannot continue: the worker must end."""


class Pool(Protocol):
    #: Ended jobs and the time they took, by which the claimer sizes its claims.
    @property
    def finished(self) -> tuple[int, int]:
        """(count, total nanoseconds). Every job that was begun is counted once it has ended, in whatever way."""

    def start(self) -> None:
        """Return once it can run handlers. Raises if it never will."""

    def end(self, job: HeldJob) -> None:
        """Notify the handler, or end it: the job's outcome will not be stored. From any thread."""

    def stop(self, timeout: float) -> bool:
        """End the slots. Requires an empty backlog. True once all handlers have ended, False when the time is up."""

    def kill(self) -> None:
        """End now what can be ended."""


def start_job(host: PoolHost, job: HeldJob) -> CurrentJob:
    """Record when a job started and when its timeout passes; return the handler's view of it."""
    job.started_ns = perf_counter_ns()
    delivery = job.delivery
    app = host.app
    try:
        name = open_envelope(delivery.payload).task
    except InvalidArgument:
        name = _UNREADABLE
    task = app.tasks.get(name)
    # An unknown name is no metric label: there may be any number of them.
    job.task = name if task is not None or name == _UNREADABLE else "(unknown)"
    if task is not None and task.timeout_ms is not None:
        job.timeout_at_ms = app.clock.steady_ms() + task.timeout_ms
        host.watch_timeout(job.timeout_at_ms)
    job.current = current = CurrentJob(
        name, id=delivery.id, queue=delivery.name.queue, tenant=delivery.name.tenant, attempt=delivery.attempt,
        max_attempts=delivery.max_attempts, token=delivery.token, priority=delivery.priority,
        headers=delivery.headers, deadline_ms=job.timeout_at_ms, clock=app.clock, report=_ProgressReport(job),
        served=host.served, steps=JobSteps(delivery.id, QueueSteps(job.claim.queue, delivery), app.types, app.clock),
    )  # fmt: skip
    return current


def whole_payload(job: HeldJob) -> bytes:
    """Return the job's payload, reading its parents' results from the store if it takes any."""
    return payload_with_results(job.claim.queue, job.delivery, job.delivery.payload)


def run_slot(host: PoolHost, name: str, run_job: Callable[[HeldJob], None]) -> None:
    """Take jobs from the backlog and run each, until a None comes. No exception ends the slot.

    `run_job` settles the job. If it raises instead, that delivery fails, the log says so (`slot_failed`), and the slot
    continues with the next job.
    """
    while True:
        job: HeldJob | None = None
        try:
            job = host.backlog.get()
            if job is None:
                return
            if job.try_begin():
                run_job(job)
        except BaseException as exc:  # noqa: BLE001 - whatever it was, the next job may succeed
            slot_failed(host, name, job, exc)


def slot_failed(host: PoolHost, name: str, job: HeldJob | None, error: BaseException) -> None:
    """Log an exception that reached a slot, and fail its delivery."""
    facts = {} if job is None else {"task": job.task, "id": job.delivery.id}
    log.error("slot_failed", slot=name, error=repr(error), exc_info=error, **facts)
    if job is not None:
        host.job_ended(job, _SLOT_FAILED.outcome(error, job.delivery.attempt))
        host.slot_freed()


class _ProgressReport:
    """`current_job().progress`, on the job's queue."""

    __slots__ = ("_job",)

    def __init__(self, job: HeldJob) -> None:
        self._job = job

    def __call__(self, fraction: float, note: str | None) -> None:
        self._job.claim.queue.progress(self._job.delivery, fraction, note)
