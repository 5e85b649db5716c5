"""What an exception means for its job: decided here, without side effects, and written by the settler.

returned           ack, with the result
Dead, dead_on      fail: dead at once
Retry              nack, after the time it names
Snooze             release, for the time it names: the attempt is not counted
Suspended          the same, or until a signal arrives (`job.sleep`, `job.wait_for`)
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
from tenure.model.job import MAX_ERROR_CHARS, NewJob
from tenure.model.lease import Proof, Settle
from tenure.model.request import follow_ups
from tenure.model.retry import Backoff
from tenure.worker.steps import Suspended

ExceptionTypes = tuple[type[BaseException], ...]
Verb = Literal["ack", "nack", "fail", "release"]

_CALLERS = ("tenure.worker.", "asyncio.", "concurrent.futures.")
_ELLIPSIS = "\n… (cut) …\n"


class Retry(Exception):
    """Raised by a handler: retry after `after` seconds, by default after the task's backoff or the queue's policy."""

    def __init__(self, reason: str = "asked to be retried", *, after: Duration | None = None) -> None:
        self.after_ms = None if after is None else duration_ms("after", after)
        super().__init__(reason)


class Dead(Exception):
    """Raised by a handler: no attempt will ever succeed. The job is dead at once."""

    def __init__(self, reason: str = "declared dead") -> None:
        super().__init__(reason)


class Snooze(Exception):
    """Raised by a handler: not now. The job is ready again after `after` seconds, and the attempt is not counted."""

    def __init__(self, after: Duration) -> None:
        self.after_ms = duration_ms("after", after)
        super().__init__(f"snoozed for {after}")


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one run, as it will be settled. A process pool's child sends it as MessagePack."""

    verb: Verb
    result: bytes | None = None
    error: str | None = None
    delay_ms: int | None = None
    #: For ack: jobs to enqueue in the same transaction.
    then: tuple[NewJob, ...] | None = None
    #: For release: this signal makes the job ready before the delay has passed.
    until_signal: str | None = None

    def settle(self, proof: Proof) -> Settle:
        """Return the request that settles a delivery with this outcome."""
        return Settle(
            self.verb, proof, self.result, self.error, self.delay_ms, follow_ups(self.then), self.until_signal
        )


DONE = Outcome("ack")


class FailureRules(msgspec.Struct, frozen=True):
    """A task's own rules for failures."""

    retry_on: ExceptionTypes | None = None
    dead_on: ExceptionTypes = ()
    backoff: Backoff | None = None

    def outcome(self, error: BaseException, attempt: int, roll: float | None = None) -> Outcome:
        """Return the outcome of a run that raised `error`. Never raises, even if the exception's own methods do."""
        try:
            return self._decide(error, attempt, roll)
        except BaseException as exc:  # noqa: BLE001 - the text or class of the exception cannot be read
            return Outcome("nack", None, f"{type(error).__name__} (its text cannot be read: {type(exc).__name__})")

    def _decide(self, error: BaseException, attempt: int, roll: float | None) -> Outcome:
        if isinstance(error, Snooze):
            return Outcome("release", delay_ms=error.after_ms)
        if isinstance(error, Suspended):
            return Outcome("release", delay_ms=error.delay_ms, until_signal=error.until_signal)
        text = error_text(error)
        if isinstance(error, Retry):
            delay = error.after_ms
            return Outcome("nack", None, text, self._delay(attempt, roll) if delay is None else delay)
        if isinstance(error, (Dead, *self.dead_on)):
            return Outcome("fail", None, text)
        if self.retry_on is not None and not isinstance(error, self.retry_on):
            return Outcome("fail", None, text)
        return Outcome("nack", None, text, self._delay(attempt, roll))

    def _delay(self, attempt: int, roll: float | None) -> int | None:
        """Return the delay; None: the queue's policy decides."""
        if self.backoff is None:
            return None
        return self.backoff.delay_ms(attempt, random.random() if roll is None else roll)


def error_text(error: BaseException) -> str:
    """Return the error in one line, an empty line, and its traceback, shortened in the middle to the stored length."""
    summary = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, (Retry, Dead)) and error.__cause__ is None:
        return _shorten(str(error) or summary, MAX_ERROR_CHARS)  # raised on purpose: its traceback is not useful
    trace = "".join(traceback.format_exception(type(error), error, _from_handler(error.__traceback__))).strip()
    return _shorten(f"{summary}\n\n{trace}", MAX_ERROR_CHARS)


def split_error(text: str) -> tuple[str, str | None]:
    """Split the result of `error_text`: the one line, and the traceback if there is one."""
    first, _, rest = text.partition("\n")
    return first, rest.strip("\n") or None


def _from_handler(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the worker's own frames before the handler."""
    first = trace
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_CALLERS):
        trace = trace.tb_next
    return first if trace is None else trace


def _shorten(text: str, limit: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate must not prevent settling
    if len(text) <= limit:
        return text
    half = (limit - len(_ELLIPSIS)) // 2
    return text[:half] + _ELLIPSIS + text[-half:]
