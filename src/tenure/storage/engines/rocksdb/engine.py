"""The engine: one owner, one writer at a time, commits made durable together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from rocksdict import Checkpoint, WriteBatch

from tenure.errors import Corrupt, StoreClosed, TenureError, Unavailable
from tenure.process import Layer, closed_at_exit, renewed_after_fork
from tenure.storage.durable_watermark import DurableWatermark
from tenure.storage.engine import Changes, Durability, Reader, Snapshot, Space, Traits, Transaction
from tenure.storage.engines.rocksdb import fork_exit
from tenure.storage.engines.rocksdb.changed_rows import ChangedRows
from tenure.storage.engines.rocksdb.iterators import check_status
from tenure.storage.engines.rocksdb.loader import RocksLoader
from tenure.storage.engines.rocksdb.log_room import ENOUGH, FIRST, LogRoom
from tenure.storage.engines.rocksdb.log_rotation import LogRotation
from tenure.storage.engines.rocksdb.memory import RECENT_BYTES, Memory
from tenure.storage.engines.rocksdb.opening import Mode, translated
from tenure.storage.engines.rocksdb.reader import CheckedReader, RocksReader
from tenure.storage.engines.rocksdb.recovery import Recovered, may_pass, recover
from tenure.storage.engines.rocksdb.snapshot import RocksSnapshot
from tenure.storage.folder import Folder, make_private
from tenure.storage.group_commit import GroupCommit
from tenure.storage.keyspace import JOURNAL, NAMES, split_commit
from tenure.storage.writer_lock import WriterLock

T = TypeVar("T")

#: Seconds between two tries to open the database anew after a failed write.
_BETWEEN_TRIES = 1.0
#: Bytes between two times of housekeeping, where nothing calls for it earlier.
_TIDY_EVERY = RECENT_BYTES // 8


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
        upgrading: bool = False,
    ) -> None:
        folder = Folder(path, "rocksdb", upgrading=upgrading)
        existed = folder.check()
        if not existed:
            fork_exit.refuse_inherited_pool()  # before anything is made; a store that is there may be joined instead
        folder.lock(listens=listens)
        self.forgetters: list[Callable[[], None]] = []
        self._writer = WriterLock()
        self._folder = folder
        #: Whether a verb waits until its commit is on disk; else the watermark notes what was written.
        self._waits = durability == "disk"
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
        self.home = folder.path
        self.begin: Callable[[Reader, int], Transaction] = Transaction
        self._snapshots: weakref.WeakSet[RocksSnapshot] = weakref.WeakSet()
        #: Held while the log is synced, and while the database is opened anew. Taken after the writer's lock, if both are.
        self._sync_lock = threading.RLock()
        #: When to try to open the database anew after a failed write; None: it must not be.
        self._try_again: float | None = None
        self._owner = os.getpid()
        self._stopped: TenureError | None = None
        self.group_commit = GroupCommit(
            self._flush_log,
            grouped=durability == "disk",
            interval=sync_interval,
            check=self._check_folder,
            begin=self._begin_sync,
        )
        self.traits = Traits(
            scope="process",
            order="strict",
            snapshot="store",
            durability=durability,
            atomic_bytes=2**30,
            key_bytes=2**16,
            value_bytes=2**30,
        )
        self.loader = RocksLoader(self)
        renewed_after_fork(self, Layer.STORAGE)
        closed_at_exit(self, Layer.STORAGE)

    def _attach(self, found: Recovered) -> None:
        """Take a database that was just opened, and begin what is kept in memory beside it."""
        self._db, self._watermark, self._sequence = found.db, found.watermark, found.sequence
        self._tables = [self._db.get_column_family(name) for name in NAMES]
        self._handles = [self._db.get_column_family_handle(name) for name in NAMES]
        self._room = LogRoom(self._folder.db) if self._waits else None
        self._log = LogRotation(self._tables, self._sync, self._recovery[2], self._room)
        self._memory = Memory()
        if self._writer.checked:
            self._reader: RocksReader = CheckedReader(self._tables, self._memory, self._writer)
        else:
            self._reader = RocksReader(self._tables, self._memory)
        self._rows = ChangedRows(self._tables, self._handles, self._memory)
        #: Bytes written since the last housekeeping, and how many call for it: the first time few, so that there is room
        #: ahead of the log soon.
        self._untidy = 0
        self._tidy_at = FIRST if self._waits else _TIDY_EVERY
        #: The commit that the last housekeeping came after.
        self._tidied = 0
        #: Set while memory and database may differ: an exception in between leaves it set, and the next to take the
        #: writer's lock reads the memory again.
        self._unsure = False
        last = self._last_commit()
        self._next_commit = last + 1
        #: The journal's last row that is known durable; the log's sequence number goes with it in the watermark.
        self._durable = last
        self._synced_to = self._sequence

    # ── the seam ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def transact(self, fn: Callable[[Transaction], T]) -> T:
        writer, begin = self._writer, self.begin
        if writer.held_here():
            writer.take_back()
        try:
            with writer.lock:
                if self._stopped is not None or self._unsure:
                    self._attend()
                transaction = begin(self._reader, self._next_commit)
                result = fn(transaction)
                version = self.apply(transaction) if transaction.finish() else 0
        except TenureError:
            self._wait_for_what_was_read()  # a refusal: "already settled" is as good as an answer
            raise
        if version:
            needed = transaction.answers_after
            if needed is None or needed > self._durable:
                self.group_commit.wait(version)
            else:
                self.group_commit.sync_soon()
        elif self._waits and transaction.answers_after is None:
            self._wait_for_what_was_read()
        return result

    def _wait_for_what_was_read(self) -> None:
        """At `disk`: wait until all written commits are durable. The answer of a transaction that writes nothing (a
        duplicate, a repeated request) may depend on a commit whose own caller still waits, and must survive as that does."""
        if self._waits and self._stopped is None:
            self.group_commit.wait(self.group_commit.applied_to)

    def read(self, fn: Callable[[RocksReader], T]) -> T:
        writer = self._writer
        if writer.held_here():
            writer.take_back()
        with writer.lock:
            if self._stopped is not None or self._unsure:
                self._attend()
            return fn(self._reader)

    def snapshot(self, spaces: Sequence[Space] | None = None) -> Snapshot:
        # A snapshot of everything, which `check` reads, uses no memory: it compares the database itself.
        use_heads = spaces is not None
        return self.under_lock(
            partial(self._snapshot_now, range(len(NAMES)) if spaces is None else spaces, use_heads=use_heads)
        )

    def _snapshot_now(self, spaces: Sequence[Space], *, use_heads: bool) -> Snapshot:
        """Requires: the writer's lock is held."""
        iterators: dict[Space, Any] = {}
        points: dict[Space, Any] = {}
        for space in spaces:
            # An iterator sees the moment it is opened at, wherever it is positioned later.
            iterators[space] = self._tables[space].iter()
            # The driver's snapshot is right for single keys, and does not walk over tombstones as a seek does.
            points[space] = self._tables[space].snapshot()
        snapshot = RocksSnapshot(iterators, points, self._memory.fronts_now(spaces if use_heads else ()))
        self._snapshots.add(snapshot)
        return snapshot

    def version(self) -> int:
        return self.group_commit.applied_to

    def durable(self) -> int | None:
        return self._durable if self.group_commit.grouped else None

    def share(self) -> None:
        pass  # one process owns it

    def tend(self) -> None:
        try:
            self._folder.verify()
        except Unavailable as exc:
            with self._writer.lock:
                if self._stopped is None:
                    self._stop(exc)
            raise
        self._folder.tighten()

    def export(self, path: str) -> None:
        target = Folder(path, "rocksdb")
        last = self.under_lock(partial(self._checkpoint, target))
        make_private(target.db)
        target.tighten()
        target.write_format()
        watermark = DurableWatermark(target.path / "DURABLE", "")
        watermark.note(last, last)
        watermark.close()

    def _checkpoint(self, target: Folder) -> int:
        """Copy the database; returns the last sequence number in the copy. Requires: the writer's lock is held."""
        make_private(target.path)
        last: int = self._db.latest_sequence_number()
        try:
            self._db.flush_wal(True)
            Checkpoint(self._db).create_checkpoint(str(target.db))
        except Exception as exc:
            raise translated(exc) from exc
        return last

    def renew_after_fork(self) -> None:
        """A forked child's writes would vanish. Its lock is new: the old one may be held by a thread that is not there."""
        if isinstance(self._stopped, StoreClosed):
            return
        self._writer = WriterLock()
        self._sync_lock = threading.RLock()
        self.group_commit.renew_after_fork()
        # Never destroy driver objects in a forked child: their destructors join threads that do not exist there.
        for held in self._driver_objects():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
        self._stopped = StoreClosed(
            "this process is a fork of the one that opened the store: open it anew in the child"
        )

    def close_at_exit(self) -> None:
        """A thread of ours that is inside the driver when the interpreter ends would abort the process."""
        with contextlib.suppress(TenureError):
            self.close()

    def close(self) -> None:
        if os.getpid() != self._owner:
            return
        writer = self._writer
        if writer.held_here():
            writer.take_back()
        with writer.lock:
            if isinstance(self._stopped, StoreClosed):
                return
            failed = self._stopped
            self._stopped = StoreClosed("this store was closed")
        self.group_commit.stop()
        try:
            # Nothing more is written. Threads that wait for a sync, or lead one, are inside the driver: let them finish.
            with contextlib.suppress(TenureError):
                self.group_commit.wait(self.group_commit.applied_to)
            for snapshot in list(self._snapshots):
                snapshot.close()
            if failed is None:
                self._sync()
        finally:
            self._let_go()
            self._folder.unlock()

    def _let_go(self) -> None:
        """Close what is open. The driver keeps its own lock for as long as any object of it is alive."""
        watermark = self.__dict__.pop("_watermark", None)
        if watermark is not None:
            watermark.close()
        room = self.__dict__.get("_room")
        if room is not None:
            room.close()
        reader = self.__dict__.get("_reader")
        if reader is not None:
            reader.close()
        rows = self.__dict__.get("_rows")
        if rows is not None:
            rows.close()
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

    def under_lock(self, run: Callable[[], T]) -> T:
        """Run while the writer's lock is held: for what is rare. Raises if the engine was closed or has stopped.

        No context manager: an exception where its `with` ends would leave it open for as long as its frame lives.
        """
        writer = self._writer
        if writer.held_here():
            writer.take_back()
        with writer.lock:
            if self._stopped is not None or self._unsure:
                self._attend()
            return run()

    def apply(self, changes: Changes) -> int:
        """Write the changes; returns the version to wait for. Requires: the writer's lock is held.

        An exception anywhere in here (Ctrl-C) leaves `_unsure` set. Then what is stored is right, and memory is read again.
        """
        if self._writer.checked:
            self._writer.assert_held()
        self._unsure = True
        batch = WriteBatch(True)  # as the tables are: bytes as they are
        db, commit = self._db, self._next_commit
        try:
            self._rows.fill(batch, changes, commit)
            size = batch.size_in_bytes()  # before the write, which consumes the batch
            db.write(batch)
        except TenureError:
            raise  # a damaged counter: nothing was written
        except Exception as exc:  # noqa: BLE001 - the driver raises nothing more special
            self._stop(exc, again=may_pass(exc))
            del batch, db  # an exception that is kept keeps this frame, which must not keep the driver's objects
            raise Unavailable(str(self._stopped)) from None
        for remember in changes.on_written:
            remember()
        self._next_commit = commit + len(changes.journal)
        self._sequence = sequence = db.latest_sequence_number()
        group_commit = self.group_commit
        group_commit.applied_to = version = group_commit.applied_to + 1
        if not self._waits:
            self._watermark.note_written(sequence)
            version = 0
        self._unsure = False
        self._untidy = size = self._untidy + size
        if size >= self._tidy_at:
            self._tidy()
        return version

    def _tidy(self) -> None:
        """Once in a while: drop old rows from memory, and start a new log if this one is long.

        A failure stops the engine, as that of any write.
        """
        size, self._untidy = self._untidy, 0
        self._tidy_at = ENOUGH if self._waits else _TIDY_EVERY
        commits, self._tidied = self.group_commit.applied_to - self._tidied, self.group_commit.applied_to
        try:
            self._memory.wrote(size)
            self._log.wrote(size, commits)
        except TenureError:
            raise
        except Exception as exc:  # noqa: BLE001 - the driver raises nothing more special
            self._stop(exc, again=may_pass(exc))
            raise Unavailable(str(self._stopped)) from None

    def _attend(self) -> None:
        """On entering: refuse if the engine has stopped, and read again what an interrupted commit left unsure."""
        if self._stopped is not None:
            self._refuse()
        if not self._unsure:
            return
        self._memory.forget()
        self._next_commit = self._last_commit() + 1
        self._sequence = self._db.latest_sequence_number()
        self.group_commit.applied_to += 1
        for forget in self.forgetters:
            forget()
        self._unsure = False

    def _sync(self) -> None:
        """Make everything written so far durable. Runs outside the writer's lock, or inside it."""
        self._check_folder()
        self._flush_log()

    def _check_folder(self) -> None:
        """Raise Unavailable, and stop the engine, if its folder is not there any more."""
        try:
            self._folder.verify()
        except Unavailable as exc:
            with self._sync_lock:
                self._stop(exc, again=may_pass(exc))
            raise Unavailable(str(self._stopped)) from None

    def _begin_sync(self) -> None:
        room = self._room
        if room is not None:
            room.begin_sync()

    def _flush_log(self) -> None:
        """As `_sync`, of a folder that was checked; one at a time."""
        with self._sync_lock:
            if "_db" not in self.__dict__ or (self._stopped and not isinstance(self._stopped, StoreClosed)):
                raise Unavailable(str(self._stopped))
            written, sequence = self._next_commit - 1, self._sequence
            try:
                self._db.flush_wal(True)
            except Exception as exc:  # noqa: BLE001
                # What the disk did not take once it may never take: going on would promise what cannot be kept.
                self._stop(exc, again=may_pass(exc))
                raise Unavailable(str(self._stopped)) from None
            self._durable = max(self._durable, written)
            self._synced_to = max(self._synced_to, sequence)
            self._watermark.note(0 if self._waits else max(self._sequence, self._synced_to), self._synced_to)

    def _stop(self, exc: Exception, *, again: bool = False) -> None:
        """After a failed write. The error is kept without the frames it came through, which hold the driver's objects.

        `again`: the database may be opened anew once the cause has gone.
        """
        error = translated(exc)
        if self._stopped is None or self._try_again is not None:  # the worst that happened counts
            self._try_again = 0.0 if again else None
        self._stopped = error.with_traceback(None)
        exc.__traceback__ = None

    def _last_commit(self) -> int:
        """The number of the journal's last row; 0 if it has none."""
        iterator = self._tables[JOURNAL].iter()
        iterator.seek_to_last()
        if iterator.valid():
            return split_commit(iterator.key())
        check_status(iterator)
        return 0

    def _refuse(self) -> None:
        """Called by every verb that finds the engine stopped, with the writer's lock held. Returns if it could be started again."""
        if isinstance(self._stopped, StoreClosed):
            raise StoreClosed(str(self._stopped))
        if self._try_again is not None and self._reopened():
            return
        if self._try_again is not None:  # else the try has found that the store cannot go on
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
            for forget in self.forgetters:
                forget()
            self._stopped = self._try_again = None
        self.group_commit.renew()
        return True
