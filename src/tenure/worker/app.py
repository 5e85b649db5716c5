"""`App`: a store, its tasks, and their schedule. It opens the store on first use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from tenure.api import opening
from tenure.api.store import Store
from tenure.clock import Clock, SystemClock
from tenure.errors import InvalidArgument
from tenure.model.durations import Duration
from tenure.model.names import DEFAULT_TENANT, queue_name
from tenure.model.rate import Rate
from tenure.model.retry import Backoff, Policy
from tenure.model.schedule import Missed
from tenure.process import Layer, closed_at_exit
from tenure.worker.codec import ENCODINGS, Encoding
from tenure.worker.extra_types import ExtraTypes
from tenure.worker.flow_handles import FlowHandle, flow_handle
from tenure.worker.middleware import Middleware
from tenure.worker.outcomes import FailureRules
from tenure.worker.periodic import Periodic
from tenure.worker.schedules import Schedules
from tenure.worker.tasks import Options, Task, Unique, task_name

if TYPE_CHECKING:
    from tenure.api.aio import _Threads
    from tenure.worker.runner import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
AnyTask = Task[Any, Any, Any]


class App:
    """Tasks on a store.

    `store` is a URL, an open `Store`, or None for the configured one; `options` go to `tenure.open`. `inline` runs
    every call where it is enqueued. `queues="*"` makes its workers claim from any queue, in turn. A worker sets
    `policies` on their queues when it starts. `middleware` runs around every handler.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store | None = None,
        *,
        queue: str = "default",
        queues: Literal["*"] | None = None,
        tenant: str = DEFAULT_TENANT,
        encoding: Encoding = "json",
        inline: bool = False,
        clock: Clock | None = None,
        policies: Mapping[str, Policy] | None = None,
        middleware: Iterable[Middleware] = (),
        **options: Any,
    ) -> None:
        queue_name(queue, tenant)
        self.queue = queue
        if queues not in (None, "*"):
            raise InvalidArgument(f'queues={queues!r}: "*", or what a worker is given')
        #: The default queues of its workers: those of its tasks (None), or any ("*").
        self.served = queues
        self.tenant = tenant
        self.encoding = _encoding(encoding)
        self.inline = inline
        self.clock: Clock = SystemClock() if clock is None else clock
        self.policies = dict(policies or {})
        self.middleware: list[Middleware] = list(middleware)
        self.types = ExtraTypes()
        self.tasks: dict[str, AnyTask] = {}
        self.schedule: dict[str, Periodic] = {}
        self._url = None if isinstance(store, Store) else None if store is None else os.fspath(store)
        self._given = store if isinstance(store, Store) else None
        self._options = options
        #: The URL given to `use`: the processes of a pool, which create the app again, use it, too.
        self.used: str | None = None
        self._opened: Store | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    # ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def store(self) -> Store:
        """The store, opened on first use, and again in a forked child, which cannot use its parent's."""
        if self._given is not None:
            return self._given
        opened = self._opened
        if opened is not None and self._owner == os.getpid():
            return opened
        with self._lock:
            if self._owner != os.getpid():
                self._opened, self._owner = None, os.getpid()
            if self._opened is None:
                self._opened = opening.open(self._url, clock=self.clock, **self._options)
                closed_at_exit(self, Layer.APPLICATION)
            return self._opened

    def use(self, store: str | Store) -> None:
        """Use another store, for command lines and tests. Closes the one that this app opened."""
        self.close()
        self._given = store if isinstance(store, Store) else None
        self._url = self.used = None if isinstance(store, Store) else store

    def close(self) -> None:
        """Close the store if this app opened it. The next use opens it again."""
        opened, self._opened = self._opened, None
        if opened is not None and self._owner == os.getpid():
            opened.close()

    def close_at_exit(self) -> None:
        self.close()

    def __enter__(self) -> App:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def threads(self) -> _Threads:
        """The threads that run awaited verbs, as in the asyncio adapter."""
        from tenure.api.aio import _Threads

        return _Threads(16, 64)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        ttl: Duration | None = None,
        group: str | Callable[..., str] | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None,
        dead_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        backoff: Backoff | None = None,
        unique: Unique = False,
        rate: Rate | str | None = None,
        encoding: Encoding | None = None,
    ) -> _Decorator: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function a task.

        `max_attempts`, `priority`, `ttl` and `group` apply to its jobs. `group` may be a function of the call's
        arguments, such as `lambda customer, month: customer`; the groups of a queue take turns. `timeout` ends a
        handler that takes longer. On failure: exceptions in `dead_on` make the job dead at once, and with `retry_on` so
        do all others than those; `backoff` (default: the queue's policy) sets the delay of retries. `unique=True` makes
        one job of equal calls, `unique=function` of calls for which the function returns the same string. `rate`
        ("10/s", "100/m") holds over all workers, and needs a queue for this task alone. `name` defaults to the module's
        and the function's.
        """
        decorate = _Decorator(self, options)
        return decorate if function is None else decorate(function)

    def _register(self, function: Callable[..., Any], options: Mapping[str, Any]) -> AnyTask:
        rest = dict(options)
        name = rest.pop("name", None) or task_name(function)
        if name in self.tasks:
            raise InvalidArgument(f"there are two tasks named {name!r}: give one of them a name=")
        rules = FailureRules(
            _types(rest.pop("retry_on", None)), _types(rest.pop("dead_on", ())) or (), rest.pop("backoff", None)
        )
        encoding = _encoding(rest.pop("encoding", None) or self.encoding)
        timeout, unique = rest.pop("timeout", None), rest.pop("unique", False)
        rate = rest.pop("rate", None)
        if rate is not None and rest.get("queue") is None:
            raise InvalidArgument(f"task {name}: rate= is kept by the task's queue: give it a queue= of its own")
        if rest.get("queue") is not None:
            queue_name(rest["queue"], self.tenant)
        unknown = set(rest) - {"queue", "max_attempts", "priority", "ttl", "group"}
        if unknown:
            raise TypeError(f"task() got an unexpected argument {sorted(unknown)[0]!r}")
        task: AnyTask = Task(
            self, function, name, Options(**rest), encoding=encoding, timeout=timeout, rules=rules, unique=unique,
            rate=rate,
        )  # fmt: skip
        self.tasks[name] = task
        return task

    def find(self, name: str) -> AnyTask:
        """Return a task by its name, or by the end of it if that is unambiguous. Raises InvalidArgument."""
        if name in self.tasks:
            return self.tasks[name]
        ending = [task for full, task in self.tasks.items() if full.endswith("." + name)]
        if len(ending) == 1:
            return ending[0]
        known = ", ".join(sorted(self.tasks)) or "none"
        what = "several tasks are" if ending else "no task is"
        raise InvalidArgument(f"{what} named {name!r}. Tasks of this app: {known}")

    def flow(self, job_id: str) -> FlowHandle[Any]:
        """Return a handle on the flow that leads to a job, its last step, perhaps enqueued by another process.

        Raises NotFound. Of a flow of more than 1,000 jobs it knows those nearest to the last.
        """
        return flow_handle(self, job_id)

    def queues(self) -> list[str]:
        """Return the queues of its tasks, sorted."""
        return sorted({task.queue for task in self.tasks.values()})

    def rates(self) -> dict[str, Rate]:
        """Return the rates of tasks by queue. Raises InvalidArgument if such a queue also has another task's jobs."""
        rates = {task.queue: task.rate for task in self.tasks.values() if task.rate is not None}
        for queue in rates:
            sharing = sorted(task.name for task in self.tasks.values() if task.queue == queue)
            if len(sharing) > 1:
                raise InvalidArgument(
                    f"queue {queue!r} has the rate of one task and the jobs of several ({', '.join(sharing)}): "
                    "a task with a rate= needs a queue of its own"
                )
        return rates

    def register_type(self, kind: type[T], *, encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
        """Allow values of a class as arguments and results: `encode` converts them for sending, `decode` converts them
        back.

        Raises InvalidArgument for a class that msgspec encodes by itself.
        """
        self.types.register(kind, encode, decode)

    # ── periodic ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def periodic(
        self,
        cron: str,
        *,
        tz: str = "UTC",
        missed: Missed = "skip",
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> _PeriodicDecorator:
        """Run a task by a cron expression in a time zone; each tick is enqueued once, however many workers run.

        On a function it also makes the task (`options` are `task`'s); on a task it adds to its schedule. `missed` says
        how to treat ticks at which no worker ran: `skip`, or `catch_up`. `args` are the call's arguments.
        """
        return _PeriodicDecorator(self, cron, tz, missed, dict(args or {}), options)

    @property
    def schedules(self) -> Schedules:
        """Schedules made at run time and stored: `add`, `list`, `pause`, `resume`, `remove`, `run_now`."""
        return Schedules(self)

    def worker(self, queues: Iterable[str] | Literal["*"] | None = None, **options: Any) -> Worker:
        """Return a worker for this app: see `tenure.worker.runner.Worker`."""
        from tenure.worker.runner import Worker

        return Worker(self, queues, **options)

    def __repr__(self) -> str:
        return f"<App on {self._url or self._given or 'the configured store'}, {len(self.tasks)} tasks>"


class _Decorator:
    """The typed decorator `@app.task(...)`: keeps the function's parameters, and tells a coroutine from its result."""

    def __init__(self, app: App, options: Mapping[str, Any]) -> None:
        self._app = app
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._app._register(function, self._options)


class _PeriodicDecorator:
    def __init__(
        self, app: App, cron: str, tz: str, missed: Missed, args: dict[str, Any], options: Mapping[str, Any]
    ) -> None:
        self._app = app
        self._cron, self._tz, self._missed, self._args = cron, tz, missed, args
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Task[P, R, Any], /) -> Task[P, R, Any]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Any, /) -> Any:
        task: AnyTask
        if isinstance(function, Task):
            if self._options:
                raise TypeError("periodic() on a task takes no task options: give them to task()")
            task = function
        else:
            task = self._app._register(function, self._options)
        periodic = Periodic(task, self._cron, self._tz, self._missed, self._args)
        self._app.schedule[periodic.name] = periodic
        return task


def _encoding(encoding: Any) -> Literal["json", "msgpack"]:
    if encoding not in ENCODINGS:
        raise InvalidArgument(f"encoding={encoding!r}: json or msgpack")
    return encoding  # type: ignore[no-any-return]


def _types(given: Any) -> tuple[type[BaseException], ...] | None:
    if given is None:
        return None
    return (given,) if isinstance(given, type) else tuple(given)
