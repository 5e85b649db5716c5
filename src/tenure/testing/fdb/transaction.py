"""A transaction of the simulated binding: it reads a version of the cluster with its own writes on top.

The ranges that it reads become read conflict ranges, except where its own writes determine the result. Snapshot reads
add none.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sortedcontainers import SortedDict

from tenure.testing.fdb import errors
from tenure.testing.fdb.atomics import CODES, OPERATIONS, VALUE_BYTES
from tenure.testing.fdb.cluster import (
    END,
    KEY_BYTES,
    STAMP_BYTES,
    Cluster,
    Committed,
    Mutation,
    Range,
    Request,
    size_of,
)
from tenure.testing.fdb.errors import FDBError, predicates
from tenure.testing.fdb.futures import Future, Value

if TYPE_CHECKING:
    from tenure.testing.fdb.database import Database
    from tenure.testing.fdb.shared import SharedCluster

T = TypeVar("T")
_CHUNK = 64
_STAMPED = "stamped_value"


class KeyValue(NamedTuple):
    key: bytes
    value: bytes


class KeySelector:
    """A position among the keys: `offset` keys after the last one less than `key` (or equal to it, if `or_equal`)."""

    def __init__(self, key: bytes, or_equal: bool, offset: int) -> None:
        self.key, self.or_equal, self.offset = key, or_equal, offset

    def __add__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset + offset)

    def __sub__(self, offset: int) -> KeySelector:
        return self + -offset

    @classmethod
    def last_less_than(cls, key: bytes) -> KeySelector:
        return cls(key, False, 0)

    @classmethod
    def last_less_or_equal(cls, key: bytes) -> KeySelector:
        return cls(key, True, 0)

    @classmethod
    def first_greater_than(cls, key: bytes) -> KeySelector:
        return cls(key, True, 1)

    @classmethod
    def first_greater_or_equal(cls, key: bytes) -> KeySelector:
        return cls(key, False, 1)


class RangeResult:
    """The rows of a range, read when the range was requested."""

    def __init__(self, future: Future[list[KeyValue]]) -> None:
        self._future = future

    def to_list(self) -> list[KeyValue]:
        return self._future.wait()

    def __iter__(self) -> Iterator[KeyValue]:
        return iter(self._future.wait())


class _Chain:
    """A transaction's operations on a key since its value was last known, and that value."""

    __slots__ = ("known", "operations", "unreadable", "value")

    def __init__(self, known: bool, value: bytes | None = None) -> None:
        self.known, self.value = known, value
        self.operations: list[tuple[str, bytes]] = []
        #: Its value contains a version stamp, which is unknown before the commit.
        self.unreadable = False


class TransactionOptions:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def set_retry_limit(self, limit: int) -> None:
        self._transaction.retry_limit = limit

    def set_timeout(self, milliseconds: int) -> None:
        self._transaction.deadline = None if not milliseconds else time.monotonic() + milliseconds / 1000

    def set_max_retry_delay(self, milliseconds: int) -> None:
        """Accepted and ignored: there is no delay between tries."""

    def set_size_limit(self, size: int) -> None:
        self._transaction.size_limit = size

    def set_automatic_idempotency(self) -> None:
        self._transaction.idempotent = True

    def set_next_write_no_write_conflict_range(self) -> None:
        self._transaction.next_write_silent = True

    def set_read_system_keys(self) -> None:
        """Accepted and ignored: there are no system keys."""

    set_lock_aware = set_access_system_keys = set_priority_batch = set_read_system_keys


