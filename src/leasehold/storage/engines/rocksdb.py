"""RocksDB in this process, through rocksdict: the default engine.

One process owns the folder (`folder.Folder`), one lock orders the writers, one `WriteBatch` is a commit. A commit is
applied under the lock, to the log and the memtable, and made durable outside it, together with all that came
meanwhile (`syncing.Syncer`); the log's order makes a lost tail a consistent prefix.

What the driver would get wrong is kept here:
- raw mode always (its default unpickles what it reads);
- scans by the raw iterator, whose `status` is looked at (the convenient ones end early on damage, silently);
- no `Snapshot` scans (they show later writes): a snapshot is an iterator a space, opened under the lock;
- a damaged log tail is dropped on opening: `Marks` tells, and the store refuses to serve;
- rows that are read again soon after they were written are kept in memory for that (`RecentRows`);
- scans of a front start where it was last seen to begin (`Heads`), not at a million tombstones;
- after a failed sync every write fails: the engine stops, and says so.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from leasehold.errors import Corrupt, LeaseholdError, OpenError, StoreClosed, Unavailable
from leasehold.storage.engine import Durability, Row, Snapshot, Space, Traits
from leasehold.storage.folder import Folder
from leasehold.storage.heads import Front, Heads
from leasehold.storage.keyspace import COUNTERS, DEDUP, FRONTS, JOBS, JOURNAL, LAST, NAMES, STATE, commit, split_commit
from leasehold.storage.marks import Marks
from leasehold.storage.recent import RecentRows
from leasehold.storage.records import decode_count, encode_count
from leasehold.storage.syncing import Syncer

T = TypeVar("T")
Mode = Literal["low_space", "high_throughput"]

#: Read again soon after they are written, by the claim and the ack of the job: the newest of them stay in memory.
_RECENT_SPACES = (JOBS, STATE)
#: Of what there are copies in memory: recent rows, and counters (read once, then counted on). Where fronts begin is noted too.
_COPIED = frozenset({*_RECENT_SPACES, COUNTERS})
_NOTED = frozenset({*FRONTS, *_COPIED})
#: Looked up by key more than scanned: a filter saves the read of a key that is not there.
_POINT_SPACES = (JOBS, STATE, DEDUP)


#: Engines to close when the interpreter ends: a thread of ours that is inside the driver by then would abort the process.
_open_engines: weakref.WeakSet[RocksEngine] = weakref.WeakSet()


def _disown_in_child() -> None:
    """A forked child's writes would vanish. Its lock is new: the old one may be held by a thread that is not there."""
    for engine in list(_open_engines):
        engine._lock = threading.Lock()
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
        with contextlib.suppress(LeaseholdError):
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
    ) -> None:
        folder = Folder(path, "rocksdb")
        existed = folder.check()
        folder.lock()
        try:
            self._db = _open(folder.db, cache_capacity, mode)
            self._tables = [self._db.get_column_family(name) for name in NAMES]
            self._handles = [self._db.get_column_family_handle(name) for name in NAMES]
            if not existed:
                folder.write_format()
            self._marks = Marks(folder.path / "DURABLE", boot_id)
            self._sequence = self._db.latest_sequence_number()
            if self._sequence < self._marks.required:
                raise Corrupt(
                    f"the newest commits of {folder.path} are lost: the log ends at {self._sequence}, and reached "
                    f"{self._marks.required} before. Restore a snapshot, or remove {folder.path / 'DURABLE'} to go on without them"
                )
        except BaseException:
            self._let_go()
            folder.unlock()
            raise
        self.retried: Callable[[str], None] = lambda why: None
        self.remarks = self._marks.remarks()
        self._folder = folder
        last = self._last_append(JOURNAL)
        self._next_append: dict[Space, int] = {JOURNAL: last + 1}
        self._counts: dict[bytes, int] = {}
        self._heads = Heads()
        self._snapshots: weakref.WeakSet[_Snapshot] = weakref.WeakSet()
        self._recent = {space: RecentRows() for space in _RECENT_SPACES}
        self._lock = threading.Lock()
        self._version = 0
        self._owner = os.getpid()
        self._stopped: LeaseholdError | None = None
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
        #: The journal's last row, written and known durable; the log's sequence number goes with them in the marks.
        self._durable = self._written = last
        _open_engines.add(self)
        self._marks_durable = self._sequence
        self._note_writes = durability != "disk"

    # ── the seam ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def transact(self, fn: Callable[[_Transaction], T]) -> T:
        with self._lock:
            if self._stopped is not None:
                self._refuse()
            transaction = _Transaction(self)
            result = fn(transaction)
            version = self._apply(transaction) if transaction.batch.len() or transaction.adds else 0
        if version:
            self._syncer.wait(version)
        return result

    def read(self, fn: Callable[[_Reader], T]) -> T:
        with self._lock:
            if self._stopped is not None:
                self._refuse()
            return fn(_Reader(self))

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
            snapshot = _Snapshot(iterators, points)
            self._snapshots.add(snapshot)
            return snapshot

    def version(self) -> int:
        return self._version

    def durable(self) -> int | None:
        return self._durable if self._syncer.grouped else None

    def share(self) -> None:
        pass  # one process owns it

    def tend(self) -> None:
        pass

    def export(self, path: str) -> None:
        target = Folder(path, "rocksdb")
        with self._lock:
            if self._stopped is not None:
                self._refuse()
            target.path.mkdir(parents=True)
            last = self._db.latest_sequence_number()
            try:
                self._db.flush_wal(True)
                Checkpoint(self._db).create_checkpoint(str(target.db))
            except Exception as exc:
                raise translated(exc) from exc
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

    def _apply(self, transaction: _Transaction) -> int:
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
        try:
            self._db.write(batch)
        except Exception as exc:  # noqa: BLE001 - the driver raises nothing more special
            self._stop(exc)
            transaction.forget()
            raise Unavailable(str(self._stopped)) from None
        counts.update(changed)
        if transaction.appended:
            self._next_append.update(transaction.appended)
            self._written = self._next_append[JOURNAL] - 1
        self._sequence = self._db.latest_sequence_number()
        if self._note_writes:
            self._marks.note(self._sequence, self._marks_durable)
        self._version += 1
        return self._syncer.applied(self._version)

    def _remember(self, transaction: _Transaction) -> None:
        """What is about to be written, for the memory kept beside the database."""
        for space, rows in transaction.noted:
            if space in _RECENT_SPACES:
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
            else:
                self._recent[space].delete(keys)

    def _sync(self) -> None:
        """Make everything written so far durable. Runs outside the lock, one at a time."""
        written, sequence = self._written, self._sequence
        try:
            self._db.flush_wal(True)
        except Exception as exc:  # noqa: BLE001
            # What the disk did not take once it may never take: going on would promise what cannot be kept.
            self._stop(exc)
            raise Unavailable(str(self._stopped)) from None
        self._durable = max(self._durable, written)
        self._marks_durable = max(self._marks_durable, sequence)
        self._marks.note(max(self._sequence, self._marks_durable) if self._note_writes else 0, self._marks_durable)

    def _stop(self, exc: Exception) -> None:
        """After a failed write. The error is kept without the frames it came through, which hold the driver's objects."""
        error = translated(exc)
        self._stopped = error.with_traceback(None)
        exc.__traceback__ = None

    def _last_append(self, space: Space) -> int:
        iterator = self._tables[space].iter()
        iterator.seek_to_last()
        if iterator.valid():
            return split_commit(iterator.key())
        _check(iterator)
        return 0

    def _refuse(self) -> None:
        if isinstance(self._stopped, StoreClosed):
            raise StoreClosed(str(self._stopped))
        raise Unavailable(f"the store stopped after a failed write, and must be opened again: {self._stopped}")


