"""Steps of a job: values that its handler stored once, and signals that others gave it."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenure.errors import TooLarge
from tenure.model.names import MAX_KEY_BYTES, short_text
from tenure.model.request import checked_bytes

#: Of one job: how many steps and signals it has, how large each is and all of them together.
MAX_STEPS = 1_000
MAX_STEP_BYTES = 64 * 1024
MAX_STEPS_BYTES = 1024 * 1024

StepKind = Literal["step", "signal"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is stored under a job, by its name."""

    name: str
    #: "step": stored by the holder of the job's lease. "signal": given by anybody.
    kind: StepKind
    value: bytes
    stored_at_ms: int


def checked_step(kind: StepKind, name: object, value: object) -> tuple[str, bytes]:
    """The name and value of a step or a signal. Raises InvalidArgument, TooLarge."""
    found = short_text(f"the name of a {kind}", name, MAX_KEY_BYTES)
    data = checked_bytes(kind, value)
    if len(data) > MAX_STEP_BYTES:
        raise TooLarge(f"the {kind} {found!r}", len(data), MAX_STEP_BYTES)
    return found, data


def checked_signal_name(name: object) -> str:
    """Raises InvalidArgument."""
    return short_text("the name of a signal", name, MAX_KEY_BYTES)


def too_many(count: int, size: int) -> TooLarge | None:
    """Why a job may not have so many steps and signals of so many bytes together; None: it may."""
    if count > MAX_STEPS:
        return TooLarge("the number of steps of a job", count, MAX_STEPS)
    if size > MAX_STEPS_BYTES:
        return TooLarge("the steps of a job", size, MAX_STEPS_BYTES)
    return None
