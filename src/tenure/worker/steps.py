"""`current_job().step`, `sleep` and `wait_for`: the next delivery does not repeat what a handler has completed.

    charged = job.step("charge", charge, order)     stored once, under the job, by the holder of its lease
    job.sleep(3600)                                 releases the lease; the next delivery continues after it
    answer = job.wait_for("approval", timeout=86400)    the same, until `queue.signal(job_id, "approval", b"...")`

A handler starts from its beginning with every delivery: stored steps return at once, code outside steps is repeated.
Neither sleeping nor waiting counts as an attempt. Both raise `Suspended` through the handler, whose `finally` clauses
run.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import msgspec

from tenure.api.queue import Queue
from tenure.clock import Clock, SystemClock
from tenure.errors import InvalidArgument, WaitTimeout
from tenure.model.durations import Duration, duration_ms
from tenure.model.lease import Delivery
from tenure.model.step import Step
from tenure.worker.extra_types import ExtraTypes

P = ParamSpec("P")
T = TypeVar("T")

#: The length of a wait without a timeout: longer than any store is kept.
_FOREVER_MS = 50 * 365 * 86_400_000
#: Prefix of the names of steps that `sleep` and `wait_for` store.
_RESERVED_PREFIX = "tenure."
_NO_TYPES = ExtraTypes()
_SYSTEM_CLOCK = SystemClock()


class Suspended(BaseException):
    """Leaves a handler that sleeps or waits; its job is released.

    Not an `Exception`, so `except Exception` does not catch it.
    """

    def __init__(self, delay_ms: int, until_signal: str | None = None) -> None:
        self.delay_ms = delay_ms
        self.until_signal = until_signal
        super().__init__(f"waits for the signal {until_signal!r}" if until_signal else f"sleeps {delay_ms / 1000:g} s")


class StepSource(Protocol):
    """The storage of a job's steps."""

    def load(self) -> list[Step]: ...

    def record(self, name: str, value: bytes) -> bytes:
        """Raises LeaseLost, TooLarge."""


class QueueSteps:
    """The steps of a delivery, in its queue."""

    def __init__(self, queue: Queue, delivery: Delivery) -> None:
        self._queue, self._delivery = queue, delivery

    def load(self) -> list[Step]:
        return self._queue.steps(self._delivery)

    def record(self, name: str, value: bytes) -> bytes:
        return self._queue.record_step(self._delivery, name, value)


class NoSteps:
    """For a plain call, or one of an app in inline mode: there is no job to store steps under."""

    def load(self) -> list[Step]:
        return []

    def record(self, name: str, value: bytes) -> bytes:
        return value


