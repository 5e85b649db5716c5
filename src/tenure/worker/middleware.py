"""Hooks around every handler: for error trackers, database connections, custom metrics.

    before ──▶ handler ──▶ after         each in the order of `app.middleware`; `after` and `on_error` in reverse
                  └──────▶ on_error

They run where the handler runs: in its thread, in its process, or on the event loop (so those of `async def` tasks must
not block). An exception from `before` fails the job, as if the handler had raised it. An exception from `after` or
`on_error` is logged (`middleware_failed`) and otherwise ignored: the handler has already taken effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tenure.worker import log
from tenure.worker.context import CurrentJob


class Middleware(Protocol):
    """Subclass it and define the hooks you need; the others do nothing."""

    def before(self, job: CurrentJob) -> None:
        """Called before the handler."""

    def after(self, job: CurrentJob, result: object) -> None:
        """Called after the handler returned `result`, which could be encoded; the job is not settled yet."""

    def on_error(self, job: CurrentJob, error: BaseException) -> None:
        """Called if the handler, its result's encoding, or a `before` raised, including `Retry` and `Dead`."""


class MiddlewareRun:
    """The hooks of one run of a handler. `after` and `on_error` run only where `before` ran."""

    __slots__ = ("_entered", "_job", "_middleware")

    def __init__(self, middleware: Sequence[Middleware], job: CurrentJob) -> None:
        self._middleware = middleware
        self._job = job
        self._entered: list[Middleware] = []

    def before(self) -> None:
        for one in self._middleware:
            self._entered.append(one)
            one.before(self._job)

    def after(self, result: object) -> None:
        for one in reversed(self._entered):
            try:
                one.after(self._job, result)
            except Exception as exc:  # noqa: BLE001 - see the module's docstring
                self._log_failure(one, "after", exc)

    def on_error(self, error: BaseException) -> None:
        for one in reversed(self._entered):
            try:
                one.on_error(self._job, error)
            except Exception as exc:  # noqa: BLE001 - see the module's docstring
                self._log_failure(one, "on_error", exc)

    def _log_failure(self, one: Middleware, hook: str, error: Exception) -> None:
        log.error(
            "middleware_failed", middleware=type(one).__name__, hook=hook, task=self._job.task, id=self._job.id,
            error=repr(error), exc_info=error,
        )  # fmt: skip
