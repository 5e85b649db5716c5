"""The LMDB engine: transactions, growth of the map, copies."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb

from tenure.errors import Corrupt, OpenError, StoreClosed, TenureError, Unavailable
from tenure.storage.durable_watermark import DurableWatermark
from tenure.storage.engine import Durability, Reader, Row, Snapshot, Space, Traits, Transaction
from tenure.storage.engines.lmdb.flat_combining import Combiner, Request
from tenure.storage.engines.lmdb.map_gate import Gate
from tenure.storage.engines.lmdb.opening import SharedWatermark, databases, open_env, refusal, take
from tenure.storage.engines.lmdb.reader import KEY_BYTES, Rows, translated
from tenure.storage.engines.lmdb.transaction import LmdbTransaction
from tenure.storage.folder import Folder, make_private, sync_path
from tenure.storage.keyspace import EVERYWHERE

if TYPE_CHECKING:
    from tenure.storage.engines.lmdb.reader import Txn

T = TypeVar("T")

GROUP = 64  # the most callers that share one commit
TURN, REST = 0.05, 0.0005  # after so many seconds of writing, sleep so long: other processes get LMDB's writer lock
PATIENCE = 30.0  # seconds to wait for snapshots to close before the map can grow
_TRIES = 5  # to begin a transaction, each after removing the cause of the failure


class LmdbEngine:
    """An open LMDB, shared with other processes of this host."""

    traits = Traits(
        scope="host",
        order="strict",
        snapshot="store",
        durability="disk",
        atomic_bytes=2**30,
        key_bytes=KEY_BYTES,
        value_bytes=2**30,
        poll=0.002,
    )

    def __init__(
        self,
        path: str,
        *,
        map_size: int = 1 << 30,
        boot_id: str,
        durability: Durability = "disk",
        upgrading: bool = False,
    ) -> None:
        """`durability` is accepted and ignored: LMDB always syncs (`disk`)."""
        self._folder = folder = Folder(path, "lmdb", upgrading=upgrading)
        self.home = folder.path
        self.alone, existed = take(folder)
        self._owner = os.getpid()
        self.retried: Callable[[str], None] = lambda why: None
        self.begin: Callable[[Reader, int], Transaction] = Transaction
        self.forgetters: list[Callable[[], None]] = []
        self.loader = None
        self.group_commit = None
        self._rested = time.monotonic()
        self._gate = Gate()
        self._combiner = Combiner(self._commit, GROUP)
        try:
            self._env = open_env(folder, map_size)
            try:
                self._page = self._env.stat()["psize"]
                self._dbs = self._open_databases(existed and not upgrading)
                self._marks = SharedWatermark(folder.path / "DURABLE", boot_id)
                self.remarks = self._marks.remarks()
                self._check_tail()
                self.tend()
                if not existed:
                    folder.write_format()
            except BaseException:
                self._env.close()
                raise
        except BaseException:
            folder.unlock()
            raise

    # ── the seam ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def transact(self, fn: Callable[[Transaction], T]) -> T:
        if os.getpid() != self._owner:
            raise _forked()
        result: T = self._combiner.submit(fn)
        return result

    def read(self, fn: Callable[[Rows], T]) -> T:
        txn = self._begin()
        try:
            return fn(Rows(txn, self._dbs))
        finally:
            txn.abort()
            self._gate.leave()

    def snapshot(self, spaces: Sequence[Space] | None = None) -> Snapshot:
        if os.getpid() != self._owner:
            raise _forked()  # before the gate: a thread of the parent may have held its lock, and is not here to release it
        self._make_room()
        txn = self._begin()
        try:
            snapshot = _Snapshot(txn, self._dbs, self._gate, self._owner)
            self._gate.hold(snapshot)
        finally:
            self._gate.leave()
        return snapshot

    def version(self) -> int:
        # The transaction number that a reader sees. The environment's `last_txnid` comes from the newest meta page,
        # which is written before readers can use it: a waiter that compared with it would miss the commit.
        txn = self._begin()
        try:
            return int(txn.id())
        finally:
            txn.abort()
            self._gate.leave()

    def durable(self) -> int | None:
        return None

    def share(self) -> None:
        if self.alone:
            self._folder.share()

    def tend(self) -> None:
        """Cheap housekeeping, for the sweeper: free the slots of dead readers, and grow the map before it is full."""
        if os.getpid() != self._owner:
            raise _forked()
        self._folder.verify()
        self._free_slots()
        self._make_room()

    def export(self, path: str) -> None:
        target = Folder(path, "lmdb")
        if target.path.exists():
            raise OpenError(f"{target.path} exists already: a copy is written into a new folder")
        make_private(target.path)
        make_private(target.db)
        try:
            self._copy(target)
        except BaseException:
            shutil.rmtree(target.path, ignore_errors=True)
            raise

    def close(self) -> None:
        if os.getpid() != self._owner or not self._combiner.stop():
            return
        try:
            self._marks.reach(self.version())
        except TenureError:
            pass  # the process that opens the store next meets the same error, and reports it
        finally:
            self._gate.close()
            self._env.close()
            self._marks.close()
            self._folder.unlock()

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, *, write: bool = False) -> Txn:
        """Begin a transaction. The caller is inside the gate then, and must leave it. Raises our errors."""
        if os.getpid() != self._owner:
            raise _forked()
        for _ in range(_TRIES):
            try:
                self._gate.enter()
                return self._env.begin(write=write)
            except lmdb.MapResizedError:
                mend = self._adopt
            except lmdb.ReadersFullError:
                mend = self._free_slots
            except lmdb.Error as exc:
                self._gate.leave()
                raise translated(exc) from exc
            except BaseException:
                self._gate.leave()
                raise
            self._gate.leave()
            mend()
        raise Unavailable("the store's map keeps growing, or its reader slots stay taken: try again")

    def _commit(self, group: list[Request], own: Request) -> None:
        """Run the group's requests in one LMDB transaction, and settle each. `own` is the leader's request.

        A request that breaks the shared transaction gets its error; the others run again without it.
        """
        pending = group
        while pending:
            try:
                self._attempt(pending, own)
            except _Spoiled as spoiled:
                spoiled.request.fail(spoiled.error)
                if len(pending) > 1:
                    self.retried("spoiled")
            except lmdb.MapFullError:
                self.retried("map_full")
                self._answer_failures(pending, self._grow)
            except lmdb.Error as exc:
                _fail(pending, translated(exc))
            except TenureError as exc:
                _fail(pending, exc)
            pending = [request for request in pending if not request.settled]

    def _attempt(self, pending: list[Request], own: Request) -> None:
        """Run the requests one after another in one LMDB transaction. If it raises an error, nothing is committed."""
        self._folder.verify()
        txn = self._begin(write=True)
        last: dict[Space, int] = {}
        try:
            steps = [self._step(txn, request, own, last) for request in pending]  # a list: `any` would stop early
            wrote = any(steps)
            number = txn.id()
            txn.commit()  # also without writes: it writes nothing then, and does not wait for readers as `abort` does
        except BaseException as exc:
            if isinstance(exc, (lmdb.Error, _Spoiled)) or _open_still(txn):
                self._abort(txn)
                raise
            # Interrupted between the commit and the next line: it is committed, and must not run again.
            _settle(pending)
            raise
        finally:
            self._gate.leave()
        if wrote:
            self._marks.reach(number)
        _settle(pending)
        self._give_way()

    def _abort(self, txn: Txn) -> None:
        """Undo a write transaction while no other thread reads.

        The driver waits, holding LMDB's writer lock, until no other thread is inside a call. A few threads that read
        all the time would make it wait for ever.
        """
        with self._gate.quiet():
            txn.abort()

    def _step(self, txn: Txn, request: Request, own: Request, last: dict[Space, int]) -> bool:
        """Run one request's function and apply its writes. Returns whether it wrote anything."""
        transaction = LmdbTransaction(Rows(txn, self._dbs), last)
        try:
            request.result, request.error = request.fn(transaction), None
            transaction.finish()
        except BaseException as exc:
            if request is not own and _meant_for_this_thread(exc):
                raise
            if transaction.broken is not None:
                raise _Spoiled(request, exc) from exc
            request.error = exc
            return False
        if transaction.broken is not None:
            raise _Spoiled(request, transaction.broken)
        try:
            return transaction.apply()
        except lmdb.MapFullError:
            raise
        except lmdb.Error as exc:
            raise _Spoiled(request, translated(exc)) from exc
        except Exception as exc:
            raise _Spoiled(request, exc) from exc

    def _give_way(self) -> None:
        """Sleep briefly now and then, so that other processes can write.

        LMDB's writer lock is not fair: a process that releases it and takes it again at once usually gets it.
        """
        now = time.monotonic()
        if now - self._rested > TURN:
            time.sleep(REST)
            self._rested = time.monotonic()

    # ── the map ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _grow(self, patience: float = PATIENCE) -> None:
        with self._gate.alone(patience):
            self._env.set_mapsize(2 * self._env.info()["map_size"])

    def _adopt(self) -> None:
        """Adopt the size of the map after another process has grown it."""
        with self._gate.alone(PATIENCE):
            self._env.set_mapsize(0)

    def _free_slots(self) -> None:
        self._gate.enter()
        try:
            self._env.reader_check()
        except lmdb.Error as exc:
            raise translated(exc) from exc
        finally:
            self._gate.leave()

    def _make_room(self) -> None:
        """Grow the map early: while a snapshot is open it cannot grow, and writers that need it have to wait."""
        self._gate.enter()
        try:
            info = self._env.info()
        finally:
            self._gate.leave()
        if 2 * info["last_pgno"] * self._page > info["map_size"]:
            try:
                self._grow(patience=0.1)
            except Unavailable:
                return  # a snapshot or a long read is open: a later call tries again

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _answer_failures(self, pending: list[Request], work: Callable[[], None]) -> None:
        try:
            work()
        except lmdb.Error as exc:
            _fail(pending, translated(exc))
        except TenureError as exc:
            _fail(pending, exc)

    def _open_databases(self, existed: bool) -> list[Any]:
        # A write transaction, even if it creates nothing: handles opened by a read transaction end with it.
        txn = self._begin(write=True)
        try:
            dbs = databases(self._env, txn, existed)
            txn.commit()
        except lmdb.Error as exc:
            raise refusal(self._folder, exc) from exc
        finally:
            txn.abort()
            self._gate.leave()
        return dbs

    def _check_tail(self) -> None:
        """Raise Corrupt if the newest transaction is older than the watermark: commits were lost."""
        required = self._marks.required  # recorded after its commit, so every later read sees that commit
        last = self.version()
        if last < required:
            raise Corrupt(
                f"the newest commits of {self._folder.path} are lost: the last is {last}, and there were {required} "
                f"before. Restore a snapshot, or remove {self._folder.path / 'DURABLE'} to go on without them"
            )

    def _copy(self, target: Folder) -> None:
        with self.snapshot():  # keeps the map from moving
            try:
                self._env.copy(str(target.db), compact=True)
            except lmdb.Error as exc:
                raise translated(exc) from exc
        with (target.db / "data.mdb").open("rb+") as data:
            os.fsync(data.fileno())
        target.tighten()
        sync_path(target.db)
        with lmdb.open(str(target.db), readonly=True, lock=False, max_dbs=len(EVERYWHERE)) as copy:
            last = copy.info()["last_txnid"]
        marks = DurableWatermark(target.path / "DURABLE", "")
        marks.note(last, last)
        marks.close()
        target.write_format()