class _Reader:
    """Reads the newest moment; the caller holds the lock."""

    def __init__(self, engine: RocksEngine) -> None:
        self._engine = engine
        self._tables = engine._tables

    def get(self, space: Space, key: bytes) -> bytes | None:
        if space in _RECENT_SPACES:
            kept = self._engine._recent[space].get(key)
            if kept is not None:
                return kept
        try:
            value: bytes | None = self._tables[space].get(key)
        except Exception as exc:
            raise translated(exc) from exc
        return value

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            recent = self._engine._recent.get(space)
            if recent is None:
                values: Any = self._tables[space].get(list(keys))
            else:
                values = recent.find(keys)
                missing = [index for index, value in enumerate(values) if value is None]
                if missing:
                    stored: Any = self._tables[space].get([keys[index] for index in missing])
                    for index, value in zip(missing, stored, strict=True):
                        values[index] = value
        except Exception as exc:
            raise translated(exc) from exc
        found: list[bytes | None] = values
        return found

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        if reverse:
            return _backward(self._tables[space].iter(), begin, end, limit)
        front = self._engine._heads.front(space, begin)
        if front is None or end > front.end:
            return _forward(self._tables[space].iter(_until(end)), begin, end, limit)
        if front.head >= end or limit <= 0:
            return []
        # Bounded by the front, not by the range: the first key past the range is worth knowing too.
        iterator = self._tables[space].iter(_until(front.end))
        rows = _forward(iterator, front.head, end, limit)
        front.head = rows[0][0] if rows else _here(iterator, front)
        return rows

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        if reverse:
            return [key for key, _ in _backward(self._tables[space].iter(), begin, end, limit)]
        front = self._engine._heads.front(space, begin)
        if front is None or end > front.end:
            return _forward_keys(self._tables[space].iter(_until(end)), begin, end, limit)
        if front.head >= end or limit <= 0:
            return []
        iterator = self._tables[space].iter(_until(front.end))
        keys = _forward_keys(iterator, front.head, end, limit)
        front.head = keys[0] if keys else _here(iterator, front)
        return keys


