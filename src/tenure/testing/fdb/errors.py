"""The binding's error: a code, and predicates on its meaning for the transaction."""

from __future__ import annotations

TOO_OLD = 1007
FUTURE_VERSION = 1009
NOT_COMMITTED = 1020
COMMIT_UNKNOWN = 1021
CANCELLED = 1025
TIMED_OUT = 1031
TOO_MANY_WATCHES = 1032
UNREADABLE = 1036
CLUSTER_CHANGED = 1039
OPERATION_CANCELLED = 1101
INVALID_OPERATION = 2000
OUTSIDE_LEGAL_RANGE = 2004
INVERTED_RANGE = 2005
INVALID_OPTION = 2007
READ_VERSION_SET = 2010
VERSION_INVALID = 2011
USED_DURING_COMMIT = 2017
INVALID_MUTATION = 2018
NO_COMMIT_VERSION = 2021
TRANSACTION_TOO_LARGE = 2101
KEY_TOO_LARGE = 2102
VALUE_TOO_LARGE = 2103

_NAMES = {
    TOO_OLD: "Transaction is too old to perform reads or be committed",
    FUTURE_VERSION: "Request for future version",
    NOT_COMMITTED: "Transaction not committed due to conflict with another transaction",
    COMMIT_UNKNOWN: "Transaction may or may not have committed",
    CANCELLED: "Operation aborted because the transaction was cancelled",
    TIMED_OUT: "Operation aborted because the transaction timed out",
    UNREADABLE: "Read or wrote an unreadable key",
    CLUSTER_CHANGED: "Cluster has been upgraded to a new protocol version",
    TRANSACTION_TOO_LARGE: "Transaction exceeds byte limit",
    KEY_TOO_LARGE: "Key length exceeds limit",
    VALUE_TOO_LARGE: "Value length exceeds limit",
}
_MAYBE_COMMITTED = frozenset({COMMIT_UNKNOWN, CLUSTER_CHANGED})
_NOT_COMMITTED = frozenset({TOO_OLD, FUTURE_VERSION, NOT_COMMITTED, 1037, 1038, 1042, 1051, 1078, 1213})


class FDBError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    @property
    def description(self) -> str:
        return _NAMES.get(self.code, "")

    def __str__(self) -> str:
        return f"{self.description} ({self.code})"


class _Predicates:
    """The predicates of `fdb.predicates`."""

    def is_retryable(self, error: FDBError) -> bool:
        return error.code in _MAYBE_COMMITTED or error.code in _NOT_COMMITTED

    def is_maybe_committed(self, error: FDBError) -> bool:
        return error.code in _MAYBE_COMMITTED

    def is_retryable_not_committed(self, error: FDBError) -> bool:
        return error.code in _NOT_COMMITTED


predicates = _Predicates()
