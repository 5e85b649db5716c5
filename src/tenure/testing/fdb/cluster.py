"""The simulated cluster: versions of one sorted map, optimistic commits, watches, faults.

    read at a version ──▶ the newest rows, without the changes of later commits
    commit ──▶ limits ──▶ faults ──▶ conflicts with commits since the read version ──▶ apply, stamp, fire watches

Versions advance by a million for each second of `time_us`, and by 100 million at a recovery. A version can be read for
five seconds. One lock makes each step atomic; `on_step` is called before it, without the lock, so that a scheduler can
choose the next thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

from sortedcontainers import SortedDict

from tenure.testing.fdb import errors
from tenure.testing.fdb.atomics import OPERATIONS, VALUE_BYTES
from tenure.testing.fdb.errors import FDBError
from tenure.testing.fdb.faults import Faults
from tenure.testing.fdb.futures import Future

KEY_BYTES = 10_000
TRANSACTION_BYTES = 10_000_000
#: How many versions back a transaction may read: five seconds.
WINDOW = 5_000_000
#: By how many versions a recovery jumps.
RECOVERY = 100_000_000
END = b"\xff"
STAMP_BYTES = 10
Range = tuple[bytes, bytes]


class Mutation(NamedTuple):
    """One write of a transaction; mutations are applied in order."""

    #: "set", "clear_range" (the end is the value), "stamped_key", "stamped_value", or an atomic operation.
    kind: str
    key: bytes
    value: bytes


class Request(NamedTuple):
    """A transaction's commit request."""

    read_version: int
    mutations: Sequence[Mutation]
    reads: Sequence[Range]
    writes: Sequence[Range]
    #: Whether the client set `automatic_idempotency`: an unknown result is looked up.
    idempotent: bool = False


class Committed(NamedTuple):
    version: int
    stamp: bytes


class _Applied(NamedTuple):
    """A commit within the readable window: the keys that it changed, and its write conflict ranges."""

    version: int
    keys: Sequence[bytes]
    ranges: Sequence[Range]


class _Watch(NamedTuple):
    key: bytes
    value: bytes | None
    future: Future[None]


