"""When the database starts a new log: only once the old one is durable.

Left to itself, RocksDB starts a new log whenever a write buffer is full, with the old log's end still in the operating
system's memory: a power cut may then take that end and leave the new log (`log_continuity`). So the write buffers are
made too large to fill up, and the writer starts a new log itself: under the writer's lock it syncs the log, then hands
all write buffers over to be flushed. The first of them brings the new log, which is empty until the writer goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocksdict import Rdict

from tenure.storage.engines.rocksdb.log_room import LogRoom

#: Bytes of write batches after which a new log is started, by mode. They bound the write buffers (about twice as many
#: bytes in memory, four times while they wait to be flushed) and what is read again after a crash.
LOG_BYTES = {"low_space": 16 * 1024 * 1024, "high_throughput": 64 * 1024 * 1024}
#: A write buffer that is never full.
BUFFER_BYTES = 8 * 1024 * 1024 * 1024
#: Write buffers of one space, most of them waiting to be flushed, before writers wait.
BUFFERS = 4


class LogRotation:
    """Counts what is written to the log, and starts a new one. Needs the writer's lock held for everything."""

    def __init__(
        self, tables: Sequence[Rdict], sync: Callable[[], None], mode: str, room: LogRoom | None = None
    ) -> None:
        """`sync` makes all that was written durable; `room`: what writes ahead of the log, if anything does."""
        self.limit = LOG_BYTES[mode]
        self._tables = tables
        self._sync = sync
        self._room = room
        self._bytes = 0

    def wrote(self, size: int, commits: int) -> None:
        """So many bytes more are in the log, of so many commits.

        Raises what `sync` and the driver raise; the bytes are written all the same.
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
