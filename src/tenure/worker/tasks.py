"""A task: a function whose calls can be enqueued, and what such a call becomes."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from tenure.api.queue import Queue
from tenure.errors import InvalidArgument, KeyConflict
from tenure.model.durations import Duration, Moment, duration_ms
from tenure.model.job import Enqueued, NewJob
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
C = TypeVar("C")  # what a plain call returns: R, or a coroutine of it
R = TypeVar("R")  # what the handler's result is

Unique = bool | Callable[..., str]
_codec_lock = threading.Lock()


class Options(msgspec.Struct, frozen=True):
    """How a call is enqueued. None: the task's, then the queue's."""

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
        #: How often its jobs may be handed out, over all workers. Kept by its queue's policy.
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
            # One at a time: msgspec crashes if two threads work out the fields of one struct at once.
            with _codec_lock:
                self._codec = Codec(self.function, self.name, self.encoding, self.app.types)
        return self._codec

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    # ── here ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Run it here, as the function it is. `current_job()` is then a stand-in, unless a job is running already."""
        if running_job() is not None:
            return self.function(*args, **kwargs)
        if self.is_async:
            return self._await_here(self.function(*args, **kwargs))  # type: ignore[return-value]  # C is a coroutine
        with CurrentJobScope(CurrentJob(self.name)):
            return self.function(*args, **kwargs)

    async def _await_here(self, call: Any) -> Any:
        with CurrentJobScope(CurrentJob(self.name)):
            return await call

    # ── elsewhere ────────────────────────────────────────────────────────────────────────────────────────────────────

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
        """The same task, enqueued otherwise: `send.options(delay=30, priority=9).delay(...)`."""
        given = {name: value for name, value in locals().items() if name in _OPTION_NAMES and value is not None}
        if "delay" in given or "at" in given:
            given = {"delay": None, "at": None} | given  # the one replaces the other
        twin = copy.copy(self)
        twin._options = msgspec.structs.replace(self._options, **given)
        return twin

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue the call. Raises InvalidArgument, with nothing enqueued, for what cannot be sent."""
        payload = self.codec.encode_call(args, kwargs)
        if self.app.inline:
            return run_inline(self, payload)
        job = self._job(payload, args, kwargs)
        queue = self._queue()
        added = self._enqueue_first(queue, [job])[0] if self._first_job_wins else queue.enqueue(job)
        return Handle(self, queue, added.id, added.duplicate)

    enqueue = delay

    def s(self, *args: Any, **kwargs: Any) -> Signature[R]:
        """The call as a step of a flow: see `chain`, `group` and `Flow`. Steps before it give the arguments that are missing.

        Raises TypeError for arguments that the function does not take.
        """
        return Signature(self, args, kwargs)

    def step_job(self, payload: bytes, given: Mapping[str, Any], *, waits: bool) -> NewJob:
        """The job of a step of a flow, whose call is encoded already. `waits`: for other steps.

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
        job = job if isinstance(job, NewJob) else NewJob(job)
        return msgspec.structs.replace(job, on_conflict="keep") if self._first_job_wins else job

    def new_job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The call as a job that is not enqueued: for an outbox. Raises InvalidArgument for what cannot be sent."""
        job = self._job(self.codec.encode_call(args, kwargs), args, kwargs)
        job = job if isinstance(job, NewJob) else NewJob(job)
        return msgspec.structs.replace(job, on_conflict="keep") if self._first_job_wins else job

    def map(self, calls: Iterable[Any]) -> list[Handle[R]]:
        """Many calls in one transaction: each a tuple of arguments, a dict of them, or the only argument."""
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
        enqueued = self._enqueue_first(queue, jobs) if self._first_job_wins else queue.enqueue_many(jobs)
        return [Handle(self, queue, added.id, added.duplicate) for added in enqueued]

    def handle(self, job_id: str, queue: str | None = None) -> Handle[R]:
        """A handle on a job of this task that was enqueued before, perhaps by another process.

        Without `queue` it is looked for in the task's queue, then in the other queues of the app's tasks.
        """
        named = None if queue is None else self.app.store.queue(queue, self.tenant)
        return Handle(self, named, job_id)

    def possible_queues(self) -> list[Queue]:
        """Where a job of this task may be, the likeliest first."""
        return [self.app.store.queue(name, self.tenant) for name in dict.fromkeys([self.queue, *self.app.queues()])]

    @property
    def aio(self) -> AsyncTask[P, R]:
        """The same verbs, awaited."""
        return AsyncTask(self)

    def enqueue_payload(
        self, payload: bytes, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Handle[R]:
        """Enqueue a call that is encoded already: for the command line and the schedule."""
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

    @property
    def _first_job_wins(self) -> bool:
        """Whether the key is ours, made by `unique`: a later call with that key is the first one's duplicate."""
        return bool(self._unique) and self._options.key is None

    @staticmethod
    def _enqueue_first(queue: Queue, jobs: list[bytes | NewJob]) -> list[Enqueued]:
        """Enqueue jobs with unique keys; one whose key is held already, with whatever arguments, is a duplicate.

        To be replaced by `on_conflict="keep"` once a store takes it. Until then each call leaves out the job that the
        store named in its KeyConflict, under which nothing was written, and sends the rest again.
        """
        by_key: dict[str | None, NewJob] = {}
        for job in jobs:
            assert isinstance(job, NewJob)
            by_key.setdefault(job.key, job)
        held: dict[str | None, Enqueued] = {}
        while waiting := [job for key, job in by_key.items() if key not in held]:
            try:
                added = queue.enqueue_many(waiting)
            except KeyConflict as exc:
                held[waiting[exc.index].key] = Enqueued(exc.existing, True)
            else:
                held |= {job.key: one for job, one in zip(waiting, added, strict=True)}
        answers = []
        for job in jobs:
            assert isinstance(job, NewJob)
            one = held[job.key]
            answers.append(one if job is by_key[job.key] else Enqueued(one.id, True))
        return answers

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
        return NewJob(payload, o.delay, o.at, o.priority, key, o.max_attempts, o.ttl, headers, group=group)

    def _group(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The group of a call's job. What a function returns that is no name is refused with the enqueue."""
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
    """`task.aio`: enqueue without holding up the event loop."""

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
    """`tasks.send`, also where `tasks.py` is the program itself: the worker will import it by its name."""
    module = function.__module__
    if module in ("__main__", app_loader.CHILD_MAIN):
        spec = getattr(sys.modules.get(module), "__spec__", None)
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        module = spec.name if spec is not None else Path(file).stem or module
    return f"{module}.{function.__qualname__}".replace(".<locals>", "")
