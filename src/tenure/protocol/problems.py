"""Errors as problem details (RFC 9457), and back: one table for both directions.

    {"type": "urn:tenure:lease_lost", "title": "LeaseLost", "status": 409, "code": "lease_lost",
     "detail": "job 0190… (token 3): its lease has ended", "facts": {"job_id": "0190…", "token": 3}}

`code` is stable; from it the client builds the error that the embedded store raises, with its message and attributes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tenure import errors
from tenure.errors import TenureError
from tenure.protocol.messages import Problem


class Fault(NamedTuple):
    error: type[TenureError]
    status: int
    #: The attributes of the error that are sent.
    facts: tuple[str, ...] = ()


#: Every error of `errors.py` by its code; a test checks that none is missing.
FAULTS: dict[str, Fault] = {
    fault.error.code: fault
    for fault in (
        Fault(errors.InvalidArgument, 400),
        Fault(errors.Unauthenticated, 401),
        Fault(errors.Forbidden, 403),
        Fault(errors.NotFound, 404),
        Fault(errors.WaitTimeout, 408, ("job_id", "seconds")),
        Fault(errors.LeaseLost, 409, ("job_id", "token")),
        Fault(errors.AlreadySettled, 409, ("job_id", "token")),
        Fault(errors.KeyConflict, 409, ("index", "key", "existing", "listed")),
        Fault(errors.Conflict, 409),
        Fault(errors.QueueNotEmpty, 409, ("queue", "leased", "waiting", "dead")),
        Fault(errors.JournalTrimmed, 410, ("oldest",)),
        Fault(errors.SnapshotExpired, 410, ("id",)),
        Fault(errors.TaskFailed, 409, ("job_id", "task", "reason", "error")),
        Fault(errors.TooLarge, 413, ("what", "size", "limit")),
        Fault(errors.QueueFull, 429, ("queue", "waiting", "limit")),
        Fault(errors.QuotaExceeded, 429, ("tenant", "what", "used", "limit")),
        Fault(errors.RateLimited, 429, ("tenant", "retry_after")),
        Fault(errors.TenureError, 500),
        Fault(errors.Corrupt, 500, ("job_id", "detail")),
        Fault(errors.SettingsError, 500),
        Fault(errors.StoreError, 500),
        Fault(errors.OpenError, 500),
        Fault(errors.UnknownEngine, 500),
        Fault(errors.FormatError, 500),
        Fault(errors.CommitUnknown, 500),
        Fault(errors.StoreLocked, 503, ("path", "owner")),
        Fault(errors.StoreClosed, 503),
        Fault(errors.Unavailable, 503),
    )
}

#: Attributes that are not sent, and their values at the client.
_NOT_SENT = {"corrupt": {"key": None}}


def fault_of(error: TenureError) -> Fault:
    """Return the row of the error's class, or of its nearest base class."""
    for kind in type(error).__mro__:
        code = getattr(kind, "code", None)
        if code in FAULTS and FAULTS[code].error is kind:
            return FAULTS[code]
    return FAULTS["error"]


def problem_of(error: TenureError) -> Problem:
    kind, status, names = fault_of(error)
    facts = {name: getattr(error, name) for name in names}
    return Problem(
        type=f"urn:tenure:{kind.code}",
        title=kind.__name__,
        status=status,
        detail=str(error),
        code=kind.code,
        facts=facts,
    )


def retry_after(error: TenureError) -> int | None:
    """Return whole seconds for the header Retry-After; None if a retry is not useful."""
    if error.retry_after is not None:
        return max(1, math.ceil(error.retry_after))
    return 1 if fault_of(error).status == 429 else None


def error_of(problem: Problem) -> TenureError:
    """Return the error as the embedded store would have raised it."""
    fault = FAULTS.get(problem.code)
    if fault is None:  # from a newer server: use its message only
        return TenureError(problem.detail)
    error = fault.error.__new__(fault.error)
    Exception.__init__(error, problem.detail)
    for name in fault.facts:
        setattr(error, name, problem.facts.get(name))
    for name, value in _NOT_SENT.get(problem.code, {}).items():
        setattr(error, name, value)
    return error
