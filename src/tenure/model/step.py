"""Steps of a job: values that its handler stored once, and signals that other callers sent to it."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenure.errors import TooLarge
from tenure.model.names import MAX_KEY_BYTES, short_text
from tenure.model.request import checked_bytes

#: Limits of one job: the number of its steps and signals, the bytes of each, and the bytes of all of them.
MAX_STEPS = 1_000
MAX_STEP_BYTES = 64 * 1024
MAX_STEPS_BYTES = 1024 * 1024

StepKind = Literal["step", "signal"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A named value stored under a job."""

    name: str
    #: "step": stored by the holder of the job's lease. "signal": sent by any caller.
    kind: StepKind
    value: bytes
    stored_at_ms: int


def checked_step(kind: StepKind, name: object, value: object) -> tuple[str, bytes]:
    """Return the checked name and value of a step or a signal. Raises InvalidArgument, TooLarge."""
    found = short_text(f"the name of a {kind}", name, MAX_KEY_BYTES)
    data = checked_bytes(kind, value)
    if len(data) > MAX_STEP_BYTES:
        raise TooLarge(f"the {kind} {found!r}", len(data), MAX_STEP_BYTES)
    return found, data


def checked_signal_name(name: object) -> str:
    """Return the name if it is valid. Raises InvalidArgument."""
    return short_text("the name of a signal", name, MAX_KEY_BYTES)


def steps_limit_error(count: int, size: int) -> TooLarge | None:
    """The error for a job with `count` steps and signals of `size` bytes in total; None: within the limits."""
    if count > MAX_STEPS:
        return TooLarge("the number of steps of a job", count, MAX_STEPS)
    if size > MAX_STEPS_BYTES:
        return TooLarge("a job's steps", size, MAX_STEPS_BYTES)
    return None
