"""A Django task in a worker: the handler of every job that a backend enqueues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from django.db import close_old_connections
from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json

from tenure.errors import InvalidArgument
from tenure.worker.app import App
from tenure.worker.context import current_job
from tenure.worker.outcomes import Dead, error_text


class Executed(msgspec.Struct, frozen=True):
    """A job's result. Never empty, so that the job is kept for `result_retention` even if the task returns None."""

    return_value: Any = None


def handlers(app: App, queues: Iterable[str], *, max_attempts: int | None, timeout: float | None) -> None:
    """Register one identical task for each queue: an app's workers serve the queues of its tasks."""
    for queue in sorted(queues) or ["default"]:
        app.task(name=f"django.{queue}", queue=queue, max_attempts=max_attempts, timeout=timeout)(run_task)


def run_task(
    path: str, backend: str, args: list[Any], kwargs: dict[str, Any], priority: int = 0, result_id: str = ""
) -> Executed:
    """Run the Django task at `path` as Django's own backends do: send signals around it, close stale database
    connections.
    """
    from tenure.integrations.django.backend import Call, shown_result, task_of

    job = current_job()
    call = Call(path, backend, args, kwargs, priority, result_id)
    try:
        task: Task = task_of(call, job.queue or "default")
    except ImportError as exc:
        raise Dead(f"there is no task {path}: {exc}") from None
    connected = task.get_backend()
    queue = connected.app.store.queue(job.queue, job.tenant)
    found = queue.get(job.id)
    if found is None:
        raise InvalidArgument(f"job {job.id} was removed while it ran")
    result: TaskResult = shown_result(queue, found, running=True)
    close_old_connections()
    try:
        task_started.send(type(connected), task_result=result)
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        value = normalize_json(task.call(*context, *args, **kwargs))
    except BaseException as exc:
        if job.attempt >= job.max_attempts:  # otherwise it is retried, and has not finished
            _finish(connected, result, TaskResultStatus.FAILED, exc)
        raise
    finally:
        close_old_connections()
    object.__setattr__(result, "_return_value", value)
    _finish(connected, result, TaskResultStatus.SUCCESSFUL)
    return Executed(value)


def _finish(backend: Any, result: TaskResult, status: TaskResultStatus, error: BaseException | None = None) -> None:
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)
    if error is not None:
        kind = type(error)
        result.errors.append(
            TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=error_text(error))
        )
    task_finished.send(type(backend), task_result=result)