class _Transaction(_Reader):
    """Collects writes in the driver's batch, and notes what the memory kept beside the database must learn of them."""

    def __init__(self, engine: RocksEngine) -> None:
        self._engine = engine
        self._tables = engine._tables
        self._handles = engine._handles
        self.batch = batch = WriteBatch(raw_mode=True)
        self._put, self._delete = batch.put, batch.delete
        #: Rows written to fronts and to spaces whose newest rows stay in memory, and keys deleted from the latter.
        self.noted: list[tuple[Space, Sequence[Row]]] = []
        self.gone: list[tuple[Space, Sequence[bytes]]] = []
        self.adds: dict[bytes, int] = {}
        self.appended: dict[Space, int] = {}

    def write(
        self,
        puts: Sequence[tuple[Space, bytes, bytes]],
        deletes: Sequence[tuple[Space, bytes]],
        adds: Sequence[tuple[bytes, int]],
    ) -> None:
        put, delete, handles, noted = self._put, self._delete, self._handles, self.noted
        for space, key, value in puts:
            put(key, value, handles[space])
            if space in _NOTED:
                noted.append((space, ((key, value),)))
        for space, key in deletes:
            delete(key, handles[space])
            if space in _COPIED:
                self.gone.append((space, (key,)))
        self.adds.update(adds)

    def put(self, space: Space, key: bytes, value: bytes) -> None:
        self._put(key, value, self._handles[space])
        if space in _NOTED:
            self.noted.append((space, ((key, value),)))

    def put_many(self, space: Space, rows: Sequence[Row]) -> None:
        put, handle = self._put, self._handles[space]
        for key, value in rows:
            put(key, value, handle)
        if space in _NOTED:
            self.noted.append((space, rows))

    def delete(self, space: Space, key: bytes) -> None:
        self._delete(key, self._handles[space])
        if space in _COPIED:
            self.gone.append((space, (key,)))

    def delete_many(self, space: Space, keys: Sequence[bytes]) -> None:
        delete, handle = self._delete, self._handles[space]
        for key in keys:
            delete(key, handle)
        if space in _COPIED:
            self.gone.append((space, keys))

    def delete_range(self, space: Space, begin: bytes, end: bytes) -> None:
        if space in _RECENT_SPACES:
            raise ValueError(f"rows of {NAMES[space]} are deleted one by one")
        if begin >= end:
            return  # the driver counts such a commit, and forgets it: the log would seem to have lost one
        if space == COUNTERS:
            self.gone.append((space, [key for key in self._engine._counts if begin <= key < end]))
        self.batch.delete_range(begin, end, self._handles[space])

    def forget(self) -> None:
        """Let go of the driver's objects: whoever keeps an exception keeps this transaction, and must not keep those."""
        del self.batch, self._put, self._delete
        self._tables, self._handles = [], []

    def add(self, key: bytes, delta: int) -> None:
        self.adds[key] = self.adds.get(key, 0) + delta

    def guard(self, space: Space, key: bytes) -> None:
        pass

    def next_append(self, space: Space) -> int:
        return self.appended.get(space) or self._engine._next_append.get(space) or self._engine._last_append(space) + 1

    def append(self, space: Space, value: bytes) -> int:
        number = self.next_append(space)
        self.put(space, commit(number), value)
        self.appended[space] = number + 1
        return number


