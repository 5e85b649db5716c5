"""One job, run to its outcome. The same for every pool: what differs is where this is called, and how it is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tenure.errors import InvalidArgument, TooLarge
from tenure.model.job import MAX_PAYLOAD
from tenure.worker import tracing
from tenure.worker.codec import is_json, open_envelope
from tenure.worker.context import CurrentJob, Within
from tenure.worker.outcomes import DONE, Outcome

if TYPE_CHECKING:
    from tenure.worker.app import App
    from tenure.worker.tasks import Task


def run(app: App, job: CurrentJob, payload: bytes, caught: Callable[[BaseException], None] | None = None) -> Outcome:
    """Run it in this thread. An `async def` handler gets an event loop of its own. `caught` is told what it raised."""
    found = _prepare(app, payload)
    if isinstance(found, Outcome):
        return found
    task, args, kwargs = found
    try:
        with Within(job), tracing.span(job):
            if task.is_async:
                return _kept(task, asyncio.run(task.function(*args, **kwargs)))
            return _kept(task, task.function(*args, **kwargs))
    except BaseException as exc:  # noqa: BLE001 - whatever a handler raises, even SystemExit, is its job's outcome
        if caught is not None:
            caught(exc)
        return task.rules.after(exc, job.attempt)


async def run_async(
    app: App, job: CurrentJob, payload: bytes, in_thread: Callable[[Callable[[], Any]], Any]
) -> Outcome:
    """Run it on this event loop; a plain `def` handler goes to a thread, so that it does not hold up the others."""
    found = _prepare(app, payload)
    if isinstance(found, Outcome):
        return found
    task, args, kwargs = found
    try:
        with Within(job), tracing.span(job):
            if task.is_async:
                return _kept(task, await task.function(*args, **kwargs))
            return _kept(task, await in_thread(lambda: task.function(*args, **kwargs)))
    except asyncio.CancelledError:
        raise  # by the pool, which knows why
    except BaseException as exc:  # noqa: BLE001 - as above
        return task.rules.after(exc, job.attempt)


def _prepare(app: App, payload: bytes) -> tuple[Task[Any, Any, Any], tuple[Any, ...], dict[str, Any]] | Outcome:
    try:
        envelope = open_envelope(payload)
    except InvalidArgument as exc:
        return Outcome("fail", None, str(exc))
    task = app.tasks.get(envelope.task)
    if task is None:
        # Another worker may know it: one of the next release, while this one is being replaced.
        return Outcome("nack", None, f"this worker has no task {envelope.task!r}")
    try:
        args, kwargs = task.codec.decode_call(envelope.args, is_json(payload))
    except InvalidArgument as exc:
        return Outcome("fail", None, str(exc))
    return task, args, kwargs


def _kept(task: Task[Any, Any, Any], result: Any) -> Outcome:
    if result is None:
        return DONE
    encoded = task.codec.encode_result(result)
    if encoded is not None and len(encoded) > MAX_PAYLOAD:
        raise TooLarge("the result", len(encoded), MAX_PAYLOAD)
    return Outcome("ack", encoded)
