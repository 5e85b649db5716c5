"""Handles on enqueued calls: wait for the result, read the state, cancel."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tenure.api.queue import Queue
from tenure.errors import TaskFailed, WaitTimeout
from tenure.model.durations import Duration, duration_ms
from tenure.model.job import Job
from tenure.worker import execution, log
from tenure.worker.context import CurrentJob, running_job
from tenure.worker.queue_watch import serves

if TYPE_CHECKING:
    from tenure.worker.app import App
    from tenure.worker.outcomes import Outcome
    from tenure.worker.tasks import Task

R = TypeVar("R")
T = TypeVar("T")


class Handle(Generic[R]):
    """A job of a task. It has no proof of a lease, so it settles nothing: it reads, waits and cancels."""

    def __init__(self, task: Task[Any, Any, R], queue: Queue | None, job_id: str, duplicate: bool = False) -> None:
        self.task = task
        self.id = job_id
        #: Whether the key was used before, and this is the first job with it.
        self.duplicate = duplicate
        self._queue = queue

    @property
    def queue(self) -> Queue:
        """The queue that has the job; the task's own, if no possible queue knows the id."""
        return self._find_queue() or self.task.possible_queues()[0]

    def result(self, timeout: Duration = 10) -> R:
        """Wait for the job and return what the handler returned.

        Raises TaskFailed if the job is dead, was removed or is unknown, WaitTimeout if it has not ended in time. A
        result is kept for the queue's `result_retention` (default: a day).
        """
        queue = self._find_queue()
        if queue is None:
            raise TaskFailed(self.id, self.task.name, "unknown", None)
        job = self._wait(queue, timeout)
        if job is not None and job.state == "dead":
            raise TaskFailed(self.id, self.task.name, job.reason or "failed", job.error)
        if job is None or job.state == "removed":
            state = self._removed_state(queue)
            if state != "done":
                raise TaskFailed(self.id, self.task.name, state, None)
            return None  # type: ignore[return-value]  # done without a stored result: it returned None
        return self.task.codec.decode_result(job.result)  # type: ignore[no-any-return]

    def status(self) -> str:
        """Return scheduled, ready, leased, done, dead, removed (cancelled, purged, or its ttl passed), or unknown.

        unknown: no queue of the app's tasks has a trace of it. Another queue may (`task.handle(id, queue=…)`), or the
        journal has been trimmed.
        """
        queue = self._find_queue()
        job = None if queue is None else queue.get(self.id)
        if job is not None:
            return job.state
        return "unknown" if queue is None else self._removed_state(queue)

    def job(self) -> Job | None:
        """Return the job as it is now; None if it is removed or unknown."""
        queue = self._find_queue()
        return None if queue is None else queue.get(self.id)

    def cancel(self) -> bool:
        """Remove the job; a handler that runs it gets `lost`. False: it has ended, or is unknown."""
        queue = self._find_queue()
        return queue is not None and queue.cancel(self.id)

    def _find_queue(self) -> Queue | None:
        """Return the queue that has or had the job. Found once, then remembered.

        The store finds an existing job by its id. A removed one has left its events in one of the app's queues.
        """
        if self._queue is None:
            store = self.task.app.store
            job = store.get(self.id)
            queues = self.task.possible_queues()
            if job is not None and job.tenant == queues[0].name.tenant:
                self._queue = store.queue(job.queue, job.tenant)
            elif job is None:
                self._queue = next((queue for queue in queues if queue.timeline(self.id)), None)
        return self._queue

    def _wait(self, queue: Queue, timeout: Duration) -> Job | None:
        """Wait for the end of the job. Warns once if the caller is a handler whose slot the job may need."""
        waiter = running_job()
        if waiter is not None and serves(waiter.served, queue.name.queue):
            try:
                return queue.wait_for(self.id, 0)
            except WaitTimeout:
                _warn_of_slot_deadlock(waiter, self.task.name, queue)
        return queue.wait_for(self.id, timeout)

    def _removed_state(self, queue: Queue) -> str:
        """Return how a removed job ended, by the journal, as long as its events are kept."""
        events = queue.timeline(self.id)
        if not events:
            return "unknown"
        return "done" if events[-1].type in ("done", "retired") else "removed"

    def __repr__(self) -> str:
        return f"<Handle {self.task.name} {self.id}>"


_warned: set[tuple[str, str]] = set()


def _warn_of_slot_deadlock(waiter: CurrentJob, task: str, queue: Queue) -> None:
    if (waiter.task, task) in _warned:
        return
    _warned.add((waiter.task, task))
    log.warning(
        "waits_for_own_worker", task=waiter.task, id=waiter.id, waits_for=task, queue=queue.name.queue,
        advice="the handler occupies a slot of its worker while it waits for a job that also needs one: when all "
        "slots wait, none continues. Let the second task enqueue the next one, or serve its queue by another worker.",
    )  # fmt: skip


def run_inline(task: Task[Any, Any, R], payload: bytes) -> InlineHandle[R]:
    """Run a call in the caller's thread, as a worker would."""
    return InlineHandle(task, execution.run(task.app, CurrentJob(task.name, queue=task.queue), payload))


class InlineHandle(Handle[R]):
    """A call of an app in inline mode: run in the caller's thread when enqueued, through the same encoding."""

    def __init__(self, task: Task[Any, Any, R], outcome: Outcome | None) -> None:
        """`outcome` is None for a step of a flow that did not run, because an earlier one failed."""
        super().__init__(task, None, "")
        self.outcome = outcome

    def result(self, timeout: Duration = 10) -> R:
        if self.outcome is None:
            raise TaskFailed(self.id, self.task.name, "removed", None)
        if self.outcome.verb != "ack":
            raise TaskFailed(self.id, self.task.name, "failed", self.outcome.error)
        return self.task.codec.decode_result(self.outcome.result)  # type: ignore[no-any-return]

    def status(self) -> str:
        if self.outcome is None:
            return "removed"
        return "done" if self.outcome.verb == "ack" else "dead"

    def job(self) -> None:
        return None

    def cancel(self) -> bool:
        return False


class AsyncHandle(Generic[R]):
    """A handle whose verbs are awaited."""

    def __init__(self, handle: Handle[R]) -> None:
        self._sync = handle
        self.id = handle.id
        self.duplicate = handle.duplicate

    async def result(self, timeout: Duration = 10) -> R:
        """As `Handle.result`. It waits a second at a time, so that a cancelled one soon frees its thread."""
        return await wait_in_slices(self._sync.task.app, self.id, self._sync.result, timeout)

    async def status(self) -> str:
        return await self._sync.task.app.threads.run(self._sync.status)

    async def job(self) -> Job | None:
        return await self._sync.task.app.threads.run(self._sync.job)

    async def cancel(self) -> bool:
        return await self._sync.task.app.threads.run(self._sync.cancel)

    def __repr__(self) -> str:
        return f"<AsyncHandle {self._sync.task.name} {self.id}>"


async def wait_in_slices(app: App, job_id: str, wait: Callable[[float], T], timeout: Duration) -> T:
    """Call `wait` in a thread, a second at a time, until it returns or the time is up. Raises WaitTimeout."""
    total = left = duration_ms("timeout", timeout) / 1000
    context = contextvars.copy_context()
    while True:
        piece = min(left, 1.0)
        try:
            return await app.threads.run(functools.partial(context.run, wait, piece), waits=True)
        except WaitTimeout:
            left -= piece
            if left <= 0:
                raise WaitTimeout(job_id, total) from None
