"""A task: a function whose calls can be enqueued as jobs."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

import msgspec

from tenure.api.queue import Queue
from tenure.errors import InvalidArgument
from tenure.model.durations import Duration, Moment, duration_ms
from tenure.model.job import NewJob
from tenure.model.rate import Rate
from tenure.protocol.tracing import tracing
from tenure.worker import app_loader
from tenure.worker.codec import Codec, Encoding, is_json, open_envelope
from tenure.worker.context import CurrentJob, CurrentJobScope, running_job
from tenure.worker.flows import Signature
from tenure.worker.handles import AsyncHandle, Handle, run_inline
from tenure.worker.outcomes import FailureRules
from tenure.worker.tracing import inject

if TYPE_CHECKING:
    from tenure.worker.app import App

P = ParamSpec("P")
C = TypeVar("C")  # the result of a plain call: R, or a coroutine of it
R = TypeVar("R")  # the handler's result

Unique = bool | Callable[..., str]
_codec_lock = threading.Lock()


class Options(msgspec.Struct, frozen=True):
    """How a call is enqueued. None: the task's value, then the queue's."""

    queue: str | None = None
    tenant: str | None = None
    delay: Duration | None = None
    at: Moment | None = None
    priority: int = 0
    key: str | None = None
    max_attempts: int | None = None
    ttl: Duration | None = None
    headers: Mapping[str, str] | None = None
    #: A group's name, or a function of the call's arguments that returns one.
    group: str | Callable[..., str] | None = None


_OPTION_NAMES = frozenset(Options.__struct_fields__)


class Task(Generic[P, C, R]):
    """A function that can also run elsewhere. Calling it runs it here; `delay` enqueues the call."""

    def __init__(
        self,
        app: App,
        function: Callable[P, C],
        name: str,
        options: Options,
        *,
        encoding: Encoding,
        timeout: Duration | None = None,
        rules: FailureRules | None = None,
        unique: Unique = False,
        rate: Rate | str | None = None,
    ) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.encoding = encoding
        self.rules = FailureRules() if rules is None else rules
        #: The rate at which its jobs may be claimed, over all workers. Stored in its queue's policy.
        self.rate = Rate.parse(rate) if isinstance(rate, str) else rate
        self.timeout_ms = None if timeout is None else duration_ms("timeout", timeout, minimum_ms=1)
        self.is_async = inspect.iscoroutinefunction(function)
        self._options = options
        self._unique = unique
        self._codec: Codec | None = None
        functools.update_wrapper(self, function)

    @property
    def queue(self) -> str:
        return self._options.queue or self.app.queue

    @property
    def tenant(self) -> str:
        return self._options.tenant or self.app.tenant

    @property
    def codec(self) -> Codec:
        """Raises InvalidArgument if the function's types cannot be sent."""
        if self._codec is None:
            # Under a lock: msgspec crashes if two threads inspect the fields of one struct at once.
            with _codec_lock:
                self._codec = Codec(self.function, self.name, self.encoding, self.app.types)
        return self._codec

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    # ── calls in this process ────────────────────────────────────────────────────────────────────────────────────────

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Run the function here. `current_job()` is then a stand-in, unless a job is already running."""
        if running_job() is not None:
            return self.function(*args, **kwargs)
        if self.is_async:
            return self._await_here(self.function(*args, **kwargs))  # type: ignore[return-value]  # C is a coroutine
        with CurrentJobScope(CurrentJob(self.name)):
            return self.function(*args, **kwargs)

    async def _await_here(self, call: Any) -> Any:
        with CurrentJobScope(CurrentJob(self.name)):
            return await call

    # ── calls in a worker ────────────────────────────────────────────────────────────────────────────────────────────

    def options(
        self,
        *,
        queue: str | None = None,
        tenant: str | None = None,
        delay: Duration | None = None,
        at: Moment | None = None,
        priority: int | None = None,
        key: str | None = None,
        max_attempts: int | None = None,
        ttl: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        group: str | Callable[..., str] | None = None,
    ) -> Task[P, C, R]:
        """Return the same task with other options: `send.options(delay=30, priority=9).delay(...)`."""
        given = {name: value for name, value in locals().items() if name in _OPTION_NAMES and value is not None}
        if "delay" in given or "at" in given:
            given = {"delay": None, "at": None} | given  # each replaces the other
        twin = copy.copy(self)
        twin._options = msgspec.structs.replace(self._options, **given)
        return twin

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue the call. Raises InvalidArgument, with nothing enqueued, for unencodable arguments."""
        payload = self.codec.encode_call(args, kwargs)
        if self.app.inline:
            return run_inline(self, payload)
        job = self._job(payload, args, kwargs)
        queue = self._queue()
        added = queue.enqueue(job)
        return Handle(self, queue, added.id, added.duplicate)

    enqueue = delay

    def s(self, *args: Any, **kwargs: Any) -> Signature[R]:
        """Return the call as a step of a flow: see `chain`, `group` and `Flow`. Earlier steps supply missing arguments.

        Raises TypeError for arguments that the function does not take.
        """
        return Signature(self, args, kwargs)

    def step_job(self, payload: bytes, given: Mapping[str, Any], *, waits: bool) -> NewJob:
        """Return the job of a step of a flow, whose call is already encoded. `waits`: it waits for other steps.

        Raises InvalidArgument for a step that waits and has a key: the job that holds the key may not wait for them.
        """
        if waits and (self._unique or self._options.key is not None):
            raise InvalidArgument(f"task {self.name}: a step that waits for others cannot be unique or have a key")
        if waits and callable(self._options.group):
            raise InvalidArgument(
                f"task {self.name}: the group of a step that waits for others is not known yet: "
                f'name it, with {self.name}.options(group="...").s(...)'
            )
        job = self._job(payload, (), given)
        return job if isinstance(job, NewJob) else NewJob(job)

    def new_job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the call as a job that is not enqueued, for an outbox.

        Raises InvalidArgument for unencodable arguments.
        """
        job = self._job(self.codec.encode_call(args, kwargs), args, kwargs)
        return job if isinstance(job, NewJob) else NewJob(job)

    def map(self, calls: Iterable[Any]) -> list[Handle[R]]:
        """Enqueue many calls in one transaction: each a tuple of arguments, a dict of them, or the only argument."""
        jobs: list[bytes | NewJob] = []
        handles: list[Handle[R]] = []
        for call in calls:
            args, kwargs = _call(call)
            payload = self.codec.encode_call(args, kwargs)
            if self.app.inline:
                handles.append(run_inline(self, payload))
            else:
                jobs.append(self._job(payload, args, kwargs))
        if self.app.inline:
            return handles
        queue = self._queue()
        enqueued = queue.enqueue_many(jobs)
        return [Handle(self, queue, added.id, added.duplicate) for added in enqueued]

    def handle(self, job_id: str, queue: str | None = None) -> Handle[R]:
        """Return a handle on a job of this task that was enqueued before, perhaps by another process.

        Without `queue` it is searched in the task's queue, then in the other queues of the app's tasks.
        """
        named = None if queue is None else self.app.store.queue(queue, self.tenant)
        return Handle(self, named, job_id)

    def possible_queues(self) -> list[Queue]:
        """Return the queues where a job of this task may be, the likeliest first."""
        return [self.app.store.queue(name, self.tenant) for name in dict.fromkeys([self.queue, *self.app.queues()])]

    @property
    def aio(self) -> AsyncTask[P, R]:
        """The same verbs, awaited."""
        return AsyncTask(self)

    def enqueue_payload(
        self, payload: bytes, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Handle[R]:
        """Enqueue a call that is already encoded, for the command line and the schedule."""
        o = self._options
        group = None
        if o.group is not None:
            group = self._group(*self.codec.decode_call(open_envelope(payload).args, is_json(payload)))
        job = NewJob(
            payload, o.delay, o.at, o.priority, key or o.key, o.max_attempts, o.ttl, headers or o.headers, group=group
        )
        queue = self._queue()
        added = queue.enqueue(job)
        return Handle(self, queue, added.id, added.duplicate)

    def _queue(self) -> Queue:
        return self.app.store.queue(self.queue, self.tenant)

    def _job(self, payload: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes | NewJob:
        o = self._options
        headers, key = o.headers, o.key
        if tracing():
            headers = inject(headers)
        if key is None and self._unique:
            key = self._unique_key(payload, args, kwargs)
        group = self._group(args, kwargs)
        if (o.delay, o.at, o.priority, key, o.max_attempts, o.ttl, headers, group) == _NOTHING:
            return payload
        # A key made by `unique` is held by the first call with it; later ones are its duplicates.
        on_conflict: Literal["error", "keep"] = "keep" if self._unique and o.key is None else "error"
        return NewJob(payload, o.delay, o.at, o.priority, key, o.max_attempts, o.ttl, headers, on_conflict, group=group)

    def _group(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return the group of a call's job. The enqueue refuses a function's result that is no name."""
        group = self._options.group
        return group(*args, **kwargs) if callable(group) else group

    def _unique_key(self, payload: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if callable(self._unique):
            part: object = self._unique(*args, **kwargs)
            if not isinstance(part, str) or not part:
                raise InvalidArgument(f"task {self.name}: unique= must return a non-empty string, not {part!r}")
        else:
            part = blake2b(payload, digest_size=16).hexdigest()
        return f"{self.name}:{part}"


_NOTHING = (None, None, 0, None, None, None, None, None)


class AsyncTask(Generic[P, R]):
    """`task.aio`: enqueue without blocking the event loop."""

    def __init__(self, task: Task[P, Any, R]) -> None:
        self._sync = task

    async def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncHandle[R]:
        return AsyncHandle(await self._sync.app.threads.run(functools.partial(self._sync.delay, *args, **kwargs)))

    enqueue = delay

    async def map(self, calls: Iterable[Any]) -> list[AsyncHandle[R]]:
        handles = await self._sync.app.threads.run(functools.partial(self._sync.map, calls))
        return [AsyncHandle(handle) for handle in handles]

    def handle(self, job_id: str, queue: str | None = None) -> AsyncHandle[R]:
        return AsyncHandle(self._sync.handle(job_id, queue))


def _call(call: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(call, tuple):
        return call, {}
    if isinstance(call, dict):
        return (), call
    return (call,), {}


def task_name(function: Callable[..., Any]) -> str:
    """Return `tasks.send`, also if `tasks.py` is the program itself: the worker will import it by its name."""
    module = function.__module__
    if module in ("__main__", app_loader.CHILD_MAIN):
        spec = getattr(sys.modules.get(module), "__spec__", None)
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        module = spec.name if spec is not None else Path(file).stem or module
    return f"{module}.{function.__qualname__}".replace(".<locals>", "")
