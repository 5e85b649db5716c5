"""Errors as values, so that the same error can be raised again later or in another process.

A failure is an error's class (by `code`), its message and its facts (its attributes). `unpacked` does not call the
constructor, so a class added to `errors` needs no change here.
"""

from __future__ import annotations

from typing import Any

from tenure import errors
from tenure.errors import TenureError

Failure = tuple[str, str, dict[str, Any]]
"""Code, message, facts."""

#: Error classes by code. A class that inherits its code is left out: its parent has that code.
BY_CODE: dict[str, type[TenureError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, TenureError) and "code" in vars(kind)
}

#: Errors that are the definite answer to a request: a repeated request gets the same one. Other errors give no answer.
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
    """Make a failure of an error. Facts that are no plain values (an exception, a list) are left out."""
    plain = (str, int, float, bytes, type(None))
    return error.code, str(error), {name: fact for name, fact in vars(error).items() if isinstance(fact, plain)}


def unpacked(failure: Failure) -> TenureError:
    """Rebuild the error. A code unknown to this version (from a newer one) becomes a plain `TenureError`."""
    code, message, facts = failure
    kind = BY_CODE.get(code, TenureError)
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    vars(error).update(facts)
    return error
