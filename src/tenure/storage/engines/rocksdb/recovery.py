"""Opens a database, perhaps after a crash: with a prefix of its history, or not at all.

The engine also reopens its database while the store is in use, after a write that failed because the disk was full or
no file handle was left: RocksDB accepts no more writes then. That is as safe as a restart of the process: RocksDB
replays the log into tables and syncs them before it writes to a new log.
"""

from __future__ import annotations

from typing import NamedTuple

from rocksdict import Rdict

from tenure.errors import Corrupt
from tenure.storage.durable_watermark import DurableWatermark
from tenure.storage.engines.rocksdb.log_continuity import close_gap, find_gap, find_hole, set_aside
from tenure.storage.engines.rocksdb.opening import Mode, open_db
from tenure.storage.folder import LOST, Folder

_MAY_PASS = ("No space left", "NoSpace", "Too many open files", "Disk quota exceeded", "previous error")


class Recovered(NamedTuple):
    db: Rdict
    watermark: DurableWatermark
    #: The log's last sequence number.
    sequence: int
    #: Warnings for the user.
    remarks: tuple[str, ...]


def recover(folder: Folder, boot_id: str, cache_capacity: int, mode: Mode) -> Recovered:
    """Open the folder's database. Requires: the folder's lock is held.

    Logs after a hole, and logs with a gap (see `log_continuity`), are moved to the folder `lost`; the remarks say so.

    Raises Corrupt, and changes nothing, if a commit is missing that was durable, or was written since the machine
    started. Raises OpenError if RocksDB cannot open the database.
    """
    watermark = DurableWatermark(folder.path / "DURABLE", boot_id)
    db = None
    try:
        remarks = list(watermark.remarks())
        gap = find_gap(folder.db)
        if gap is not None:
            _refuse_loss(folder, gap.reaches, watermark.required)
            close_gap(gap, folder.path / LOST)
            remarks.append(
                f"a power cut took rows behind {gap.reaches} out of the middle of a log: those behind them were set aside, "
                f"in {folder.path / LOST}. None of them was known to be durable"
            )
        hole = find_hole(folder.db)
        if hole is not None:
            _refuse_loss(folder, hole.reaches, watermark.required)
            set_aside(hole, folder.path / LOST)
            remarks.append(
                f"a power cut took the end of one log and left a newer one: rows {hole.reaches + 1} to {hole.resumes_at - 1} "
                f"are missing, so those from {hole.resumes_at} on were set aside, in {folder.path / LOST}. None of them was "
                "known to be durable"
            )
        db = open_db(folder.db, cache_capacity, mode)
        sequence = db.latest_sequence_number()
        _refuse_loss(folder, sequence, watermark.required)
        return Recovered(db, watermark, sequence, tuple(remarks))
    except BaseException:
        watermark.close()
        if db is not None:
            db.close()
        raise


def may_pass(error: Exception) -> bool:
    """Whether a write or sync failed for a cause that may pass: no space, no file handle, or an earlier such error."""
    text = str(error)
    return any(sign in text for sign in _MAY_PASS)


def _refuse_loss(folder: Folder, reaches: int, required: int) -> None:
    if reaches < required:
        raise Corrupt(
            f"the newest commits of {folder.path} are lost: the log ends at {reaches}, and reached {required} before. "
            f"Restore a snapshot, or remove {folder.path / 'DURABLE'} to go on without them"
        )