class JobSteps:
    """The steps of one delivery, read when first needed."""

    def __init__(
        self, job_id: str, source: StepSource, types: ExtraTypes | None = None, clock: Clock | None = None
    ) -> None:
        self._id = job_id
        self._source = source
        self._types = _NO_TYPES if types is None else types
        self._clock = _SYSTEM_CLOCK if clock is None else clock
        self._found: dict[tuple[str, str], bytes] | None = None
        self._sleeps = 0

    def step(self, name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the function returned when it was first called for this job, in this delivery or an earlier one.

        Its result is stored as JSON and decoded by the function's annotation, so both deliveries get the same. Raises
        what the function raises, InvalidArgument for a result that JSON cannot express, LeaseLost, TooLarge.
        """
        if name.startswith(_RESERVED_PREFIX):
            raise InvalidArgument(f"the name of a step must not begin with {_RESERVED_PREFIX!r}")
        stored = self._get("step", name)
        if stored is None:
            stored = self._record(name, self._encode(name, function(*args, **kwargs)))
        result: T = self._decode(stored, _result_hint(function))
        return result

    async def step_async(self, name: str, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """As `step`, for a function or a coroutine function."""
        if name.startswith(_RESERVED_PREFIX):
            raise InvalidArgument(f"the name of a step must not begin with {_RESERVED_PREFIX!r}")
        stored = await asyncio.to_thread(self._get, "step", name)
        if stored is None:
            result = function(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            stored = await asyncio.to_thread(self._record, name, self._encode(name, result))
        return self._decode(stored, _result_hint(function))

    def sleep(self, duration: Duration) -> None:
        """Return once the time has passed since this line was first reached, by this delivery or an earlier one."""
        left = self._left_ms(f"sleep {self._next_sleep()}", duration)
        if left > 0:
            raise Suspended(left)

    def wait_for(self, signal: str, timeout: Duration | None = None, as_type: Any = bytes) -> Any:
        """Wait for a signal and return its payload: bytes, or (with `as_type`) JSON decoded as that type.

        Raises WaitTimeout once the time has passed since this line was first reached.
        """
        found = self._get("signal", signal)
        if found is not None:
            return found if as_type is bytes else self._decode(found, as_type)
        if isinstance(self._source, NoSteps):
            raise InvalidArgument("there is no job to wait for a signal: the task was called here, without a queue")
        if timeout is None:
            raise Suspended(_FOREVER_MS, signal)
        left = self._left_ms(f"wait {signal}", timeout)
        if left <= 0:
            raise WaitTimeout(self._id, duration_ms("timeout", timeout) / 1000)
        raise Suspended(left, signal)

    def _next_sleep(self) -> int:
        self._sleeps += 1
        return self._sleeps

    def _left_ms(self, name: str, duration: Duration) -> int:
        """Return the milliseconds left of a duration, which began with the first call for this name."""
        wanted, now = duration_ms("duration", duration), self._clock.wall_ms()
        if isinstance(self._source, NoSteps):
            return 0
        stored = self._get("step", _RESERVED_PREFIX + name)
        if stored is None:
            stored = self._record(_RESERVED_PREFIX + name, msgspec.json.encode(now + wanted))
        until: int = msgspec.json.decode(stored, type=int)
        return until - now

    def _get(self, kind: str, name: str) -> bytes | None:
        if self._found is None:
            self._found = {(step.kind, step.name): step.value for step in self._source.load()}
        return self._found.get((kind, name))

    def _record(self, name: str, value: bytes) -> bytes:
        assert self._found is not None
        stored = self._found["step", name] = self._source.record(name, value)
        return stored

    def _encode(self, name: str, value: object) -> bytes:
        try:
            return self._types.json(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise InvalidArgument(f"step {name!r}: its result cannot be kept: {exc}") from None

    def _decode(self, stored: bytes, hint: Any) -> Any:
        try:
            return msgspec.json.decode(stored, type=hint, dec_hook=self._types.decode)
        except (msgspec.DecodeError, ValueError, TypeError) as exc:
            raise InvalidArgument(f"the stored value is not a {hint}: {exc}") from None


class AsyncSteps:
    """`current_job().aio`: the same verbs, awaited, for `async def` handlers."""

    def __init__(self, steps: JobSteps) -> None:
        self._sync = steps

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    async def step(self, name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def step(self, name: str, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """As `JobSteps.step`; the function may be `async def`."""
        return await self._sync.step_async(name, function, *args, **kwargs)

    async def sleep(self, duration: Duration) -> None:
        await asyncio.to_thread(self._sync.sleep, duration)

    @overload
    async def wait_for(self, signal: str, timeout: Duration | None = None) -> bytes: ...

    @overload
    async def wait_for(self, signal: str, timeout: Duration | None = None, *, as_type: type[T]) -> T: ...

    async def wait_for(self, signal: str, timeout: Duration | None = None, *, as_type: Any = bytes) -> Any:
        return await asyncio.to_thread(self._sync.wait_for, signal, timeout, as_type)


def _result_hint(function: Callable[..., Any]) -> Any:
    """Return the annotated result type of a function; Any if there is none or it cannot be read."""
    try:
        hint = typing.get_type_hints(function, include_extras=True).get("return", Any)
        msgspec.json.Decoder(hint)
    except (NameError, AttributeError, TypeError):
        return Any
    return hint
