"""The backend: tasks become jobs, and jobs are shown as results.

A result's id is chosen before its job exists (the job comes with the commit, or from the outbox), and is the job's
idempotency key: `QUEUE:random`. So a task is one job however often its commit hook runs, and `get_result` finds it by
its key as long as the queue remembers that (`dedup_window`, a day).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task, TaskError, TaskResult, TaskResultStatus
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils import timezone
from django.utils.module_loading import import_string

from tenure import outbox
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.errors import InvalidArgument
from tenure.integrations.django.execution import Executed, handlers
from tenure.model.event import Event
from tenure.model.job import Job
from tenure.worker.app import App
from tenure.worker.codec import open_envelope
from tenure.worker.outcomes import split_error


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OPTIONS of a backend in TASKS."""

    #: A store's URL; None: from TENURE_STORAGE_* or tenure.toml.
    store: str | None = None
    tenant: str = "default"
    #: Attempts before a task has failed; None: the queue's policy (5).
    max_attempts: int | None = None
    #: Seconds after which a running task is ended.
    timeout: float | None = None
    #: Enqueue when the transaction commits. False: at once, even if the transaction is rolled back.
    on_commit: bool = True
    #: Write a row into the outbox, in the transaction; `tenure outbox run` enqueues the job.
    outbox: bool = False
    #: The alias in DATABASES whose transaction applies.
    database: str = "default"


class Call(msgspec.Struct, frozen=True):
    """The payload of a task's job: the arguments of `execution.run_task`."""

    path: str
    backend: str
    args: list[Any]
    kwargs: dict[str, Any]
    priority: int = 0
    result_id: str = ""


class _Shared(NamedTuple):
    alias: str
    queues: frozenset[str]
    options: Options


class BackendApp(App):
    """The app of one backend. `opener`, shared by backends on the same store, opens its store."""

    def __init__(self, opener: App, tenant: str) -> None:
        super().__init__(tenant=tenant)
        self._opener = opener

    @property
    def store(self) -> Store:
        return self._opener.store

    def use(self, store: str | Store) -> None:
        self._opener.use(store)
        self.used = self._opener.used

    def close(self) -> None:
        self._opener.close()


#: Django makes a backend for each thread; they share one app, and those of one process share one open store.
_apps: dict[_Shared, BackendApp] = {}
_openers: dict[str | None, App] = {}
_making = threading.Lock()


class TenureBackend(BaseTaskBackend):
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        try:
            self._options = msgspec.convert(self.options, Options)
        except msgspec.ValidationError as exc:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: {exc}") from None

    @property
    def app(self) -> App:
        """The app whose workers run this backend's tasks."""
        key = _Shared(self.alias, frozenset(self.queues), self._options)
        with _making:
            app = _apps.get(key)
            if app is None:
                url = self._options.store
                opener = _openers.setdefault(url, App(url))
                app = _apps[key] = BackendApp(opener, self._options.tenant)
                handlers(app, self.queues, max_attempts=self._options.max_attempts, timeout=self._options.timeout)
            return app

    # ── enqueue ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id=f"{task.queue_name}:{uuid.uuid4().hex}",
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        database = self._options.database
        if self._options.outbox:
            handler, call = self._call_of(result)
            outbox.delay(connections[database], handler, **call)
            self._say_enqueued(result)
        elif self._options.on_commit:
            transaction.on_commit(partial(self._enqueue_now, result), using=database)
        else:
            self._enqueue_now(result)
        return result

    def _call_of(self, result: TaskResult) -> tuple[Any, dict[str, Any]]:
        """Return the app's task for the result's queue, with the job's options, and its arguments."""
        task = result.task
        at = task.run_after
        if at is not None and not timezone.is_aware(at):
            at = timezone.make_aware(at)
        handler = next(iter(self.app.tasks.values())).options(
            queue=task.queue_name, at=at, priority=job_priority(task.priority), key=result.id
        )
        call = Call(task.module_path, self.alias, result.args, result.kwargs, task.priority, result.id)
        return handler, msgspec.structs.asdict(call)

    def _enqueue_now(self, result: TaskResult) -> None:
        handler, call = self._call_of(result)
        handler.delay(**call)
        self._say_enqueued(result)

    def _say_enqueued(self, result: TaskResult) -> None:
        object.__setattr__(result, "enqueued_at", timezone.now())
        task_enqueued.send(type(self), task_result=result)

    # ── read ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def get_result(self, result_id: str) -> TaskResult:
        try:
            queue = self.app.store.queue(str(result_id).rpartition(":")[0], self._options.tenant)
            job_id = queue.find(str(result_id))
        except InvalidArgument:  # not an id of this backend
            raise TaskResultDoesNotExist(result_id) from None
        job = None if job_id is None else queue.get(job_id)
        if job is None:
            raise TaskResultDoesNotExist(result_id)
        return shown_result(queue, job)


def shown_result(queue: Queue, job: Job, *, running: bool = False) -> TaskResult:
    """Return a job as Django's result. Its errors, workers and times are those of its deliveries, from the journal."""
    call = msgspec.json.decode(open_envelope(job.payload).args, type=Call)
    events = queue.timeline(job.id)
    claims = [event for event in events if event.type == "claimed"]
    result = TaskResult(
        task=task_of(call, job.queue, job.visible_at_ms > job.created_at_ms and not claims, job),
        id=call.result_id,
        status=TaskResultStatus.RUNNING if running else _STATUS.get(job.state, TaskResultStatus.FAILED),
        enqueued_at=_datetime(job.created_at_ms),
        started_at=_datetime(claims[0].time_ms) if claims else None,
        last_attempted_at=_datetime(claims[-1].time_ms) if claims else None,
        finished_at=None if job.ended_at_ms is None else _datetime(job.ended_at_ms),
        args=call.args,
        kwargs=call.kwargs,
        backend=call.backend,
        errors=[_error(event) for event in events if event.type in ("retried", "died", "expired")],
        worker_ids=[event.text or "" for event in claims],
    )
    if job.result is not None and result.status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", msgspec.json.decode(job.result, type=Executed).return_value)
    return result


_STATUS = {
    "scheduled": TaskResultStatus.READY,
    "ready": TaskResultStatus.READY,
    "leased": TaskResultStatus.RUNNING,
    "done": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
}


def task_of(call: Call, queue: str, deferred: bool = False, job: Job | None = None) -> Task:
    """Return the Django task that a call names, with the options it was enqueued with. Raises ImportError."""
    found: Task = import_string(call.path)
    run_after = _datetime(job.visible_at_ms) if deferred and job is not None else None
    return found.using(priority=call.priority, queue_name=queue, backend=call.backend, run_after=run_after)


def job_priority(priority: int) -> int:
    """Map Django's -100 … 0 … 100 to Tenure's 0 … 4 … 9."""
    return (priority + 100) * 9 // 200


def _datetime(milliseconds: int) -> datetime:
    moment = datetime.fromtimestamp(milliseconds / 1000, tz=timezone.get_default_timezone())
    from django.conf import settings

    return moment if settings.USE_TZ else timezone.make_naive(moment)


def _error(event: Event) -> TaskError:
    """Return a failed delivery as Django's error.

    A handler's error begins with its class, like a traceback's last line.
    """
    first, trace = split_error(event.text or "the worker was lost, and the lease of the task ran out")
    name = first.partition(":")[0].strip()
    if not all(part.isidentifier() for part in name.split(".")):
        name = "RuntimeError"
    path = name if "." in name else f"builtins.{name}"
    return TaskError(exception_class_path=path, traceback=trace or first)
