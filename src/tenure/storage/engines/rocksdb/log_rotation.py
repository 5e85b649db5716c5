"""Starts a new log only after the old one is durable.

By default RocksDB starts a new log whenever a write buffer is full, while the end of the old log may still be in the
operating system's memory: a power loss may then lose that end and keep the new log (`log_continuity`). So the write
buffers are made too large to fill, and the engine starts new logs itself: under the writer's lock it syncs the log,
then has all write buffers flushed in the background. The first flush creates the new log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocksdict import Rdict

from tenure.storage.engines.rocksdb.log_room import LogRoom

#: Bytes of write batches after which a new log is started, by mode. They bound the write buffers (about twice as many
#: bytes in memory, four times while they are being flushed) and the log that is replayed after a crash.
LOG_BYTES = {"low_space": 16 * 1024 * 1024, "high_throughput": 64 * 1024 * 1024}
#: A write buffer that is never full.
BUFFER_BYTES = 8 * 1024 * 1024 * 1024
#: The most write buffers of one space, including those being flushed; beyond that writers wait.
BUFFERS = 4


class LogRotation:
    """Counts the bytes written to the log, and starts a new one. Requires for every call: the writer's lock is held."""

    def __init__(
        self, tables: Sequence[Rdict], sync: Callable[[], None], mode: str, room: LogRoom | None = None
    ) -> None:
        """`sync` makes all written commits durable; `room` writes zeros after the log's end, None without."""
        self.limit = LOG_BYTES[mode]
        self._tables = tables
        self._sync = sync
        self._room = room
        self._bytes = 0

    def wrote(self, size: int, commits: int) -> None:
        """Count `size` bytes of `commits` commits that were written to the log; start a new log when it is full.

        Raises the errors of `sync` and of the driver; the commits are written all the same.
        """
        self._bytes += size
        if self._bytes >= self.limit:
            self.rotate()
        if self._room is not None:
            self._room.wrote(size, commits)

    def rotate(self) -> None:
        """Sync the log, start a new one, and have the write buffers flushed in the background."""
        self._sync()
        for table in self._tables:
            table.flush(wait=False)
        self._bytes = 0
