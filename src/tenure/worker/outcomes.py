"""What an exception means for its job: decided here, purely, and written by the settler.

returned           ack, with the result
Dead, dead_on      fail: dead at once
Retry              nack, after the time it names
retry_on given, and the exception is none of them      fail
anything else      nack: the task's backoff, else the queue's policy, until max_attempts
"""

from __future__ import annotations

import random
import traceback
from types import TracebackType
from typing import Literal

import msgspec

from tenure.model.durations import Duration, duration_ms
from tenure.model.job import MAX_ERROR_CHARS
from tenure.model.retry import Backoff

ExceptionTypes = tuple[type[BaseException], ...]
Verb = Literal["ack", "nack", "fail", "release"]

_CALLERS = ("tenure.worker.", "asyncio.", "concurrent.futures.")
_CUT = "\n… (cut) …\n"


class Retry(Exception):
    """Raised by a handler: try again, after `after` seconds if said, else as task and queue have it."""

    def __init__(self, reason: str = "asked to be retried", *, after: Duration | None = None) -> None:
        self.after_ms = None if after is None else duration_ms("after", after)
        super().__init__(reason)


class Dead(Exception):
    """Raised by a handler: no attempt will ever succeed. The job is dead at once."""

    def __init__(self, reason: str = "declared dead") -> None:
        super().__init__(reason)


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of one run, in the form it is settled in. Crosses the pipe of a process pool as MessagePack."""

    verb: Verb
    result: bytes | None = None
    error: str | None = None
    delay_ms: int | None = None


DONE = Outcome("ack")


class Rules(msgspec.Struct, frozen=True):
    """A task's own rules for failures."""

    retry_on: ExceptionTypes | None = None
    dead_on: ExceptionTypes = ()
    backoff: Backoff | None = None

    def after(self, error: BaseException, attempt: int, roll: float | None = None) -> Outcome:
        """The outcome of a run that raised."""
        text = told(error)
        if isinstance(error, Retry):
            delay = error.after_ms
            return Outcome("nack", None, text, self._delay(attempt, roll) if delay is None else delay)
        if isinstance(error, (Dead, *self.dead_on)):
            return Outcome("fail", None, text)
        if self.retry_on is not None and not isinstance(error, self.retry_on):
            return Outcome("fail", None, text)
        return Outcome("nack", None, text, self._delay(attempt, roll))

    def _delay(self, attempt: int, roll: float | None) -> int | None:
        """None: the queue's policy decides."""
        if self.backoff is None:
            return None
        return self.backoff.delay_ms(attempt, random.random() if roll is None else roll)


def told(error: BaseException) -> str:
    """The error in one line, then where it came from: cut in the middle to what a store keeps of an error."""
    summary = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, (Retry, Dead)) and error.__cause__ is None:
        return _cut(str(error) or summary, MAX_ERROR_CHARS)  # said on purpose: where is no news
    trace = "".join(traceback.format_exception(type(error), error, _own(error.__traceback__))).strip()
    return _cut(f"{summary}\n\n{trace}", MAX_ERROR_CHARS)


def _own(trace: TracebackType | None) -> TracebackType | None:
    """The trace from the handler on: the frames that called it say nothing."""
    first = trace
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_CALLERS):
        trace = trace.tb_next
    return first if trace is None else trace


def _cut(text: str, limit: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate must not cost the verdict
    if len(text) <= limit:
        return text
    half = (limit - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]
