"""The FoundationDB engine: the retry loop of transactions, unknown commits, watches, housekeeping."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tenure.errors import InvalidArgument, StoreClosed, TenureError, TooLarge, Unavailable
from tenure.storage.engine import Reader, Snapshot, Space, Traits, Transaction
from tenure.storage.engines.foundationdb import journal
from tenure.storage.engines.foundationdb.binding import (
    CONFLICT,
    TIMED_OUT,
    Binding,
    Database,
    FdbError,
    FdbTransaction,
    WatchFuture,
    translated,
    unknown,
)
from tenure.storage.engines.foundationdb.early_values import EarlyValues, remove_unfinished
from tenure.storage.engines.foundationdb.layout import MARK_BYTES, NONCE_BYTES, ROW_BITS, Layout, number, pack_number
from tenure.storage.engines.foundationdb.rows import Rows
from tenure.storage.engines.foundationdb.snapshot import CopiedSnapshot, VersionSnapshot
from tenure.storage.engines.foundationdb.transaction import LIMIT, WANTED_BYTES, FoundationTransaction, writer
from tenure.storage.keyspace import STATE

T = TypeVar("T")
#: A process folds the journal's inbox after this many of its own commits.
_FOLD_EVERY = 64
#: Age in versions (ten minutes) at which a mark without journal rows is removed: no transaction retries that long.
_STALE = 600_000_000
_STALE_BATCH = 1_000
_UNFINISHED_BATCH = 20
#: After this many conflicts a transaction shuts the gate; after one, if a try took longer than `_LONG` seconds. The
#: gate stays shut for at most so many versions, and other transactions poll it at this interval, in seconds.
_STARVED = 4
_LONG = 0.05
_GATE_VERSIONS = 3_000_000
_GATE_REST = 0.005
#: The target duration of a try, in seconds: a divisible transaction that took longer handles fewer jobs in the next.
_WANTED_SECONDS = 2.0


class ClaimWidth:
    """From how many rows at the queue's front a claim chooses: from one (strict order) without contention.

    It grows fourfold with each conflict and shrinks slowly without: it settles at 1 or 2 conflicts in 100 claims.
    """

    MOST = 512.0

    def __init__(self) -> None:
        self._width = 1.0

    @property
    def width(self) -> int:
        return int(self._width)

    def conflict(self) -> None:
        self._width = min(self.MOST, self._width * 4)

    def success(self) -> None:
        self._width = max(1.0, self._width * 0.98)


class FoundationEngine:
    """A store in a FoundationDB cluster, shared with any number of processes on any number of hosts."""

    home = None
    loader = None
    group_commit = None
    alone = False
    remarks: tuple[str, ...] = ()

    def __init__(
        self,
        fdb: Binding,
        db: Database,
        path: Sequence[str] = ("tenure",),
        *,
        grace: float = 30.0,
        lease_versions: int = 1_000_000,
        retry_limit: int = 100,
        timeout: float = 10.0,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`path`: the store's directory. `grace`: seconds after its end in which an expired lease is not taken over.

        `lease_versions`: versions that must pass for each second of a lease before it is taken over. `retry_limit` and
        `timeout` (seconds): how often and how long a transaction is tried. `steady`: a monotonic clock, for measuring
        tries.
        """
        self._steady = steady
        self._fdb, self._db = fdb, db
        self.traits = Traits(
            scope="cluster",
            order="approximate",
            snapshot="store",
            durability="disk",
            atomic_bytes=WANTED_BYTES,
            cuts_batches=True,
            key_bytes=9_000,
            value_bytes=LIMIT - 800_000,
            poll=0.02,
            grace_ms=round(1000 * grace),
        )
        self._versions_per_ms = max(1, lease_versions // 1000)
        self._retry_limit = retry_limit
        self._timeout_ms = round(1000 * timeout)
        self._owner = os.getpid()
        self._closed = False
        self.retried: Callable[[str], None] = lambda why: None
        self.forgetters: list[Callable[[], None]] = []
        self.begin: Callable[[Reader, int], Transaction] = self._begin
        self.claim_width = ClaimWidth()
        self._commits = 0
        self._watching = threading.Lock()
        self._watch: WatchFuture | None = None
        self._seen = 0
        self._layout = Layout(self._retrying(lambda tr: fdb.directory.create_or_open(tr, tuple(path))))

    # ── the seam ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def transact(self, fn: Callable[[Transaction], T]) -> T:
        self._check_open()
        attempt = _Attempts[T](self)
        result = attempt.run(fn)
        if attempt.committed:
            self._commits += 1
            if self._commits % _FOLD_EVERY == 0:
                self._fold()
        return result

    def read(self, fn: Callable[[Reader], T]) -> T:
        return self._retrying(lambda tr: fn(Rows(tr, self._layout, resolving=True)))

    def snapshot(self, spaces: Sequence[Space] | None = None) -> Snapshot:
        self._check_open()
        if spaces is None:
            self._fold()

        def take(tr: FdbTransaction) -> Snapshot:
            version = tr.get_read_version().wait()

            def pinned() -> Rows:
                own = self._db.create_transaction()
                own.set_read_version(version)
                return Rows(own, self._layout, resolving=spaces is None or STATE in spaces)

            return (CopiedSnapshot if spaces is None else VersionSnapshot)(pinned, self._fdb, self._db)

        return self._retrying(take)

    def version(self) -> int:
        """Changes with a commit of any process: each time the watch on the `pulse` key has fired."""
        self._check_open()
        with self._watching:
            if self._watch is None or self._watch.is_ready():
                self._seen += 1
                try:
                    self._watch = self._retrying(self._armed)
                except Unavailable:
                    self._watch = None  # every call then reports a change, and the caller's next read raises the cause
            return self._seen

    def durable(self) -> int | None:
        return None

    def share(self) -> None:
        pass

    def tend(self) -> None:
        """Fold the journal's inbox; remove marks that no transaction can still need, and abandoned early values."""
        self._check_open()
        self._fold()
        self._retrying(self._forget_stale)
        self._retrying(self._forget_unfinished)

    def export(self, path: str) -> None:
        raise InvalidArgument(
            "a store in FoundationDB has no files to copy: back the cluster up with fdbbackup, or export tables"
        )

    def close(self) -> None:
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        with self._watching:
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, reader: Reader, first: int) -> Transaction:
        assert isinstance(reader, Rows)
        return FoundationTransaction(reader, first, self.claim_width.width, self._versions_per_ms)

    def _check_open(self) -> None:
        if os.getpid() != self._owner:
            raise StoreClosed("this process is a fork of the one that opened the store: open it anew in the child")
        if self._closed:
            raise StoreClosed("this store was closed")

    def _transaction(self) -> FdbTransaction:
        made = self._db.create_transaction()
        self._limit(made)
        return made

    def _limit(self, tr: FdbTransaction) -> None:
        tr.options.set_timeout(self._timeout_ms)
        tr.options.set_retry_limit(self._retry_limit)

    def _retrying(self, work: Callable[[FdbTransaction], T]) -> T:
        """Run `work`, which must be idempotent, in transactions until one commits. Raises our errors."""
        self._check_open()
        tr = self._transaction()
        while True:
            try:
                result = work(tr)
                tr.commit().wait()
                return result
            except self._fdb.FDBError as error:
                self._back_off(tr, error)

    def _back_off(self, tr: FdbTransaction, error: FdbError) -> None:
        """Wait and reset `tr` for another try. Raises our error if it cannot be retried."""
        try:
            tr.on_error(error).wait()
        except self._fdb.FDBError as last:
            raise translated(last) from last
        self.retried("conflict" if error.code == CONFLICT else f"fdb_{error.code}")

    def _armed(self, tr: FdbTransaction) -> WatchFuture:
        return tr.watch(self._layout.pulse)

    def _fold(self) -> None:
        """Fold the journal's inbox, a few rows in each transaction. Of two processes that fold, one conflicts."""
        while True:
            tr = self._transaction()
            rows = Rows(tr, self._layout, resolving=False)
            try:
                more = journal.fold(tr, self._layout, writer(rows), rows.journal)
                tr.commit().wait()
            except self._fdb.FDBError:
                return  # the next fold continues from here
            if not more:
                return

    def _forget_stale(self, tr: FdbTransaction) -> None:
        before = tr.get_read_version().wait() - _STALE
        if before <= 0:
            return
        layout = self._layout
        end = layout.stale + before.to_bytes(8, "big")
        for row in tr.snapshot.get_range(layout.stale, end, limit=_STALE_BATCH):
            tr.clear(row.key)
            tr.clear(layout.mark(number(row.key, len(layout.stale) + 8)))

    def _forget_unfinished(self, tr: FdbTransaction) -> None:
        before = tr.get_read_version().wait() - _STALE
        if before > 0:
            remove_unfinished(tr, self._layout, before, _UNFINISHED_BATCH)


