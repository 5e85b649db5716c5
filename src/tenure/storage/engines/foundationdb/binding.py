"""Loads the `fdb` module and translates its errors. No other module imports it."""

from __future__ import annotations

from typing import Any

from tenure.errors import CommitUnknown, OpenError, TenureError, TooLarge, Unavailable

#: The binding has no type hints. `tenure.testing.fdb` implements, with types, the part that is used.
Binding = Any
Database = Any
FdbTransaction = Any
FdbError = Any
WatchFuture = Any

API_VERSION = 730
TRANSACTION_BYTES = 10_000_000
TIMED_OUT = 1031
_TOO_OLD = 1007
CONFLICT = 1020
_TOO_LARGE = {2101: "the transaction", 2102: "a key", 2103: "a value"}
_LIMITS = {2101: TRANSACTION_BYTES, 2102: 10_000, 2103: 100_000}


def load() -> Binding:
    """Load the binding and choose its API version. Raises ModuleNotFoundError (no package), OpenError (no library)."""
    import fdb

    try:
        fdb.api_version(API_VERSION)
    except Exception as exc:  # the binding has no error class for a library that is missing or too old
        raise OpenError(
            f"the FoundationDB client cannot be used: {exc}. The Python package needs libfdb_c, which the package"
            " foundationdb-clients of your system brings"
        ) from exc
    return fdb


def translated(error: FdbError) -> TenureError:
    """Our error for one of the binding that cannot be retried, or was retried up to the limit."""
    code: int = error.code
    if code in _TOO_LARGE:
        return TooLarge(_TOO_LARGE[code], _LIMITS[code] + 1, _LIMITS[code])
    if code == CONFLICT:
        return Unavailable(f"other transactions were in the way each time: {error}")
    if code == _TOO_OLD:
        return Unavailable(
            "FoundationDB keeps a version for five seconds, and this look took longer: ask for less at a time"
        )
    return Unavailable(f"FoundationDB: {error}")


def unknown(error: FdbError) -> CommitUnknown:
    """The error for a transaction of which no try is known to have committed, and one may have."""
    return CommitUnknown(f"FoundationDB did not say whether the transaction committed: {error}")