class _Snapshot(Rows, Snapshot):
    """A read transaction that stays open. Any thread may use it, one at a time."""

    def __init__(self, txn: Txn, dbs: Sequence[Any], gate: Gate, owner: int) -> None:
        super().__init__(txn, dbs)
        self._gate = gate
        self._owner = owner

    def get(self, space: Space, key: bytes) -> bytes | None:
        self._enter()
        try:
            return super().get(space, key)
        finally:
            self._gate.leave()

    def _walk(self, space: Space, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Row]:
        self._enter()
        try:
            return super()._walk(space, begin, end, limit, reverse)
        finally:
            self._gate.leave()

    def salvage(self, space: Space, begin: bytes, limit: int) -> tuple[list[Row], list[Corrupt]]:
        self._enter()
        try:
            return super().salvage(space, begin, limit)
        finally:
            self._gate.leave()

    def entries(self, space: Space) -> int | None:
        self._enter()
        try:
            return int(self.txn.stat(self.dbs[space])["entries"])
        except lmdb.Error as exc:
            raise self._failed(exc) from exc
        finally:
            self._gate.leave()

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # ending it here would end the parent's too
        try:
            self._gate.enter()
        except StoreClosed:
            return  # the closed store ended it
        try:
            self.txn.abort()
            self._gate.drop(self)
        finally:
            self._gate.leave()

    def _enter(self) -> None:
        if os.getpid() != self._owner:
            raise _forked()
        self._gate.enter()


class _Spoiled(Exception):
    """One request has broken the shared transaction."""

    def __init__(self, request: Request, error: BaseException) -> None:
        self.request = request
        self.error = error


def _settle(pending: list[Request]) -> None:
    for request in pending:
        request.settled = True


def _fail(pending: list[Request], error: TenureError) -> None:
    for request in pending:
        request.fail(error)


def _open_still(txn: Txn) -> bool:
    try:
        txn.id()
    except lmdb.Error:
        return False
    return True


def _meant_for_this_thread(exc: BaseException) -> bool:
    """Whether a signal handler raised it: in the main thread, perhaps while it runs another caller's function."""
    return not isinstance(exc, Exception) and threading.current_thread() is threading.main_thread()


def _forked() -> StoreClosed:
    return StoreClosed("this process is a fork of the one that opened the store: open it anew in the child")
