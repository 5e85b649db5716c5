"""What the runner asks of a pool, and what it offers in return."""

from __future__ import annotations

from queue import SimpleQueue
from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol

from tenure.errors import InvalidArgument
from tenure.worker.codec import open_envelope
from tenure.worker.context import CurrentJob
from tenure.worker.held_claims import Work
from tenure.worker.outcomes import Outcome

if TYPE_CHECKING:
    from tenure.worker.app import App

Backlog = SimpleQueue["Work | None"]
"""Works to be started, in order; a None ends one who takes from it."""


class Site(Protocol):
    """The worker, as a pool sees it."""

    app: App
    backlog: Backlog
    concurrency: int

    def ended(self, work: Work, outcome: Outcome) -> None:
        """A handler has ended. Settles it, unless somebody decided otherwise before."""

    def freed(self) -> None:
        """A slot is free again."""

    def watch(self, at_ms: int) -> None:
        """A work's time will be up then."""

    def broken(self, error: BaseException) -> None:
        """The pool cannot go on: the worker must end."""


class Pool(Protocol):
    #: Jobs that have ended, and the time they took: the runner plans its claims by them.
    @property
    def finished(self) -> tuple[int, int]:
        """(how many, nanoseconds in all)."""

    def start(self) -> None:
        """Returns once it can run handlers. Raises if it never will."""

    def end(self, work: Work) -> None:
        """The work's outcome counts for nothing any more: tell its handler, or end it. From any thread."""

    def stop(self, timeout: float) -> bool:
        """All in the backlog has been taken out; return once the handlers have ended, or False when the time is up."""

    def kill(self) -> None:
        """End what can be ended, now."""


def begin(site: Site, work: Work) -> CurrentJob:
    """A work is about to run: find its task's timeout, and make what its handler will see."""
    delivery = work.delivery
    app = site.app
    try:
        name = open_envelope(delivery.payload).task
    except InvalidArgument:
        name = "(unreadable)"
    work.task = name
    task = app.tasks.get(name)
    if task is not None and task.timeout_ms is not None:
        work.timeout_at_ms = app.clock.steady_ms() + task.timeout_ms
        site.watch(work.timeout_at_ms)
    work.current = current = CurrentJob(
        name, id=delivery.id, queue=delivery.name.queue, tenant=delivery.name.tenant, attempt=delivery.attempt,
        max_attempts=delivery.max_attempts, token=delivery.token, priority=delivery.priority,
        headers=delivery.headers, deadline_ms=work.timeout_at_ms, clock=app.clock, report=_Report(work),
    )  # fmt: skip
    work.started_ns = perf_counter_ns()
    return current


class _Report:
    """`current_job().progress`, on the queue the job came from."""

    __slots__ = ("_work",)

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, fraction: float, note: str | None) -> None:
        self._work.held.queue.progress(self._work.delivery, fraction, note)
