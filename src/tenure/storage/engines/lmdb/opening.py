"""Opening a store: which process makes it, which one is alone with it, and whether all of its files are there."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Any

import lmdb

from tenure.errors import Corrupt, FormatError, OpenError, StoreLocked
from tenure.storage.durable_watermark import DurableWatermark
from tenure.storage.engines.lmdb.reader import translated
from tenure.storage.folder import Folder
from tenure.storage.keyspace import EVERYWHERE, NAMES

if TYPE_CHECKING:
    from tenure.storage.engines.lmdb.reader import Txn

READERS = 512
_LEAST_MAP = 1 << 20


def take(folder: Folder) -> tuple[bool, bool]:
    """Lock the folder; says whether we are alone, and whether there is a store. If not, we are alone, and make it."""
    try:
        folder.check()
    except FormatError:
        if not _wait_for_maker(folder):
            raise
        folder.check()
    while True:
        alone = folder.lock(shared=True)
        try:
            existed = folder.check()  # again, since another process may have been making it until now
        except BaseException:
            folder.unlock()
            raise
        if alone or existed:
            return alone, existed
        folder.unlock()  # its maker gave up


def _wait_for_maker(folder: Folder) -> bool:
    """A folder with files and no FORMAT may be a store in the making: wait for the process that has it locked.

    Changes nothing.
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
            size *= 2  # another process grew it between our looking and our mapping
        except lmdb.Error as exc:
            if "already open" in str(exc):
                advice = "Share the open store: it is safe for threads."
                raise StoreLocked(str(folder.path), "this process", advice) from exc
            found = translated(exc)
            raise found if isinstance(found, Corrupt) else OpenError(f"{folder.path} cannot be opened: {exc}") from exc


def databases(env: lmdb.Environment, txn: Txn, existed: bool) -> list[Any]:
    """One a space, None for those that LMDB does not keep. In a store that exists none is made: one that is missing was lost."""
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
    """DurableWatermark that several processes note in one file."""

    def reach(self, number: int) -> None:
        """Note it, unless another process has noted a later one. Two at once may leave the earlier, until the next."""
        self._load(self._map[:])
        if number > self.durable:
            self.note(number, number)
