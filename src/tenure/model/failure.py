"""Errors as values: what is needed to raise the same error again, later or elsewhere.

An error is its class (by `code`), its message, and its facts (its attributes). So no error needs a constructor that fits,
and one added to `errors` is carried without a word here.
"""

from __future__ import annotations

from typing import Any

from tenure import errors
from tenure.errors import TenureError

Failure = tuple[str, str, dict[str, Any]]
"""Code, message, facts."""

#: The codes are each error's own: a class without one of its own goes by its parent's.
BY_CODE: dict[str, type[TenureError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, TenureError) and "code" in vars(kind)
}

#: Errors that answer a request: asked again, the answer is the same. (Others say that there was none.)
ANSWERS = (
    errors.InvalidArgument,
    errors.LeaseLost,
    errors.KeyConflict,
    errors.QueueFull,
    errors.QuotaExceeded,
    errors.RateLimited,
    errors.TooLarge,
    errors.JournalTrimmed,
)


def packed(error: TenureError) -> Failure:
    plain = (str, int, float, bytes, type(None))
    return error.code, str(error), {name: fact for name, fact in vars(error).items() if isinstance(fact, plain)}


def unpacked(failure: Failure) -> TenureError:
    """The error again; one whose code is not known (from a newer Tenure) is a plain `TenureError`."""
    code, message, facts = failure
    kind = BY_CODE.get(code, TenureError)
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    vars(error).update(facts)
    return error