class TransactionRead:
    """The read methods. They add read conflict ranges, except through `snapshot`."""

    def __init__(self, state: Transaction | None, *, snapshot: bool) -> None:
        self._state: Transaction = state if state is not None else self  # type: ignore[assignment]  # then it is one
        self._is_snapshot = snapshot

    def get_read_version(self) -> Future[int]:
        return self._state._answer(self._state._begin)

    def get(self, key: bytes) -> Value:
        return Value(self._state._answer(lambda: self._state._get(key, self._is_snapshot)))

    def get_key(self, selector: KeySelector) -> Value:
        def work() -> bytes | None:
            return self._state._resolve(selector, self._is_snapshot)

        return Value(self._state._answer(work))

    def get_range(
        self,
        begin: bytes | KeySelector | None,
        end: bytes | KeySelector | None,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = -1,
    ) -> RangeResult:
        first = b"" if begin is None else begin
        last = END if end is None else end

        def work() -> list[KeyValue]:
            return self._state._range(first, last, limit, reverse, self._is_snapshot)

        return RangeResult(self._state._answer(work))

    def get_range_startswith(
        self, prefix: bytes, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> RangeResult:
        return self.get_range(prefix, strinc(prefix), limit, reverse, streaming_mode)

    def get_range_split_points(self, begin: bytes, end: bytes, chunk_size: int) -> Future[list[bytes]]:
        def work() -> list[bytes]:
            rows = self._state._cluster.get_range(self._state._begin(), begin, end, 0)
            points, size = [begin], 0
            for key, value in rows:
                if size >= chunk_size:
                    points.append(key)
                    size = 0
                size += len(key) + len(value)
            return [*points, end]

        return self._state._answer(work)

    def __getitem__(self, key: bytes | slice) -> Value | RangeResult:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=key.step == -1)
        return self.get(key)


