"""Zeros ahead of the log's end, where every commit is synced: a sync of bytes that replace others is cheaper.

A log that grows changes its file's length and takes new blocks with each commit, which the file system has to make
durable too. Written over zeros that are there already, 500 bytes took 141 instead of 176 us, 20 KB 298 instead of 517, and
60 KB 433 instead of 808 (ext4, medians of write and sync, in turn in one process).

RocksDB writes at its own position in the file, and cuts the file to that when it closes the log. The zeros are written
behind the file's end, under the writer's lock: RocksDB writes nothing meanwhile. After a crash the log ends in zeros,
which its recovery and `log_continuity` take for the end.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Zeros that are written at once.
ROOM = 1024 * 1024
#: Bytes of batches after which there may be too little room; what a log adds to each batch is less than the rest.
ENOUGH = ROOM // 4 * 3
#: The first zeros are written after so many bytes: a store that is opened for a few commits does without.
FIRST = 16 * 1024
#: Larger commits, on average, are not worth it: every byte is written twice.
_LARGE = 64 * 1024
_ZEROS = bytes(ROOM)


class LogRoom:
    """Needs the writer's lock held for everything."""

    def __init__(self, db: Path) -> None:
        self._db = db
        #: Bytes and commits since zeros were last written, or would have been.
        self._bytes = ENOUGH
        self._commits = 0

    def wrote(self, size: int, commits: int) -> None:
        """So many bytes more are in the log, of so many commits."""
        self._bytes += size
        self._commits += commits
        if self._bytes >= ENOUGH:
            small = self._bytes < _LARGE * self._commits
            self._bytes = self._commits = 0
            if small:
                self._write()

    def _write(self) -> None:
        """Zeros behind the end of the newest log. Without room on the disk there are none, and the log grows as ever."""
        newest = max(self._db.glob("*.log"), key=lambda log: int(log.stem), default=None)
        if newest is None:
            return
        try:
            handle = os.open(newest, os.O_WRONLY)
        except OSError:
            return  # no file handle is left: the next commit may have one
        try:
            end = os.fstat(handle).st_size
            try:
                os.pwrite(handle, _ZEROS, end)
            except OSError:
                os.ftruncate(handle, end)
        except OSError:
            pass
        finally:
            os.close(handle)