class Cluster:
    def __init__(
        self, seed: int = 0, *, time_us: Callable[[], int] | None = None, faults: Faults | None = None
    ) -> None:
        """`time_us`: a monotonic clock in microseconds (default: the machine's)."""
        self.time_us: Callable[[], int] = time_us or (lambda: time.monotonic_ns() // 1000)
        self.faults = faults or Faults(seed)
        #: Called before each step that a real client would send over the network, with its name.
        self.on_step: Callable[[str], None] = lambda step: None
        #: Whether the servers support automatic idempotency.
        self.idempotency = False
        #: The number of commits that were tried, that conflicted, and that succeeded.
        self.tried = self.conflicted = self.done = 0
        #: The bytes of the largest transaction.
        self.largest = 0
        self.lock = threading.RLock()
        self._rows: SortedDict = SortedDict()
        self._recent: deque[_Applied] = deque()
        #: By key: for each change within the window, its version and the value before it.
        self._before: SortedDict = SortedDict()
        self._version = 1
        self._offset = 0
        self._began_us = self.time_us()
        #: Transactions that began before the last recovery cannot commit.
        self._recovered_at = 0
        self._watches: dict[int, _Watch] = {}
        self._late: list[tuple[int, Request]] = []

    # ── versions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def current_version(self) -> int:
        """The newest version: that of the last commit, or by the time."""
        return max(self._version, 1 + self._offset + self.time_us() - self._began_us)

    def read_version(self) -> int:
        self.on_step("read_version")
        with self.lock:
            self._version = self.current_version()
            return self._version

    def recover(self) -> None:
        """Advance by 100 million versions. Running transactions must start again."""
        with self.lock:
            self._version = self.current_version() + RECOVERY
            self._offset += RECOVERY
            self._recovered_at = self._version

    def check_version(self, version: int) -> None:
        """Raise FDBError if the version is too old, or in the future."""
        if version < self.current_version() - WINDOW or version < self._recovered_at:
            raise FDBError(errors.TOO_OLD)
        if version > self.current_version():
            raise FDBError(errors.FUTURE_VERSION)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, version: int, key: bytes) -> bytes | None:
        with self.lock:
            return self._at(version, key)

    def _at(self, version: int, key: bytes) -> bytes | None:
        value: bytes | None = self._rows.get(key)
        for changed, before in reversed(self._before.get(key, ())):
            if changed <= version:
                break
            value = before
        return value

    def get_range(
        self, version: int, begin: bytes, end: bytes, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows (0: all) with begin <= key < end, as of a version."""
        if begin >= end:
            return []
        with self.lock:
            keys: Iterable[bytes] = self._rows.irange(begin, end, inclusive=(True, False), reverse=reverse)
            if self._version <= version or not self._recent or self._recent[-1].version <= version:
                return [(key, self._rows[key]) for key in (islice(keys, limit) if limit else keys)]
            gone = [
                key
                for key in self._before.irange(begin, end, inclusive=(True, False))
                if key not in self._rows and self._at(version, key) is not None
            ]
            if gone:
                keys = merge(keys, reversed(gone) if reverse else gone, reverse=reverse)
            rows = ((key, self._at(version, key)) for key in keys)
            found = ((key, value) for key, value in rows if value is not None)
            return list(islice(found, limit) if limit else found)

    def boundaries(self, begin: bytes, end: bytes, every: int) -> list[bytes]:
        """The first keys of the shards in a range: every `every`-th key."""
        with self.lock:
            return list(islice(self._rows.irange(begin, end, inclusive=(True, False)), every, None, every))

    # ── committing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self, request: Request) -> Committed:
        """Apply a transaction, or raise FDBError. Faults are drawn here."""
        self.on_step("commit")
        with self.lock:
            self.tried += 1
            self.check_limits(request)
            self._arrive_late()
            fate = self.faults.of_commit()
            if fate == "recovery":
                self.recover()
            if fate == "conflict":
                raise FDBError(errors.NOT_COMMITTED)
            if fate == "late":
                self._late.append((self.tried + self.faults.delay(), request))
                raise FDBError(errors.CLUSTER_CHANGED)
            if fate == "unknown_not_done":
                raise FDBError(errors.NOT_COMMITTED if self._finds_outcome(request) else errors.COMMIT_UNKNOWN)
            committed = self._commit(request)
            if fate == "unknown_done" and not self._finds_outcome(request):
                raise FDBError(errors.COMMIT_UNKNOWN)
            return committed

    def _finds_outcome(self, request: Request) -> bool:
        """Whether the client finds the outcome of a commit by itself (automatic idempotency)."""
        return self.idempotency and request.idempotent

    def check_limits(self, request: Request) -> None:
        size = size_of(request)
        self.largest = max(self.largest, size)
        if size > TRANSACTION_BYTES:
            raise FDBError(errors.TRANSACTION_TOO_LARGE)

    def _commit(self, request: Request) -> Committed:
        if request.reads:
            self.check_version(request.read_version)
            if self.conflicts(request):
                self.conflicted += 1
                raise FDBError(errors.NOT_COMMITTED)
        version = self._version = max(self._version + 1, self.current_version())
        stamp = self.stamp(version)
        before: dict[bytes, bytes | None] = {}
        made = self._apply(request.mutations, stamp, before)
        for key, value in before.items():
            self._before.setdefault(key, []).append((version, value))
        self._recent.append(_Applied(version, list(before), [*request.writes, *made]))
        self._forget_old(version - WINDOW)
        self.done += 1
        self.fire_watches(before)
        return Committed(version, stamp)

    def _forget_old(self, version: int) -> None:
        while self._recent[0].version < version:
            for key in self._recent.popleft().keys:
                changes = self._before[key]
                del changes[0]
                if not changes:
                    del self._before[key]

    def conflicts(self, request: Request) -> bool:
        """Whether a commit after the read version wrote a range that this transaction read."""
        for applied in reversed(self._recent):
            if applied.version <= request.read_version:
                return False
            for begin, end in applied.ranges:
                if any(low < end and begin < high for low, high in request.reads):
                    return True
        return False

    def stamp(self, version: int) -> bytes:
        """A version stamp: ten bytes, larger with every commit. (A batch has one commit: the last two are zero.)"""
        return version.to_bytes(8, "big") + b"\0\0"

    def _apply(self, mutations: Sequence[Mutation], stamp: bytes, before: dict[bytes, bytes | None]) -> list[Range]:
        """Write the rows; `before` gets the old values. Returns the ranges of keys made from the stamp."""
        made: list[Range] = []
        for kind, key, value in mutations:
            if kind == "clear_range":
                for gone in list(self._rows.irange(key, value, inclusive=(True, False))):
                    self._write(gone, None, before)
            elif kind == "set":
                self._write(key, value, before)
            elif kind == "stamped_key":
                key = stamped(key, stamp)
                made.append((key, key + b"\0"))
                self._write(key, value, before)
            elif kind == "stamped_value":
                self._write(key, stamped(value, stamp), before)
            else:
                self._write(key, OPERATIONS[kind](self._rows.get(key), value), before)
        return made

    def _write(self, key: bytes, value: bytes | None, before: dict[bytes, bytes | None]) -> None:
        before.setdefault(key, self._rows.get(key))
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value

    def _arrive_late(self) -> None:
        due = [request for at, request in self._late if at <= self.tried]
        self._late = [(at, request) for at, request in self._late if at > self.tried]
        for request in due:
            try:
                self._commit(request)
            except FDBError:
                continue  # it conflicts by now

    def settle_late(self) -> None:
        """Apply all delayed transactions now."""
        with self.lock:
            self._late = [(0, request) for _, request in self._late]
            self._arrive_late()

    # ── watches ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, key: bytes, value: bytes | None, future: Future[None]) -> None:
        """Complete the future once the key's value differs from `value`."""
        with self.lock:
            self._watches[id(future)] = _Watch(key, value, future)
            self.fire_watches({key: None})

    def fire_watches(self, changed: Iterable[bytes]) -> None:
        if not self._watches:
            return
        keys = set(changed)
        for number, (key, value, future) in list(self._watches.items()):
            if future.is_ready():
                del self._watches[number]
            elif key in keys and self._rows.get(key) != value:
                del self._watches[number]
                future.set(None)


def stamped(text: bytes, stamp: bytes) -> bytes:
    """`text` with the stamp at the offset in its last four bytes."""
    at = int.from_bytes(text[-4:], "little")
    if at + STAMP_BYTES > len(text) - 4:
        raise FDBError(errors.INVALID_OPERATION)
    return text[:at] + stamp + text[at + STAMP_BYTES : -4]


def size_of(request: Request) -> int:
    sizes = [len(m.key) + len(m.value) for m in request.mutations]
    return sum(sizes) + sum([len(b) + len(e) for b, e in (*request.reads, *request.writes)])


__all__ = ["END", "KEY_BYTES", "VALUE_BYTES", "Cluster", "Committed", "Mutation", "Range", "Request"]
