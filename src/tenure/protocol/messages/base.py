"""Units, bounds and base classes of the messages, problems, and the shortest replies."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from tenure.errors import InvalidArgument
from tenure.model.durations import MAX_MS

#: Whole milliseconds: a duration, a duration of at least 1, and a calendar time.
DurationMs = Annotated[int, Meta(ge=0, le=MAX_MS)]
PositiveMs = Annotated[int, Meta(ge=1, le=MAX_MS)]
TimeMs = Annotated[int, Meta(ge=0, le=2 * MAX_MS)]
Limit = Annotated[int, Meta(ge=1, le=10_000)]
State = Literal["ready", "scheduled", "leased", "done", "dead", "blocked"]
Number = Annotated[int, Meta(ge=0, le=2**62)]
Small = Annotated[int, Meta(ge=0, le=2**32 - 1)]


def checked_text(what: str, text: str | None) -> bytes:
    try:
        return b"" if text is None else text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} is not valid Unicode") from None


class Request(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all requests."""


class Nothing(Request):
    """A request with an empty body."""


class Problem(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Problem details of RFC 9457, with a `code` for programs and the error's attributes."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    facts: dict[str, str | int | float | None] = {}


class Count(Struct, frozen=True):
    """How many jobs a verb removed."""

    count: int


class Done(Struct, frozen=True):
    """Success without a result."""
