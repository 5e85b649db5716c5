"""The reference model of a cluster, as simple as possible: full copies, and brute force.

The simulator is compared with it. They share only the errors and the names of atomic operations: a version is a copy of
a dictionary, a transaction is a list of operations, and conflicts are found key by key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenure.testing.fdb.atomics import OPERATIONS
from tenure.testing.fdb.errors import FDBError, predicates
from tenure.testing.fdb.transaction import KeySelector, KeyValue

END = b"\xff"


class ReferenceDatabase:
    def __init__(self) -> None:
        #: The rows at each version, and the ranges that its commit wrote.
        self.rows: dict[int, dict[bytes, bytes]] = {1: {}}
        self.wrote: dict[int, list[tuple[bytes, bytes]]] = {1: []}
        self.version = 1

    def create_transaction(self) -> ReferenceTransaction:
        return ReferenceTransaction(self)

    def run(self, work: Callable[[Any], Any]) -> Any:
        tr = self.create_transaction()
        while True:
            try:
                result = work(tr)
                tr.commit().wait()
                return result
            except FDBError as error:
                tr.on_error(error).wait()


class _Now:
    """A result, or an error that is raised when the result is used."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._error: FDBError | None = None
        try:
            self._result = work()
        except FDBError as error:
            self._error = error

    def wait(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    to_list = wait
    value = property(wait)


class _Options:
    def __init__(self, tr: ReferenceTransaction) -> None:
        self._tr = tr

    def set_next_write_no_write_conflict_range(self) -> None:
        self._tr.silent = True


class ReferenceTransaction:
    def __init__(self, db: ReferenceDatabase, snapshot_of: ReferenceTransaction | None = None) -> None:
        self._db = db
        self._of = snapshot_of or self
        self.ending: list[bytes | FDBError] = []
        if snapshot_of is None:
            self.options = _Options(self)
            self.reset()

    @property
    def snapshot(self) -> ReferenceTransaction:
        return ReferenceTransaction(self._db, self)

    def reset(self, code: int = 1025) -> None:
        self._end(FDBError(code))
        self.read_version: int | None = None
        self.cancelled = self.used = self.silent = False
        #: The operations: kind, key (or begin), value (or end).
        self.steps: list[tuple[str, bytes, bytes]] = []
        #: The reads: begin, end, and the number of operations before.
        self.reads: list[tuple[bytes, bytes, int]] = []
        self.writes: list[tuple[bytes, bytes]] = []
        self.committed = -1
        #: After the transaction has ended, one entry: its stamp, or the error that ended it.
        self.ending = []

    def cancel(self) -> None:
        self.cancelled = True
        self._end(FDBError(1025))

    def _end(self, how: bytes | FDBError) -> None:
        if not self.ending:
            self.ending.append(how)

    def on_error(self, error: FDBError | int) -> _Now:
        code = error.code if isinstance(error, FDBError) else error

        def work() -> None:
            if self.cancelled:
                raise FDBError(1025)
            if not predicates.is_retryable(FDBError(code)):
                raise FDBError(code)
            self.reset(code)

        return _Now(work)

    def _usable(self) -> None:
        if self._of.cancelled:
            raise FDBError(1025)
        if self._of.used:
            raise FDBError(2017)

    def _at(self) -> int:
        if self._of.read_version is None:
            self._of.read_version = self._db.version
        if self._of.read_version > self._db.version:
            raise FDBError(1009)
        return self._of.read_version

    def get_read_version(self) -> _Now:
        return self._asked(self._at)

    def set_read_version(self, version: int) -> None:
        self._usable()
        if self.read_version is not None:
            raise FDBError(2010)
        if version <= 0:
            raise FDBError(2011)
        self.read_version = version

    def get_committed_version(self) -> int:
        return self.committed

    def get_approximate_size(self) -> _Now:
        return self._asked(lambda: 0)

    def get_versionstamp(self) -> Any:
        ending = self.ending

        class Stamp:
            @property
            def value(self) -> bytes:
                if isinstance(ending[0], FDBError):
                    raise ending[0]
                return ending[0]

        return Stamp()

    def _asked(self, work: Callable[[], Any]) -> _Now:
        def checked() -> Any:
            self._usable()
            return work()

        return _Now(checked)

    # ── what it sees ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _seen(self) -> dict[bytes, bytes]:
        rows = dict(self._db.rows[self._at()])
        for kind, key, value in self._of.steps:
            _apply(rows, kind, key, value, b"?" * 10)
        return rows

    def _unreadable(self, begin: bytes, end: bytes) -> bool:
        points: set[bytes] = set()
        ranges: list[tuple[bytes, bytes]] = []
        for kind, key, value in self._of.steps:
            if kind == "stamped_value":
                points.add(key)
            elif kind == "stamped_key":
                at = int.from_bytes(key[-4:], "little")
                ranges.append((key[:at] + b"\0" * 10, key[:at] + b"\xff" * 10 + b"\0"))
            elif kind == "clear_range":
                points = {point for point in points if not key <= point < value}
        return any(begin <= p < end for p in points) or any(b < end and begin < e for b, e in ranges)

    def _read(self, begin: bytes, end: bytes) -> None:
        if begin >= end:
            return
        if self._unreadable(begin, end):
            raise FDBError(1036)
        if self._of is self:
            self.reads.append((begin, end, len(self.steps)))

    def get(self, key: bytes) -> _Now:
        def work() -> bytes | None:
            if key > END:
                raise FDBError(2004)
            self._at()
            self._read(key, key + b"\0")
            return self._seen().get(key)

        return self._asked(work)

    def get_key(self, selector: KeySelector) -> _Now:
        return self._asked(lambda: self._resolve(selector))

    def _resolve(self, selector: KeySelector) -> bytes:
        if selector.key > END:
            raise FDBError(2004)
        keys = sorted(self._seen())
        before = [k for k in keys if k < selector.key or (selector.or_equal and k == selector.key)]
        place = len(before) - 1 + selector.offset
        found = b"" if place < 0 else END if place >= len(keys) else keys[place]
        start = min(selector.key + b"\0" if selector.or_equal else selector.key, END)
        if selector.offset > 0:
            self._read(start, min(found + b"\0", END))
        else:
            self._read(found, start)
        return found

    def get_range(self, begin: Any, end: Any, limit: int = 0, reverse: bool = False, mode: int = -1) -> _Now:
        def bound(at: Any) -> bytes:
            if isinstance(at, bytes):
                if at > END:
                    raise FDBError(2004)
                return at
            if at.key > END:
                raise FDBError(2004)
            if at.offset == 1:
                return bytes(at.key + b"\0" if at.or_equal else at.key)
            return self._resolve(at)

        def work() -> list[KeyValue]:
            first, last = bound(begin), bound(end)
            if first >= last:
                return []
            rows = [KeyValue(k, v) for k, v in sorted(self._seen().items(), reverse=reverse) if first <= k < last]
            if limit and len(rows) >= limit:
                rows = rows[:limit]
                first, last = (rows[-1].key, last) if reverse else (first, rows[-1].key + b"\0")
            self._read(first, last)
            return rows

        return self._asked(work)

    # ── what it writes ───────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, kind: str, key: bytes, value: bytes, wrote: tuple[bytes, bytes] | None) -> None:
        self.steps.append((kind, key, value))
        if wrote is not None:
            if not self.silent:
                self.writes.append(wrote)
            self.silent = False

    def _check(self, key: bytes, value: bytes) -> None:
        self._usable()
        if key >= END:
            raise FDBError(2004)
        if len(key) > 10_000:
            raise FDBError(2102)
        if len(value) > 100_000:
            raise FDBError(2103)

    def set(self, key: bytes, value: bytes) -> None:
        self._check(key, value)
        self._step("set", key, value, (key, key + b"\0"))

    def clear(self, key: bytes) -> None:
        self.clear_range(key, key + b"\0")

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._usable()
        if begin > END or end > END:
            raise FDBError(2004)
        if begin > end:
            raise FDBError(2005)
        if begin < end:
            self._step("clear_range", begin, end, (begin, end))

    def atomic(self, kind: str, key: bytes, value: bytes) -> None:
        if kind == "set_versionstamped_key":
            self._check(key[:-4], value)
            if int.from_bytes(key[-4:], "little") + 10 > len(key) - 4:
                raise FDBError(2000)
            self._step("stamped_key", key, value, None)
        elif kind == "set_versionstamped_value":
            self._check(key, value[:-4])
            if int.from_bytes(value[-4:], "little") + 10 > len(value) - 4:
                raise FDBError(2000)
            self._step("stamped_value", key, value, (key, key + b"\0"))
        else:
            self._check(key, value)
            self._step(kind, key, value, (key, key + b"\0"))

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._usable()
        if begin > END or end > END + b"\0":
            raise FDBError(2004)
        if begin > end:
            raise FDBError(2005)
        if begin < end:
            self.reads.append((begin, end, 0))

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._usable()
        if begin > END or end > END + b"\0":
            raise FDBError(2004)
        if begin > end:
            raise FDBError(2005)
        if begin < end:
            self.writes.append((begin, end))

    # ── committing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self) -> _Now:
        def work() -> None:
            self.used = True
            try:
                self._commit()
            except FDBError as error:
                self._end(error)
                raise

        return self._asked(work)

    def _commit(self) -> None:
        if not self.steps and not self.writes:
            self._end(FDBError(2021))
            return
        if sum(len(k) + len(v) for _, k, v in self.steps) > 10_000_000:
            raise FDBError(2101)
        if self.reads:
            since = self._at()
            for version in range(since + 1, self._db.version + 1):
                if any(self._touches(read, wrote) for read in self.reads for wrote in self._db.wrote[version]):
                    raise FDBError(1020)
        db = self._db
        before = db.rows[db.version]
        db.version += 1
        stamp = db.version.to_bytes(8, "big") + b"\0\0"
        rows = dict(before)
        made = []
        for kind, key, value in self.steps:
            _apply(rows, kind, key, value, stamp)
            if kind == "stamped_key":
                final = _stamped(key, stamp)
                made.append((final, final + b"\0"))
        db.rows[db.version] = rows
        db.wrote[db.version] = [*self.writes, *made]
        self.committed = db.version
        self._end(stamp)

    def _touches(self, read: tuple[bytes, bytes, int], wrote: tuple[bytes, bytes]) -> bool:
        """Whether a write hits a read of this transaction, outside its own writes."""
        begin, end = max(read[0], wrote[0]), min(read[1], wrote[1])
        if begin >= end:
            return False
        steps = self.steps[: read[2]]
        places = {begin}
        for kind, key, value in steps:
            places |= {key, key + b"\0"} | ({value} if kind == "clear_range" else set())
        return any(begin <= place < end and not _decided(steps, place) for place in places)


def _decided(steps: list[tuple[str, bytes, bytes]], place: bytes) -> bool:
    """Whether the operations alone determine the value of a key."""
    known = False
    for kind, key, value in steps:
        if (kind in ("set", "stamped_value") and key == place) or (kind == "clear_range" and key <= place < value):
            known = True
    return known


def _apply(rows: dict[bytes, bytes], kind: str, key: bytes, value: bytes, stamp: bytes) -> None:
    if kind == "clear_range":
        for gone in [k for k in rows if key <= k < value]:
            del rows[gone]
        return
    new: bytes | None
    if kind == "set":
        new = value
    elif kind == "stamped_key":
        key, new = _stamped(key, stamp), value
    elif kind == "stamped_value":
        new = _stamped(value, stamp)
    else:
        new = OPERATIONS[kind](rows.get(key), value)
    if new is None:
        rows.pop(key, None)
    else:
        rows[key] = new


def _stamped(text: bytes, stamp: bytes) -> bytes:
    at = int.from_bytes(text[-4:], "little")
    return text[:at] + stamp + text[at + 10 : -4]
