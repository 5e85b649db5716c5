"""Checks, before RocksDB opens a database, that its logs are contiguous.

RocksDB starts a new log now and then, and the operating system writes files back in any order. So after a power loss
the newer log may exist while the end of the older one is missing. RocksDB detects an older log that ends inside a
record, and stops there. A log that ends between two records looks complete to it: it would continue with the newer log,
and the store would have a hole.

Every record of a log holds the sequence number of its first row and the number of its rows, so a hole is a gap in the
sequence numbers between two logs:

    000012.log   … 4711 4712 4713 |           the rest did not reach the disk
    000015.log   4720 4721 …                   4714 to 4719 are missing: this log and those after it are set aside

Such a gap is a hole only if the tables (the `.sst` files) do not contain those rows either: ingesting a file uses a
sequence number without a log record, and an obsolete log may be left beside newer ones. To decide, the database is
opened without its logs, in a folder of its own; this is done only if the logs have a gap.

Inside a log, too, pages are written back in any order, and a page that was not written reads as zeros (`log_room`).
Where a record begins with zeros, RocksDB skips the rest of the block, and continues if the next block happens to begin
with a record. So a log with zeros before its last byte is scanned, and cut where zeros are in the place of a record.

The log's format is RocksDB's: blocks of 32 KiB with fragments of records, each after a header of seven bytes (CRC,
length, kind). A record is a write batch, which begins with sequence number and count.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from rocksdict import AccessType, Options, Rdict

from tenure.storage.folder import make_private, sync_path
from tenure.storage.keyspace import NAMES

_BLOCK = 32 * 1024
_HEADER = Struct("<IHB")
_BATCH = Struct("<QI")
#: A sector that was not written.
_NOT_WRITTEN = bytes(512)
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
#: Files that are not needed to open the database without its logs.
_NOT_LOOKED_AT = (".log", ".dbtmp")


class Hole(NamedTuple):
    """Sequence numbers that are missing between two logs."""

    #: The last sequence number before the hole, and the first after it.
    reaches: int
    resumes_at: int
    #: The logs after it, oldest first.
    behind: tuple[Path, ...]


class Gap(NamedTuple):
    """Zeros in a log in the place of a record, with other bytes after them."""

    log: Path
    #: The end of the last complete record before them, and its last sequence number; 0: the log begins with zeros.
    at: int
    reaches: int


class Tables(NamedTuple):
    """The contents of the database without its logs."""

    reaches: int  # the largest sequence number
    oldest_log: int  # the number of the oldest log that is still needed


def find_hole(db: Path) -> Hole | None:
    """The first hole between the logs; None if there is none. Requires: no process has the database open."""
    logs = sorted(db.glob("*.log"), key=_number)
    if len(logs) < 2 or _hole(logs, None) is None:
        return None
    tables = _tables(db)
    needed = [log for log in logs if _number(log) >= tables.oldest_log]
    return _hole(needed, tables.reaches)


def find_gap(db: Path) -> Gap | None:
    """The first gap inside a log; None if there is none. Requires: no process has the database open."""
    for log in sorted(db.glob("*.log"), key=_number):
        data = log.read_bytes()
        written = len(data.rstrip(b"\0"))
        if data.find(_NOT_WRITTEN, 0, written) < 0:
            continue
        end = reaches = 0
        for batch in _batches(data):
            end, reaches = batch.end, batch.begins + batch.rows - 1
        at = end if _BLOCK - end % _BLOCK >= _HEADER.size else end + _BLOCK - end % _BLOCK
        if end < written and not any(data[at : at + _HEADER.size]):
            return Gap(log, end, reaches)
    return None


def close_gap(gap: Gap, into: Path) -> None:
    """Cut the log before the gap, and keep a complete copy of it in the folder `into`."""
    make_private(into)
    kept = _unused(into, gap.log.name)
    shutil.copyfile(gap.log, kept)
    with open(kept, "rb") as copy:
        os.fsync(copy.fileno())
    sync_path(into)
    # Synced: rows behind the gap that came back later would be behind new ones.
    with open(gap.log, "rb+") as log:
        log.truncate(gap.at)
        os.fsync(log.fileno())


def set_aside(hole: Hole, into: Path) -> None:
    """Move the logs after a hole to the folder `into`, so that the database opens with the rows before the hole."""
    make_private(into)
    for log in reversed(hole.behind):  # the newest first: if this is interrupted, the same hole is found again
        os.replace(log, _unused(into, log.name))
    sync_path(into)
    sync_path(hole.behind[0].parent)


def _hole(logs: list[Path], reaches: int | None) -> Hole | None:
    """The first hole between these logs. `reaches`: the tables' last sequence number; None: not known, any log may be
    the first.
    """
    empty = False
    for index, log in enumerate(logs):
        data = log.read_bytes()
        first = next(_batches(data), None)
        if first is None:
            empty = True
            continue
        begins = first.begins
        if reaches is not None and begins > reaches + 1:
            return Hole(reaches, begins, tuple(logs[index:]))
        if reaches is None and empty:
            return Hole(0, begins, tuple(logs[index:]))  # suspicious: RocksDB does not start a log after an empty one
        if index < len(logs) - 1:
            for batch in _batches(data):
                reaches = max(reaches or 0, batch.begins + batch.rows - 1)
    return None


class _Batch(NamedTuple):
    #: Its first sequence number, and how many rows it has.
    begins: int
    rows: int
    #: Where its record ends in the log.
    end: int


def _batches(data: bytes) -> Iterator[_Batch]:
    """The complete batches of a log, in order."""
    at, end = 0, len(data)
    begun: bytes | None = None
    while at + _HEADER.size <= end:
        left = _BLOCK - at % _BLOCK
        if left < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        body = at + _HEADER.size
        at = body + length
        if (kind == 0 and length == 0) or at > end:
            return  # zeros in the place of a record, or an incomplete record
        if kind == _WHOLE:
            begins, rows = _BATCH.unpack_from(data, body)
            yield _Batch(begins, rows, at)
            begun = None
        elif kind == _FIRST:
            begun = data[body : min(at, body + _BATCH.size)]
        elif kind in (_MIDDLE, _LAST) and begun is not None:
            if len(begun) < _BATCH.size:  # the header of the batch is split, too
                begun += data[body : min(at, body + _BATCH.size - len(begun))]
            if kind == _LAST:
                begins, rows = _BATCH.unpack(begun)
                yield _Batch(begins, rows, at)
                begun = None


def _tables(db: Path) -> Tables:
    """Open the database without its logs, read-only, through hard links in a folder beside it."""
    beside = db.with_name("db.tables")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(mode=0o700)
    try:
        for file in db.iterdir():
            if file.is_file() and file.suffix not in _NOT_LOOKED_AT and file.name not in ("LOCK", "LOG"):
                os.link(file, beside / file.name)
        options = Options(raw_mode=True)
        options.set_max_open_files(16)
        options.set_max_file_opening_threads(1)  # see `opening.opening_threads`
        found = Rdict(
            str(beside), options, {name: Options(raw_mode=True) for name in NAMES}, AccessType.read_only(False)
        )
        try:
            oldest = found.property_int_value("rocksdb.min-log-number-to-keep")
            return Tables(found.latest_sequence_number(), oldest or 0)
        finally:
            found.close()
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _number(log: Path) -> int:
    return int(log.stem) if log.stem.isdigit() else 0


def _unused(folder: Path, name: str) -> Path:
    place, count = folder / name, 1
    while place.exists():
        place, count = folder / f"{name}.{count}", count + 1
    return place
