"""What an exception means for its job: decided here, without side effects, and written by the settler.

returned           ack, with the result
Dead, dead_on      fail: dead at once
Retry              nack, after the time it names
Snooze             release, for the time it names: the delivery does not count
Suspended          the same, or until a signal comes (`job.sleep`, `job.wait_for`)
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
_CUT = "\n… (cut) …\n"


class Retry(Exception):
    """Raised by a handler: try again after `after` seconds, or else by the task's backoff or the queue's policy."""

    def __init__(self, reason: str = "asked to be retried", *, after: Duration | None = None) -> None:
        self.after_ms = None if after is None else duration_ms("after", after)
        super().__init__(reason)


class Dead(Exception):
    """Raised by a handler: no attempt will ever succeed. The job is dead at once."""

    def __init__(self, reason: str = "declared dead") -> None:
        super().__init__(reason)


class Snooze(Exception):
    """Raised by a handler: not now. The job is back after `after` seconds, and the delivery does not count."""

    def __init__(self, after: Duration) -> None:
        self.after_ms = duration_ms("after", after)
        super().__init__(f"snoozed for {after}")


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of one run, in the form it is settled in. A process pool's child sends it as MessagePack."""

    verb: Verb
    result: bytes | None = None
    error: str | None = None
    delay_ms: int | None = None
    #: Of ack: jobs that are enqueued in the same transaction.
    then: tuple[NewJob, ...] | None = None
    #: Of release: ready before the delay has passed, as soon as the job has this signal.
    until_signal: str | None = None

    def settle(self, proof: Proof) -> Settle:
        """The request that settles a delivery so."""
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
        """The outcome of a run that raised `error`. Never raises itself: an exception may be built to resist."""
        try:
            return self._decide(error, attempt, roll)
        except BaseException as exc:  # noqa: BLE001 - an exception whose text or class cannot be looked at
            return Outcome("nack", None, f"{type(error).__name__} (no more can be said: {type(exc).__name__})")

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
        """None: the queue's policy decides."""
        if self.backoff is None:
            return None
        return self.backoff.delay_ms(attempt, random.random() if roll is None else roll)


def error_text(error: BaseException) -> str:
    """The error in one line, an empty line, and its traceback: cut in the middle to what a store keeps of an error."""
    summary = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, (Retry, Dead)) and error.__cause__ is None:
        return _cut(str(error) or summary, MAX_ERROR_CHARS)  # raised on purpose: its traceback is of no interest
    trace = "".join(traceback.format_exception(type(error), error, _from_handler(error.__traceback__))).strip()
    return _cut(f"{summary}\n\n{trace}", MAX_ERROR_CHARS)


def split_error(text: str) -> tuple[str, str | None]:
    """What `error_text` made, in its two parts: one line, and the traceback if there is one."""
    first, _, rest = text.partition("\n")
    return first, rest.strip("\n") or None


def _from_handler(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of the worker that called the handler."""
    first = trace
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_CALLERS):
        trace = trace.tb_next
    return first if trace is None else trace


def _cut(text: str, limit: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate must not prevent settling
    if len(text) <= limit:
        return text
    half = (limit - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]
