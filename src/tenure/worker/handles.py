"""What became of a call: its result, its state, or that it is no longer wanted."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tenure.api.queue import Queue
from tenure.errors import TaskFailed, WaitTimeout
from tenure.model.durations import Duration, duration_ms
from tenure.model.job import Job
from tenure.worker.context import CurrentJob

if TYPE_CHECKING:
    from tenure.worker.outcomes import Outcome
    from tenure.worker.tasks import Task

R = TypeVar("R")


class Handle(Generic[R]):
    """A job of a task. It proves nothing, so it settles nothing: it looks, waits and cancels."""

    def __init__(self, task: Task[Any, Any, R], queue: Queue, job_id: str, duplicate: bool = False) -> None:
        self.task = task
        self.queue = queue
        self.id = job_id
        #: The key was seen before, and this is the first job that had it.
        self.duplicate = duplicate

    def result(self, timeout: Duration = 10) -> R:
        """What the handler returned, once it has.

        Raises TaskFailed if the job is dead or was removed, WaitTimeout if it has not ended by then. A result is kept for
        the queue's `result_retention`, a day if not said otherwise.
        """
        job = self.queue.wait_for(self.id, timeout)
        if job is not None and job.state == "dead":
            raise TaskFailed(self.id, self.task.name, job.reason or "failed", job.error)
        if job is None or job.state == "removed":
            if self._past() != "done":
                raise TaskFailed(self.id, self.task.name, "removed", None)
            return None  # type: ignore[return-value]  # done, with nothing to keep: it returned None
        return self.task.codec.decode_result(job.result)  # type: ignore[no-any-return]

    def status(self) -> str:
        """scheduled, ready, leased, done, dead, or removed (cancelled, purged, or its ttl passed)."""
        job = self.job()
        return self._past() if job is None else job.state

    def job(self) -> Job | None:
        """The job as it is now; None if it is gone."""
        return self.queue.get(self.id)

    def cancel(self) -> bool:
        """Remove the job; a handler that has it is told. False: it has ended, or is unknown."""
        return self.queue.cancel(self.id)

    def _past(self) -> str:
        """How a job ended that is gone: the journal knows, for as long as it is kept."""
        events = self.queue.timeline(self.id)
        return "done" if events and events[-1].type in ("done", "retired") else "removed"

    def __repr__(self) -> str:
        return f"<Handle {self.task.name} {self.id}>"


class InlineHandle(Handle[R]):
    """The call of an app in inline mode: run when it was enqueued, here, through the same encoding."""

    def __init__(self, task: Task[Any, Any, R], payload: bytes) -> None:
        from tenure.worker import execution

        self.task = task
        self.id = ""
        self.duplicate = False
        self.outcome: Outcome = execution.run(task.app, CurrentJob(task.name, queue=task.queue), payload)

    def result(self, timeout: Duration = 10) -> R:
        if self.outcome.verb != "ack":
            raise TaskFailed(self.id, self.task.name, "failed", self.outcome.error)
        return self.task.codec.decode_result(self.outcome.result)  # type: ignore[no-any-return]

    def status(self) -> str:
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
        """As `Handle.result`. It waits in pieces, so that a cancelled one soon lets go of its thread."""
        total = left = duration_ms("timeout", timeout) / 1000
        while True:
            piece = min(left, 1.0)
            try:
                wait = functools.partial(self._sync.result, piece)
                return await self._sync.task.app.threads.run(wait, waits=True)
            except WaitTimeout:
                left -= piece
                if left <= 0:
                    raise WaitTimeout(self.id, total) from None

    async def status(self) -> str:
        return await self._sync.task.app.threads.run(self._sync.status)

    async def job(self) -> Job | None:
        return await self._sync.task.app.threads.run(self._sync.job)

    async def cancel(self) -> bool:
        return await self._sync.task.app.threads.run(self._sync.cancel)

    def __repr__(self) -> str:
        return f"<AsyncHandle {self._sync.task.name} {self.id}>"
