"""Run one job to its outcome, for every pool; pools differ in where they call this, and how they end it.

Neither `run` nor `run_async` raises: an unreadable payload, and whatever a handler raises (including `SystemExit` and
`GeneratorExit`), becomes the job's outcome. If a handler forks, its child ends where the handler ends: only the parent
reports the outcome.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tenure.errors import InvalidArgument, TooLarge
from tenure.model.job import MAX_PAYLOAD
from tenure.model.request import follow_ups
from tenure.process import end_forked_child
from tenure.worker import tracing
from tenure.worker.codec import is_json, open_envelope
from tenure.worker.context import CurrentJob, CurrentJobScope
from tenure.worker.middleware import MiddlewareRun
from tenure.worker.outcomes import DONE, Dead, FailureRules, Outcome

if TYPE_CHECKING:
    from tenure.worker.app import App
    from tenure.worker.tasks import Task

_ANY_TASK = FailureRules()


def run(app: App, job: CurrentJob, payload: bytes, on_error: Callable[[BaseException], None] | None = None) -> Outcome:
    """Run a job in this thread. An `async def` handler gets an event loop of its own. `on_error` gets its exception."""
    rules = _ANY_TASK
    process = os.getpid()
    try:
        call = _decode(app, payload)
        if isinstance(call, Outcome):
            return call
        task, args, kwargs = call
        rules = task.rules
        with CurrentJobScope(job), tracing.span(job):
            hooks = MiddlewareRun(app.middleware, job)
            try:
                hooks.before()
                result = task.function(*args, **kwargs)
                if task.is_async:
                    result = asyncio.run(result)
                end_forked_child(process)
                outcome = _outcome_of_result(task, job, result)
            except BaseException as exc:
                end_forked_child(process, exc)
                hooks.on_error(exc)
                raise
            hooks.after(result)
            return outcome
    except BaseException as exc:  # noqa: BLE001 - it is the job's outcome
        if on_error is not None:
            on_error(exc)
        return rules.outcome(exc, job.attempt)


async def run_async(app: App, job: CurrentJob, payload: bytes) -> Outcome:
    """Run an `async def` handler on this event loop."""
    rules = _ANY_TASK
    process = os.getpid()
    try:
        call = _decode(app, payload)
        if isinstance(call, Outcome):
            return call
        task, args, kwargs = call
        rules = task.rules
        with CurrentJobScope(job), tracing.span(job):
            hooks = MiddlewareRun(app.middleware, job)
            try:
                hooks.before()
                result = await task.function(*args, **kwargs)
                end_forked_child(process)
                outcome = _outcome_of_result(task, job, result)
            except BaseException as exc:
                end_forked_child(process, exc)
                hooks.on_error(exc)
                raise
            hooks.after(result)
            return outcome
    except BaseException as exc:  # noqa: BLE001 - as above. If the pool cancelled it, the job is settled already.
        return rules.outcome(exc, job.attempt)


def _decode(app: App, payload: bytes) -> tuple[Task[Any, Any, Any], tuple[Any, ...], dict[str, Any]] | Outcome:
    try:
        envelope = open_envelope(payload)
        task = app.tasks.get(envelope.task)
        if task is None:
            # Another worker may know the task: one of the next release, during a rollout.
            return Outcome("nack", None, f"this worker has no task {envelope.task[:200]!r}")
        return task, *task.codec.decode_call(envelope.args, is_json(payload))
    except InvalidArgument as exc:
        return Outcome("fail", None, str(exc))  # no attempt will ever be able to read it


def _outcome_of_result(task: Task[Any, Any, Any], job: CurrentJob, result: Any) -> Outcome:
    """Encode the result.

    Raises Dead if it cannot be stored, or its follow-up jobs cannot be enqueued: a retry would fail the same way.
    """
    try:
        encoded = task.codec.encode_result(result)
        if encoded is not None and len(encoded) > MAX_PAYLOAD:
            raise TooLarge("the result", len(encoded), MAX_PAYLOAD)
        then = tuple(job.handed_over) or None
        follow_ups(then)  # raises if they cannot be enqueued
    except (InvalidArgument, TooLarge) as exc:
        raise Dead(str(exc)) from None
    return DONE if encoded is None and then is None else Outcome("ack", encoded, then=then)