class _Attempts(Generic[T]):
    """The tries of one transaction. Its number and its nonce are chosen before the first try."""

    def __init__(self, engine: FoundationEngine) -> None:
        self._engine = engine
        self._fdb = engine._fdb
        #: The result of each try that may have committed, by its mark.
        self._maybe: dict[bytes, T] = {}
        #: The mark of the try that is being committed.
        self._sent: bytes | None = None
        self._chose = False
        self._conflicts = 0
        self._began = 0.0
        #: The nonce in the gate's row while this transaction has shut it; empty otherwise.
        self._gate = b""
        self.committed = False
        #: The fraction of its jobs that the next try may handle.
        self._share = 1.0
        self._early = EarlyValues(engine._layout)
        self._choose()

    def _choose(self) -> None:
        self._number = secrets.randbits(53 - ROW_BITS) << ROW_BITS
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._tries = 0

    def run(self, fn: Callable[[Transaction], T]) -> T:
        try:
            return self._run(fn)
        finally:
            if self._gate:
                self._engine._retrying(self._open_gate)

    def _run(self, fn: Callable[[Transaction], T]) -> T:
        tr = self._engine._transaction()
        while True:
            try:
                while self._is_shut(tr):
                    time.sleep(_GATE_REST)
                    self._renew(tr)
                self._began = self._engine._steady()
                while not self._once(tr, fn):
                    self._renew(tr)
                    self._began = self._engine._steady()
                return self._result
            except self._fdb.FDBError as error:
                try:
                    self._again(tr, error)
                except TenureError as last:
                    if not self._maybe:
                        raise
                    return self._result_by_mark(error, last)

    def _renew(self, tr: FdbTransaction) -> None:
        """Restart the transaction at a newer version."""
        tr.reset()
        self._engine._limit(tr)

    def _once(self, tr: FdbTransaction, fn: Callable[[Transaction], T]) -> bool:
        """Run one try and set `_result`. False: try again, it was too large or values had to be uploaded first."""
        engine = self._engine
        rows = Rows(tr, engine._layout, resolving=False)
        # Read in every try, so that this try conflicts with an earlier one that commits late.
        mark = tr.get(engine._layout.mark(self._number)).value
        if mark is not None and mark[:MARK_BYTES] in self._maybe:
            self.committed = True
            self._result = self._maybe[mark[:MARK_BYTES]]
            return True
        while mark is not None:  # another transaction uses this number
            self._choose()
            mark = tr.get(engine._layout.mark(self._number)).value
        transaction = engine.begin(rows, self._number)
        assert isinstance(transaction, FoundationTransaction)
        transaction.share = self._share
        result = fn(transaction)
        transaction.finish()
        if not transaction:
            self._result = result
            return True
        self._chose = rows.chose
        if not self._fits(transaction):
            return False
        self._tries += 1
        own = self._nonce + self._tries.to_bytes(2, "big")
        if not transaction.apply(own, self._early) or self._is_too_large(tr, transaction):
            return False
        self._maybe[own], self._sent = result, own
        tr.commit().wait()
        self.committed = True
        self._result = result
        if self._chose:
            engine.claim_width.success()
        return True

    # ── small transactions ───────────────────────────────────────────────────────────────────────────────────────────
    # FoundationDB recommends transactions of up to a megabyte and two seconds. A larger one runs again: with its large
    # values uploaded first, and for fewer jobs if it is divisible. Others may go up to FoundationDB's own limits.

    def _fits(self, transaction: FoundationTransaction) -> bool:
        """Whether it can be committed. If not, prepare the next try: reduce its share, or upload its large values."""
        if self._engine._steady() - self._began > _WANTED_SECONDS and transaction.divisible:
            self._share /= 2
            return False
        if transaction.size(early=False) <= WANTED_BYTES:
            return True
        least = transaction.size(early=True)
        if least > WANTED_BYTES and transaction.divisible:
            self._take_less(least)
            return False
        missing = self._early.missing(transaction.writes)
        for portion in self._early.uploads(missing):
            self._engine._retrying(lambda tr, some=portion: self._early.upload(tr, some))  # type: ignore[misc]
        return not missing

    def _is_too_large(self, tr: FdbTransaction, transaction: FoundationTransaction) -> bool:
        """Whether it must handle fewer jobs, now that its reads and writes are known. Raises TooLarge if it cannot."""
        size: int = tr.get_approximate_size().wait()
        if size > WANTED_BYTES and transaction.divisible:
            self._take_less(size)
            return True
        if size > LIMIT:
            raise TooLarge("the transaction", size, LIMIT)
        return False

    def _take_less(self, size: int) -> None:
        self._share *= min(0.75, 0.9 * WANTED_BYTES / size)

    def _again(self, tr: FdbTransaction, error: FdbError) -> None:
        """Prepare another try after `error`. Raises our error if there is none."""
        sent, self._sent = self._sent, None
        if sent is not None and not (self._fdb.predicates.is_maybe_committed(error) or error.code == TIMED_OUT):
            del self._maybe[sent]
        if error.code == CONFLICT and self._chose:
            self._engine.claim_width.conflict()
        elif error.code == CONFLICT:
            self._conflicts += _STARVED if self._engine._steady() - self._began > _LONG else 1
        self._engine._back_off(tr, error)
        if self._conflicts >= _STARVED and not self._gate:
            self._engine._retrying(self._shut_gate)

    # ── the gate ─────────────────────────────────────────────────────────────────────────────────────────────────────
    # A transaction that reads many rows conflicts with small ones in every try. After enough conflicts it shuts the
    # gate: transactions that begin now wait, those that have begun finish, and then its try meets no other writer.

    def _is_shut(self, tr: FdbTransaction) -> bool:
        gate = tr.snapshot.get(self._engine._layout.gate).value
        return gate is not None and gate[8:] != self._gate and number(gate) > tr.get_read_version().wait()

    def _shut_gate(self, tr: FdbTransaction) -> None:
        key, version = self._engine._layout.gate, tr.get_read_version().wait()
        gate = tr.get(key).value
        if gate is None or number(gate) <= version:
            self._gate = self._nonce
            tr.set(key, pack_number(version + _GATE_VERSIONS) + self._gate)

    def _open_gate(self, tr: FdbTransaction) -> None:
        key = self._engine._layout.gate
        gate = tr.get(key).value
        if gate is not None and gate[8:] == self._gate:
            tr.clear(key)

    def _result_by_mark(self, error: FdbError, last: TenureError) -> T:
        """The result of the try that committed, found by its mark after the last try. Raises CommitUnknown."""
        key = self._engine._layout.mark(self._number)
        try:
            mark = self._engine._retrying(lambda tr: tr.get(key).value)
        except TenureError:
            raise unknown(error) from last
        if mark is None or mark[:MARK_BYTES] not in self._maybe:
            raise unknown(error) from last
        self.committed = True
        return self._maybe[mark[:MARK_BYTES]]
