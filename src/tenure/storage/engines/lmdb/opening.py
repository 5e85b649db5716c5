"""Opening a store: which process creates it, whether it has the store alone, and whether all files are there."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Any

import lmdb

from tenure.errors import Corrupt, FormatError, OpenError, StoreLocked, TenureError
from tenure.storage.durable_watermark import DurableWatermark
from tenure.storage.engines.lmdb.reader import translated
from tenure.storage.folder import Folder
from tenure.storage.keyspace import EVERYWHERE, NAMES

if TYPE_CHECKING:
    from tenure.storage.engines.lmdb.reader import Txn

READERS = 512
_LEAST_MAP = 1 << 20


def take(folder: Folder) -> tuple[bool, bool]:
    """Lock the folder. Returns whether we have it alone, and whether a store exists; if none does, we are alone."""
    try:
        folder.check()
    except FormatError:
        if not _wait_for_maker(folder):
            raise
        folder.check()
    while True:
        alone = folder.lock(shared=True)
        try:
            existed = folder.check()  # again: another process may have created it meanwhile
        except BaseException:
            folder.unlock()
            raise
        if alone or existed:
            return alone, existed
        folder.unlock()  # the process that was creating it gave up


def _wait_for_maker(folder: Folder) -> bool:
    """Wait while another process has the folder locked: files without FORMAT may be a store that it is creating.

    Changes nothing. False: no process has ever locked it.
    """
    try:
        fd = os.open(folder.path / "OWNER", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)
    return True


def open_env(folder: Folder, map_size: int) -> lmdb.Environment:
    size = max(map_size, _LEAST_MAP)
    while True:
        try:
            return lmdb.open(
                str(folder.db),
                map_size=-(-size // mmap.PAGESIZE) * mmap.PAGESIZE,
                max_dbs=len(EVERYWHERE),
                max_readers=READERS,
                mode=0o600,
            )
        except lmdb.MapResizedError:
            size *= 2  # another process grew it meanwhile
        except lmdb.Error as exc:
            if "already open" in str(exc):
                advice = "Share the open store: it is safe for threads."
                raise StoreLocked(str(folder.path), "this process", advice) from exc
            raise refusal(folder, exc) from exc


def refusal(folder: Folder, exc: lmdb.Error) -> TenureError:
    """The error for a store that LMDB cannot open."""
    found = translated(exc)
    return found if isinstance(found, Corrupt) else OpenError(f"{folder.path} cannot be opened: {exc}")


def databases(env: lmdb.Environment, txn: Txn, existed: bool) -> list[Any]:
    """A database for each space, None for those that LMDB does not keep. Raises Corrupt if an old store lacks one."""
    try:
        return [
            env.open_db(name.encode(), txn, create=not existed) if space in EVERYWHERE else None
            for space, name in enumerate(NAMES)
        ]
    except lmdb.NotFoundError as exc:
        raise Corrupt(f"the store is damaged: one of its databases is missing ({exc})") from exc
    except lmdb.Error as exc:
        raise translated(exc) from exc


class SharedWatermark(DurableWatermark):
    """A `DurableWatermark` that several processes record in one file."""

    def reach(self, number: int) -> None:
        """Record `number` unless a later one is recorded. A race may leave the earlier number until the next call."""
        self._load(self._map[:])
        if number > self.durable:
            self.note(number, number)
