"""The engine: one owner, one writer at a time, commits made durable together."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter
from typing import Any, TypeVar

from rocksdict import Checkpoint

from tenure.errors import Corrupt, StoreClosed, TenureError, Unavailable
from tenure.storage.durable_watermark import Marks
from tenure.storage.engine import Durability, Snapshot, Space, Traits
from tenure.storage.engines.rocksdb.iterators import check_status
from tenure.storage.engines.rocksdb.loader import RocksLoader
from tenure.storage.engines.rocksdb.log_rotation import LogRotation
from tenure.storage.engines.rocksdb.opening import Mode, translated
from tenure.storage.engines.rocksdb.recovery import Recovered, may_pass, recover
from tenure.storage.engines.rocksdb.snapshot import RocksSnapshot
from tenure.storage.engines.rocksdb.straight import RocksStraight
from tenure.storage.engines.rocksdb.transaction import RECENT_SPACES, Reader, RocksTransaction
from tenure.storage.folder import Folder, make_private
from tenure.storage.group_commit import Syncer
from tenure.storage.keyspace import COUNTERS, JOURNAL, NAMES, split_commit
from tenure.storage.recent_rows import RecentRows
from tenure.storage.records import decode_count, encode_count
from tenure.storage.scan_heads import Heads

T = TypeVar("T")

#: Seconds between two tries to open the database anew after a failed write.
_BETWEEN_TRIES = 1.0

#: Engines to close when the interpreter ends: a thread of ours that is inside the driver by then would abort the process.
_open_engines: weakref.WeakSet[RocksEngine] = weakref.WeakSet()


def _disown_in_child() -> None:
    """A forked child's writes would vanish. Its lock is new: the old one may be held by a thread that is not there."""
    for engine in list(_open_engines):
        engine._lock = engine.straight.lock = threading.Lock()
        engine._sync_lock = threading.Lock()
        # Taken down in the child, the driver would wait for threads that a fork does not have: there they are never.
        for held in engine._driver_objects():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
        engine._stopped = StoreClosed(
            "this process is a fork of the one that opened the store: open it anew in the child"
        )


os.register_at_fork(after_in_child=_disown_in_child)


@atexit.register
def _close_at_exit() -> None:
    for engine in list(_open_engines):
        with contextlib.suppress(TenureError):
            engine.close()