class Transaction(TransactionRead):
    def __init__(self, db: Database, cluster: Cluster | SharedCluster) -> None:
        super().__init__(None, snapshot=False)
        self.db = db
        self._cluster = cluster
        self.snapshot = TransactionRead(self, snapshot=True)
        self.options = TransactionOptions(self)
        self.retry_limit = -1
        self.deadline: float | None = None
        self.size_limit: int | None = None
        self.idempotent = False
        self._retries = 0
        self._clear_state()

    def _clear_state(self) -> None:
        self.next_write_silent = False
        self._version: int | None = None
        self._cancelled = self._used = False
        self._committed: Committed | None = None
        self._mutations: list[Mutation] = []
        self._chains: SortedDict = SortedDict()
        self._cleared: list[Range] = []
        #: Ranges in which keys with a version stamp may be: they cannot be read before the commit.
        self._unreadable: list[Range] = []
        self._reads: list[Range] = []
        self._writes: list[Range] = []
        self._watches: list[tuple[bytes, bytes | None, Future[None]]] = []
        self._stamp: Future[bytes | None] = Future()

    # ── its life ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, work: Callable[[], T]) -> Future[T]:
        def checked() -> T:
            self._check_usable()
            return work()

        return Future.of(checked)

    def _check_usable(self) -> None:
        if self._cancelled:
            raise FDBError(errors.CANCELLED)
        if self._used:
            raise FDBError(errors.USED_DURING_COMMIT)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise FDBError(errors.TIMED_OUT)

    def _begin(self) -> int:
        if self._version is None:
            self._version = self._cluster.read_version()
        return self._version

    def set_read_version(self, version: int) -> None:
        self._check_usable()
        if self._version is not None:
            raise FDBError(errors.READ_VERSION_SET)
        if version <= 0:
            raise FDBError(errors.VERSION_INVALID)
        self._version = version

    def commit(self) -> Future[None]:
        return self._answer(self._commit)

    def _commit(self) -> None:
        self._used = True
        try:
            if self._mutations or self._writes:
                request = self._request()
                if self.size_limit is not None and size_of(request) > self.size_limit:
                    raise FDBError(errors.TRANSACTION_TOO_LARGE)
                self._committed = self._cluster.commit(request)
                self._stamp.set(self._committed.stamp)
            else:
                self._stamp.fail(FDBError(errors.NO_COMMIT_VERSION))
        except FDBError as error:
            self._stamp.fail(error)
            for _, _, future in self._watches:
                future.fail(error)
            self._watches = []
            raise
        for key, value, future in self._watches:
            self._cluster.watch(key, value, future)
        self._watches = []

    def _request(self) -> Request:
        version = self._begin() if self._reads else self._version or 0
        return Request(version, self._mutations, self._reads, self._writes, self.idempotent)

    def on_error(self, error: FDBError | int) -> Future[None]:
        code = error.code if isinstance(error, FDBError) else error

        def work() -> None:
            if self._cancelled:
                raise FDBError(errors.CANCELLED)
            if not predicates.is_retryable(FDBError(code)) or self._retries == self.retry_limit:
                raise FDBError(code)
            self._retries += 1
            self._reset_futures(FDBError(code))
            self._clear_state()
            self._cluster.on_step("back_off")

        return Future.of(work)

    def reset(self) -> None:
        self._reset_futures(FDBError(errors.CANCELLED))
        self._clear_state()
        self._retries = 0

    def cancel(self) -> None:
        self._cancelled = True
        self._reset_futures(FDBError(errors.CANCELLED))

    def _reset_futures(self, error: FDBError) -> None:
        if not self._stamp.is_ready():
            self._stamp.fail(error)
        for _, _, watch in self._watches:
            if not watch.is_ready():
                watch.fail(error)

    def get_committed_version(self) -> int:
        return -1 if self._committed is None else self._committed.version

    def get_versionstamp(self) -> Value:
        """The version stamp, available after the commit."""
        return Value(self._stamp)

    def get_approximate_size(self) -> Future[int]:
        return self._answer(lambda: size_of(Request(0, self._mutations, self._reads, self._writes)))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> int:
        """The version to read at, checked. Counts as one network step."""
        version = self._begin()
        self._cluster.on_step("read")
        self._cluster.check_version(version)
        if self._cluster.faults.of_read():
            raise FDBError(errors.TOO_OLD)
        return version

    def _get(self, key: bytes, snapshot: bool) -> bytes | None:
        if key > END:
            raise FDBError(errors.OUTSIDE_LEGAL_RANGE)
        version = self._read()
        self._check_readable(key, key + b"\0")
        if not snapshot:
            self._depend(key, key + b"\0")
        return self._own(key, lambda: self._cluster.get(version, key))

    def _own(self, key: bytes, stored: Callable[[], bytes | None]) -> bytes | None:
        """A key's value with the transaction's own writes."""
        chain: _Chain | None = self._chains.get(key)
        if chain is None:
            return None if self._is_cleared(key) else stored()
        value = chain.value if chain.known else stored()
        for kind, param in chain.operations:
            value = OPERATIONS[kind](value, param)
        return value

    def _is_cleared(self, key: bytes) -> bool:
        at = bisect_right(self._cleared, (key, b"\xff" * 16)) - 1
        return at >= 0 and key < self._cleared[at][1]

    def _check_readable(self, begin: bytes, end: bytes) -> None:
        if any(low < end and begin < high for low, high in self._unreadable):
            raise FDBError(errors.UNREADABLE)
        for key in self._chains.irange(begin, end, inclusive=(True, False)):
            if self._chains[key].unreadable:
                raise FDBError(errors.UNREADABLE)

    def _depend(self, begin: bytes, end: bytes) -> None:
        """Add the read conflict range begin <= key < end, without the keys that the transaction itself wrote."""
        holes = [(low, high) for low, high in self._cleared if low < end and begin < high]
        holes += [
            (key, key + b"\0")
            for key in self._chains.irange(begin, end, inclusive=(True, False))
            if self._chains[key].known
        ]
        for low, high in sorted(holes):
            if begin < low:
                self._reads.append((begin, low))
            begin = max(begin, high)
        if begin < end:
            self._reads.append((begin, end))

    def _range(
        self, begin: bytes | KeySelector, end: bytes | KeySelector, limit: int, reverse: bool, snapshot: bool
    ) -> list[KeyValue]:
        first, last = self._bound(begin, snapshot), self._bound(end, snapshot)
        if first >= last:
            return []
        version = self._read()
        rows = self._merged(version, first, last, limit, reverse)
        if limit and len(rows) == limit:
            first, last = (rows[-1].key, last) if reverse else (first, rows[-1].key + b"\0")
        self._check_readable(first, last)
        if not snapshot:
            self._depend(first, last)
        return rows

    def _bound(self, at: bytes | KeySelector, snapshot: bool) -> bytes:
        key = at.key if isinstance(at, KeySelector) else at
        if key > END:
            raise FDBError(errors.OUTSIDE_LEGAL_RANGE)
        if not isinstance(at, KeySelector):
            return at
        if at.offset == 1:
            return key + b"\0" if at.or_equal else key
        return self._resolve(at, snapshot)

    def _resolve(self, selector: KeySelector, snapshot: bool) -> bytes:
        """The key that a selector names: b"" before the first, END after the last."""
        if selector.key > END:
            raise FDBError(errors.OUTSIDE_LEGAL_RANGE)
        version = self._read()
        start = min(selector.key + b"\0" if selector.or_equal else selector.key, END)
        if selector.offset > 0:
            rows = self._merged(version, start, END, selector.offset, False)
            found = rows[-1].key if len(rows) == selector.offset else END
            read = (start, min(found + b"\0", END))
        else:
            rows = self._merged(version, b"", start, 1 - selector.offset, True)
            found = rows[-1].key if len(rows) == 1 - selector.offset else b""
            read = (found, start)
        if read[0] < read[1]:
            self._check_readable(*read)
            if not snapshot:
                self._depend(*read)
        return found

    def _merged(self, version: int, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        """Rows of the version with the transaction's own writes on top."""
        if begin >= end:
            return []
        if not self._chains and not self._cleared:
            return [KeyValue(*row) for row in self._cluster.get_range(version, begin, end, limit, reverse)]
        found: list[KeyValue] = []
        step = limit + _CHUNK if limit else 0
        while begin < end:
            rows = self._cluster.get_range(version, begin, end, step, reverse)
            whole = not step or len(rows) < step
            # What was fetched covers the keys from `low` to `high`.
            low = begin if whole or not reverse else rows[-1][0]
            high = end if whole or reverse else rows[-1][0] + b"\0"
            stored = dict(rows)
            keys = sorted({*stored, *self._chains.irange(low, high, inclusive=(True, False))}, reverse=reverse)
            for key in keys:
                value = self._own(key, partial(stored.get, key))
                if value is not None:
                    found.append(KeyValue(key, value))
                    if len(found) == limit:
                        return found
            if whole:
                break
            begin, end = (begin, low) if reverse else (high, end)
        return found

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def set(self, key: bytes, value: bytes) -> None:
        self._check_write(key, value)
        self._mutations.append(Mutation("set", key, value))
        self._wrote(key, key + b"\0")
        before: _Chain | None = self._chains.get(key)
        chain = self._chains[key] = _Chain(True, value)
        chain.unreadable = before is not None and before.unreadable

    def clear(self, key: bytes) -> None:
        self.clear_range(key, key + b"\0")

    def clear_range(self, begin: bytes | None, end: bytes | None) -> None:
        first, last = begin or b"", END if end is None else end
        self._check_usable()
        if first > END or last > END:
            raise FDBError(errors.OUTSIDE_LEGAL_RANGE)
        if first > last:
            raise FDBError(errors.INVERTED_RANGE)
        if first == last:
            return
        self._mutations.append(Mutation("clear_range", first, last))
        self._wrote(first, last)
        for key in list(self._chains.irange(first, last, inclusive=(True, False))):
            del self._chains[key]
        self._clear_merged(first, last)

    def _clear_merged(self, begin: bytes, end: bytes) -> None:
        ranges = self._cleared
        at = bisect_left(ranges, (begin, b""))
        if at and ranges[at - 1][1] >= begin:
            at -= 1
        upto = at
        while upto < len(ranges) and ranges[upto][0] <= end:
            begin, end = min(begin, ranges[upto][0]), max(end, ranges[upto][1])
            upto += 1
        ranges[at:upto] = [(begin, end)]

    def clear_range_startswith(self, prefix: bytes) -> None:
        self.clear_range(prefix, strinc(prefix))

    def atomic(self, kind: str, key: bytes, param: bytes) -> None:
        """Any atomic operation, by its name."""
        if kind == "set_versionstamped_key":
            self._set_stamped_key(key, param)
        elif kind == "set_versionstamped_value":
            self._set_stamped_value(key, param)
        elif kind in OPERATIONS:
            self._check_write(key, param)
            self._mutations.append(Mutation(kind, key, param))
            self._wrote(key, key + b"\0")
            self._chain_of(key).operations.append((kind, param))
        else:
            raise FDBError(errors.INVALID_MUTATION)

    def _chain_of(self, key: bytes) -> _Chain:
        chain: _Chain | None = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = _Chain(self._is_cleared(key))
        return chain

    def _set_stamped_key(self, key: bytes, value: bytes) -> None:
        self._check_write(key[:-4], value)
        at = int.from_bytes(key[-4:], "little")
        if len(key) < 4 or at + STAMP_BYTES > len(key) - 4:
            raise FDBError(errors.INVALID_OPERATION)
        self._mutations.append(Mutation("stamped_key", key, value))
        low = key[:at] + b"\0" * STAMP_BYTES + key[at + STAMP_BYTES : -4]
        high = key[:at] + b"\xff" * STAMP_BYTES + key[at + STAMP_BYTES : -4] + b"\0"
        self._unreadable.append((low, high))

    def _set_stamped_value(self, key: bytes, value: bytes) -> None:
        self._check_write(key, value[:-4])
        if len(value) < 4 or int.from_bytes(value[-4:], "little") + STAMP_BYTES > len(value) - 4:
            raise FDBError(errors.INVALID_OPERATION)
        self._mutations.append(Mutation(_STAMPED, key, value))
        self._wrote(key, key + b"\0")
        chain = self._chains[key] = _Chain(True)
        chain.unreadable = True

    def _check_write(self, key: bytes, value: bytes) -> None:
        self._check_usable()
        if key >= END:
            raise FDBError(errors.OUTSIDE_LEGAL_RANGE)
        if len(key) > KEY_BYTES:
            raise FDBError(errors.KEY_TOO_LARGE)
        if len(value) > VALUE_BYTES:
            raise FDBError(errors.VALUE_TOO_LARGE)

    def _wrote(self, begin: bytes, end: bytes) -> None:
        if self.next_write_silent:
            self.next_write_silent = False
        else:
            self._writes.append((begin, end))

    def watch(self, key: bytes) -> Future[None]:
        """Set once the key's value has changed from what this transaction sees; counts from its commit on."""
        future: Future[None] = Future()
        try:
            self._check_usable()
            self._watches.append((key, self._get(key, True), future))
        except FDBError as error:
            future.fail(error)
        return future

    # ── conflicts ────────────────────────────────────────────────────────────────────────────────────────────────────

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._check_range(begin, end)
        if begin < end:
            self._reads.append((begin, end))

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._check_range(begin, end)
        if begin < end:
            self._writes.append((begin, end))

    def add_read_conflict_key(self, key: bytes) -> None:
        self.add_read_conflict_range(key, key + b"\0")

    def add_write_conflict_key(self, key: bytes) -> None:
        self.add_write_conflict_range(key, key + b"\0")

    def _check_range(self, begin: bytes, end: bytes) -> None:
        self._check_usable()
        if begin > END or end > END + b"\0":
            raise FDBError(errors.OUTSIDE_LEGAL_RANGE)
        if begin > end:
            raise FDBError(errors.INVERTED_RANGE)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.set(key, value)

    def __delitem__(self, key: bytes | slice) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)

    def __getattr__(self, name: str) -> Callable[[bytes, bytes], None]:
        if name not in CODES:
            raise AttributeError(name)
        return lambda key, param: self.atomic(name, key, param)


def strinc(key: bytes) -> bytes:
    """The first key that does not begin with this one."""
    key = key.rstrip(b"\xff")
    if not key:
        raise ValueError("every key begins with this one, or is greater")
    return key[:-1] + bytes((key[-1] + 1,))