class _Snapshot:
    """One iterator a space, all of one moment."""

    def __init__(self, iterators: dict[Space, Any], points: dict[Space, Any]) -> None:
        self._iterators = iterators
        self._points = points
        self._lock = threading.Lock()

    def get(self, space: Space, key: bytes) -> bytes | None:
        try:
            value: bytes = self._points[space][key]
        except Exception as exc:
            if str(exc) == "key not found":  # its way to say so, apart from every other error by its text alone
                return None
            raise translated(exc) from exc
        return value

    def get_many(self, space: Space, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(space, key) for key in keys]

    def scan(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[Row]:
        with self._lock:
            walk = _backward if reverse else _forward
            return walk(self._iterators[space], begin, end, limit)

    def keys(
        self, space: Space, begin: bytes, end: bytes, limit: int, *, reverse: bool = False, snapshot: bool = False
    ) -> list[bytes]:
        with self._lock:
            if reverse:
                return [key for key, _ in _backward(self._iterators[space], begin, end, limit)]
            return _forward_keys(self._iterators[space], begin, end, limit)

    def held(self) -> list[object]:
        return [*self._iterators.values(), *self._points.values()]

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        return self.scan(space, begin, LAST, limit), []

    def entries(self, space: Space) -> int | None:
        return None  # it only estimates

    def __enter__(self) -> _Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._iterators.clear()
        self._points.clear()


# ── the driver's iterators ───────────────────────────────────────────────────────────────────────────────────────────


def _until(end: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    return options


def _forward(iterator: Any, begin: bytes, end: bytes, limit: int) -> list[Row]:
    rows: list[Row] = []
    key, value, step, valid = iterator.key, iterator.value, iterator.next, iterator.valid
    iterator.seek(begin)
    while valid():
        at = key()
        if at >= end or len(rows) >= limit:
            return rows
        rows.append((at, value()))
        step()
    _check(iterator)
    return rows


def _forward_keys(iterator: Any, begin: bytes, end: bytes, limit: int) -> list[bytes]:
    keys: list[bytes] = []
    key, step, valid = iterator.key, iterator.next, iterator.valid
    iterator.seek(begin)
    while valid():
        at = key()
        if at >= end or len(keys) >= limit:
            return keys
        keys.append(at)
        step()
    _check(iterator)
    return keys


def _backward(iterator: Any, begin: bytes, end: bytes, limit: int) -> list[Row]:
    rows: list[Row] = []
    if end >= LAST:
        iterator.seek_to_last()
    else:
        iterator.seek_for_prev(end)
    while iterator.valid():
        at = iterator.key()
        if at < begin or len(rows) >= limit:
            return rows
        if at < end:
            rows.append((at, iterator.value()))
        iterator.prev()
    _check(iterator)
    return rows


def _here(iterator: Any, front: Front) -> bytes:
    """The first key a scan that found nothing stopped at: the front begins there, or is empty."""
    if iterator.valid():
        key: bytes = iterator.key()
        return key
    return front.end


def _check(iterator: Any) -> None:
    """An iterator that is no longer valid has reached the end, or met damage: only `status` tells which."""
    try:
        iterator.status()
    except Exception as exc:
        raise translated(exc) from exc


# ── opening, and the driver's errors ─────────────────────────────────────────────────────────────────────────────────


def _open(path: Path, cache_capacity: int, mode: Mode) -> Rdict:
    roomy = mode == "high_throughput"
    cache = Cache(cache_capacity)

    def options(space: Space | None = None) -> Options:
        made = Options(raw_mode=True)
        made.create_if_missing(True)
        made.create_missing_column_families(True)
        table = BlockBasedOptions()
        table.set_block_cache(cache)
        table.set_block_size(16 * 1024)
        table.set_format_version(5)
        if space in _POINT_SPACES:
            table.set_bloom_filter(10, False)
        made.set_block_based_table_factory(table)
        made.set_write_buffer_size((32 if roomy else 8) * 1024 * 1024)
        made.set_compression_type(DBCompressionType.lz4() if roomy else DBCompressionType.zstd())
        made.set_level_compaction_dynamic_level_bytes(True)
        return made

    whole = options()
    # point_in_time opens after a power cut that left zeros at the log's end; `Marks` tells if it dropped more.
    whole.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    whole.set_db_write_buffer_size((128 if roomy else 32) * 1024 * 1024)
    # Families that are hardly written hold on to old logs; bounding them bounds recovery after a kill.
    whole.set_max_total_wal_size((256 if roomy else 64) * 1024 * 1024)
    whole.set_max_background_jobs(2)
    whole.set_keep_log_file_num(2)
    whole.set_paranoid_checks(True)
    try:
        return Rdict(str(path), whole, {name: options(space) for space, name in enumerate(NAMES)})
    except Exception as exc:
        error = translated(exc)
        if isinstance(error, Unavailable):
            raise OpenError(f"RocksDB could not open {path}: {exc}") from exc
        raise error from exc


def translated(exc: Exception) -> LeaseholdError:
    """The driver's errors, as ours. It raises plain exceptions: only their text tells them apart."""
    text = str(exc)
    if isinstance(exc, LeaseholdError):
        return exc
    if "orruption" in text or "hecksum" in text or "bad block" in text or "Bad table" in text:
        return Corrupt(f"RocksDB met damaged bytes: {text}")
    if "No space left" in text or "NoSpace" in text:
        return Unavailable(f"the disk is full: make room, then open the store again ({text})")
    if "closed" in text:
        return StoreClosed("this store was closed")
    return Unavailable(f"RocksDB failed: {text}")
