"""Sentry: failed tasks as events, with their task, job and attempt.

    sentry_sdk.init(dsn=…)
    app = App("rocksdb:./data", middleware=[SentryMiddleware()])

Each job has its own scope, so tags and breadcrumbs of one do not appear with another. `Retry`, `Dead`, `Snooze`,
sleeping and waiting are decisions of a handler, not errors, and are not sent.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

import sentry_sdk

from tenure.worker.context import CurrentJob
from tenure.worker.middleware import Middleware
from tenure.worker.outcomes import Dead, Retry, Snooze
from tenure.worker.steps import Suspended

#: The scope of the job that runs in this thread or coroutine.
_scope: ContextVar[AbstractContextManager[object] | None] = ContextVar("tenure_sentry_scope", default=None)


class SentryMiddleware(Middleware):
    """Sends failed tasks. `last_attempt_only`: only the failure after which a job is dead, not those before it."""

    def __init__(self, *, last_attempt_only: bool = False) -> None:
        self._last_attempt_only = last_attempt_only

    def before(self, job: CurrentJob) -> None:
        entered = sentry_sdk.isolation_scope()
        scope = entered.__enter__()
        _scope.set(entered)
        scope.set_transaction_name(job.task, source="task")
        scope.set_tags({"tenure.task": job.task, "tenure.queue": job.queue, "tenure.tenant": job.tenant})
        scope.set_context("tenure", {"job": job.id, "attempt": job.attempt, "max_attempts": job.max_attempts})

    def after(self, job: CurrentJob, result: object) -> None:
        self._leave()

    def on_error(self, job: CurrentJob, error: BaseException) -> None:
        try:
            last = job.attempt >= job.max_attempts
            if not isinstance(error, (Retry, Dead, Snooze, Suspended)) and (last or not self._last_attempt_only):
                sentry_sdk.capture_exception(error)
        finally:
            self._leave()

    def _leave(self) -> None:
        entered = _scope.get()
        if entered is not None:
            _scope.set(None)
            entered.__exit__(None, None, None)