class RocksEngine:
    """An open RocksDB, owned by this process."""

    alone = True

    def __init__(
        self,
        path: str,
        *,
        durability: Durability = "disk",
        cache_capacity: int = 64 * 1024 * 1024,
        mode: Mode = "high_throughput",
        sync_interval: float = 0.1,
        boot_id: str = "",
        listens: bool = False,
    ) -> None:
        folder = Folder(path, "rocksdb")
        existed = folder.check()
        folder.lock(listens=listens)
        try:
            self._recovery = (boot_id, cache_capacity, mode)
            found = recover(folder, *self._recovery)
            self._attach(found)
            if not existed:
                folder.write_format()
            folder.tighten()
        except BaseException:
            self._let_go()
            folder.unlock()
            raise
        self.retried: Callable[[str], None] = lambda why: None
        self.remarks = found.remarks
        self._folder = folder
        self.home = folder.path
        self.reopened: Callable[[], None] = lambda: None
        self._snapshots: weakref.WeakSet[RocksSnapshot] = weakref.WeakSet()
        self._lock = threading.Lock()
        #: Held while the log is synced, and while the database is opened anew. Taken after `_lock`, if both are.
        self._sync_lock = threading.Lock()
        #: When to try to open the database anew after a failed write; None: it must not be.
        self._try_again: float | None = None
        self._version = 0
        self._owner = os.getpid()
        self._stopped: TenureError | None = None
        self._syncer = Syncer(self._sync, grouped=durability == "disk", interval=sync_interval)
        self.traits = Traits(
            scope="process",
            order="strict",
            snapshot="store",
            durability=durability,
            atomic_bytes=2**30,
            key_bytes=2**16,
            value_bytes=2**30,
        )
        self.straight = RocksStraight(self)
        self.loader = RocksLoader(self)
        _open_engines.add(self)
        self._note_writes = durability != "disk"

    def _attach(self, found: Recovered) -> None:
        """Take a database that was just opened, and learn from it all that is kept in memory beside it."""
        self._db, self._marks, self._sequence = found.db, found.marks, found.sequence
        self._tables = [self._db.get_column_family(name) for name in NAMES]
        self._handles = [self._db.get_column_family_handle(name) for name in NAMES]
        self._log = LogRotation(self._tables, self._sync, self._recovery[2])
        last = self._last_append(JOURNAL)
        #: The journal's last row, written and known durable; the log's sequence number goes with them in the marks.
        self._durable = self._written = last
        self._marks_durable = self._sequence
        self._next_append: dict[Space, int] = {JOURNAL: last + 1}
        self._counts: dict[bytes, int] = {}
        self._heads = Heads()
        self._recent = {space: RecentRows() for space in RECENT_SPACES}

    # ── the seam ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def transact(self, fn: Callable[[RocksTransaction], T]) -> T:
        with self._lock:
            if self._stopped is not None:
                self._refuse()
            began = perf_counter()
            transaction = RocksTransaction(self)
            result = fn(transaction)
            version = self._apply(transaction) if transaction.batch.len() or transaction.adds else 0
            self._syncer.worked += perf_counter() - began
        if version:
            self._syncer.wait(version)
        return result

    def read(self, fn: Callable[[Reader], T]) -> T:
        with self._lock:
            if self._stopped is not None:
                self._refuse()
            return fn(Reader(self))

    def snapshot(self, spaces: Sequence[Space] | None = None) -> Snapshot:
        with self._lock:
            if self._stopped is not None:
                self._refuse()
            iterators: dict[Space, Any] = {}
            points: dict[Space, Any] = {}
            for space in range(len(NAMES)) if spaces is None else spaces:
                # An iterator sees the moment it is opened at; positioning it here makes sure that it is open.
                iterators[space] = self._tables[space].iter()
                iterators[space].seek_to_first()
                # The driver's snapshot is right for single keys, and does not walk over tombstones as a seek does.
                points[space] = self._tables[space].snapshot()
            snapshot = RocksSnapshot(iterators, points)
            self._snapshots.add(snapshot)
            return snapshot

    def version(self) -> int:
        return self._version

    def durable(self) -> int | None:
        return self._durable if self._syncer.grouped else None

    def share(self) -> None:
        pass  # one process owns it

    def tend(self) -> None:
        try:
            self._folder.verify()
        except Unavailable as exc:
            with self._lock:
                if self._stopped is None:
                    self._stop(exc)
            raise
        self._folder.tighten()

    def export(self, path: str) -> None:
        target = Folder(path, "rocksdb")
        with self._lock:
            if self._stopped is not None:
                self._refuse()
            make_private(target.path)
            last = self._db.latest_sequence_number()
            try:
                self._db.flush_wal(True)
                Checkpoint(self._db).create_checkpoint(str(target.db))
            except Exception as exc:
                raise translated(exc) from exc
        make_private(target.db)
        target.tighten()
        target.write_format()
        marks = Marks(target.path / "DURABLE", "")
        marks.note(last, last)
        marks.close()

    def close(self) -> None:
        if os.getpid() != self._owner:
            return
        with self._lock:
            if isinstance(self._stopped, StoreClosed):
                return
            failed = self._stopped
            self._stopped = StoreClosed("this store was closed")
        self._syncer.stop()
        try:
            # Nothing more is written. Threads that wait for a sync, or lead one, are inside the driver: let them finish.
            with contextlib.suppress(TenureError):
                self._syncer.wait(self._syncer.applied_to)
            for snapshot in list(self._snapshots):
                snapshot.close()
            if failed is None:
                self._sync()
        finally:
            self._let_go()
            self._folder.unlock()
            _open_engines.discard(self)

    def _let_go(self) -> None:
        """Close what is open. The driver keeps its own lock for as long as any object of it is alive."""
        marks = self.__dict__.pop("_marks", None)
        if marks is not None:
            marks.close()
        straight = self.__dict__.get("straight")
        if straight is not None:
            straight.let_go()
        for name in ("_tables", "_handles"):
            # Emptied, not only dropped: a kept traceback may hold a transaction that shares them.
            self.__dict__.pop(name, []).clear()
        db = self.__dict__.pop("_db", None)
        if db is not None:
            with contextlib.suppress(Exception):
                # What it may fail at is to flush: that is in the log, synced, or its failure has been told already.
                db.close()

    def _driver_objects(self) -> list[object]:
        """All that is there of the driver; after closing, nothing."""
        own = [self.__dict__.get("_db"), *self.__dict__.get("_tables", ()), *self.__dict__.get("_handles", ())]
        return own + [held for snapshot in list(self._snapshots) for held in snapshot.held()]

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _apply(self, transaction: RocksTransaction) -> int:
        """Write the batch; returns the version to wait for."""
        batch, counts = transaction.batch, self._counts
        changed = {}
        for key, delta in transaction.adds.items():
            value = counts.get(key)
            if value is None:
                value = decode_count(self._tables[COUNTERS].get(key))
            changed[key] = value = value + delta
            batch.put(key, encode_count(value), self._handles[COUNTERS])
        self._remember(transaction)
        size = batch.size_in_bytes()
        try:
            self._db.write(batch)
        except Exception as exc:  # noqa: BLE001 - the driver raises nothing more special
            self._stop(exc, again=may_pass(exc))
            transaction.forget()
            raise Unavailable(str(self._stopped)) from None
        counts.update(changed)
        if transaction.appended:
            self._next_append.update(transaction.appended)
            self._written = self._next_append[JOURNAL] - 1
        return self._written_out(size)

    def _written_out(self, size: int) -> int:
        """A batch of that size is in the log: note how far that reaches; returns the version to wait for."""
        self._sequence = self._db.latest_sequence_number()
        if self._note_writes:
            self._marks.note_written(self._sequence)
        self._version += 1
        version = self._syncer.applied(self._version)
        self._count(size)
        return version

    def _count(self, size: int) -> None:
        """Start a new log if this one is long. A failure stops the engine, as that of any write."""
        try:
            self._log.wrote(size)
        except TenureError:
            raise
        except Exception as exc:  # noqa: BLE001 - the driver raises nothing more special
            self._stop(exc, again=may_pass(exc))
            raise Unavailable(str(self._stopped)) from None

    def _remember(self, transaction: RocksTransaction) -> None:
        """What is about to be written, for the memory kept beside the database."""
        for space, rows in transaction.noted:
            if space in RECENT_SPACES:
                self._recent[space].put(rows)
            elif space == COUNTERS:
                for key, _ in rows:
                    self._counts.pop(key, None)
            else:
                self._heads.lower(space, rows)
        for space, keys in transaction.gone:
            if space == COUNTERS:
                for key in keys:
                    self._counts.pop(key, None)
            elif space in RECENT_SPACES:
                self._recent[space].delete(keys)
            else:
                self._heads.deleted(space, keys)

    def _sync(self) -> None:
        """Make everything written so far durable. Runs outside the writer's lock, or inside it; one at a time."""
        with self._sync_lock:
            if "_db" not in self.__dict__ or (self._stopped and not isinstance(self._stopped, StoreClosed)):
                raise Unavailable(str(self._stopped))
            written, sequence = self._written, self._sequence
            try:
                self._folder.verify()
                self._db.flush_wal(True)
            except Exception as exc:  # noqa: BLE001
                # What the disk did not take once it may never take: going on would promise what cannot be kept.
                self._stop(exc, again=may_pass(exc))
                raise Unavailable(str(self._stopped)) from None
            self._durable = max(self._durable, written)
            self._marks_durable = max(self._marks_durable, sequence)
            self._marks.note(max(self._sequence, self._marks_durable) if self._note_writes else 0, self._marks_durable)

    def _stop(self, exc: Exception, *, again: bool = False) -> None:
        """After a failed write. The error is kept without the frames it came through, which hold the driver's objects.

        `again`: the database may be opened anew once the cause has gone.
        """
        error = translated(exc)
        if self._stopped is None or self._try_again is not None:  # the worst that happened counts
            self._try_again = 0.0 if again else None
        self._stopped = error.with_traceback(None)
        exc.__traceback__ = None

    def _last_append(self, space: Space) -> int:
        iterator = self._tables[space].iter()
        iterator.seek_to_last()
        if iterator.valid():
            return split_commit(iterator.key())
        check_status(iterator)
        return 0

    def _refuse(self) -> None:
        """Called by every verb that finds the engine stopped, with the writer's lock held. Returns if it could be started again."""
        if isinstance(self._stopped, StoreClosed):
            raise StoreClosed(str(self._stopped))
        if self._try_again is not None:
            if self._reopened():
                return
            raise Unavailable(f"the store waits for room, and goes on by itself once there is some: {self._stopped}")
        raise Unavailable(f"the store stopped after a failed write, and must be opened again: {self._stopped}")

    def _reopened(self) -> bool:
        """Open the database anew, if it is time to try. Needs the writer's lock held; snapshots end.

        All that was written before the failed write must be there again. Then it is durable, too: recovery has put it into
        tables. The failed write itself is there or not, as after a crash.
        """
        now = monotonic()
        with self._sync_lock:
            if self._try_again is None or now < self._try_again:
                return False
            self._try_again = now + _BETWEEN_TRIES
            try:
                self._folder.verify()
                reached = self._sequence
                for snapshot in list(self._snapshots):
                    snapshot.close()
                self._let_go()
                self._attach(recover(self._folder, *self._recovery))
                if self._sequence < reached:
                    raise Corrupt(
                        f"the log of {self._folder.path} ends at {self._sequence}, and reached {reached} before"
                    )
            except TenureError as exc:
                self._stop(exc, again=not isinstance(exc, Corrupt))
                if self._try_again is not None:
                    self._try_again = now + _BETWEEN_TRIES
                return False
            self._stopped = self._try_again = None
        self.straight.__init__(self)  # type: ignore[misc]  # the one object that others hold, with what it keeps at hand
        self.reopened()
        self._syncer.renew()
        return True
