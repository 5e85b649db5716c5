"""Jobs as sorted files: what one attempt of a bulk load makes, for a store in the same file system.

One set of files a queue. Rows come in the order of their ids, which are made here: the load's time, then the partition,
then a count from a random start, so that two attempts, two partitions or two loads never make the same one. `delay` and
`ttl` count from the load's beginning, which is the time its jobs say they were created at.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pyarrow as pa

from leasehold.bulk.staging import complete, requests
from leasehold.errors import InvalidArgument
from leasehold.model.names import QueueName
from leasehold.model.request import JobRequest
from leasehold.model.write import LoadPart, LoadTarget
from leasehold.queueing.loads import rows_path, table_path
from leasehold.storage import keyspace, records
from leasehold.storage.engines.rocksdb.tables import TableWriter
from leasehold.storage.keyspace import DUE, JOBS, PAYLOAD, READY, Due

PARTITIONS = 1 << 20
_PART_BITS = 42
_VARIANT = 1 << 63
KEY_REASON = "a job with a key cannot be loaded in bulk: its key has to be looked up. Use the ordinary path"


class Ids:
    """Ids of one attempt, ascending."""

    def __init__(self, now_ms: int, partition: int) -> None:
        if not 0 <= partition < PARTITIONS:
            raise InvalidArgument(f"a bulk load has at most {PARTITIONS:,} partitions")
        high = now_ms << 16 | 0x7000 | secrets.randbits(12)
        self._next = high << 64 | _VARIANT | partition << _PART_BITS | secrets.randbits(_PART_BITS - 1)

    def take(self, count: int) -> list[bytes]:
        first = self._next
        self._next += count
        return [number.to_bytes(16, "big") for number in range(first, first + count)]


class LoadWriter:
    """The files of one attempt. They count only once they are closed, and a load names them."""

    def __init__(
        self, folder: Path, name: str, partition: int, now_ms: int, target: Callable[[QueueName], LoadTarget]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name, self._now, self._target = folder, name, now_ms, target
        self._ids = Ids(now_ms, partition)
        self._queues: dict[QueueName, _QueueFiles] = {}
        self.rows = 0

    def add(self, queue: QueueName, rows: pa.RecordBatch) -> None:
        files = self._queues.get(queue)
        if files is None:
            name = f"{self._name}-{len(self._queues)}"
            files = self._queues[queue] = _QueueFiles(self._folder, name, self._now, self._target(queue))
        ids = self._ids.take(rows.num_rows)
        if rows.num_columns == 1:
            files.add_plain(ids, rows.column(0).to_pylist())
        else:
            files.add(ids, requests(complete(rows)))
        self.rows += rows.num_rows

    def close(self) -> list[LoadPart]:
        return [files.close() for files in self._queues.values()]


class _QueueFiles:
    def __init__(self, folder: Path, name: str, now_ms: int, target: LoadTarget) -> None:
        self._folder, self._name, self._now, self._target = folder, name, now_ms, target
        self._prefix = keyspace.queue_prefix(target.number)
        self._jobs = TableWriter(str(table_path(folder, name, JOBS)), filtered=True)
        self._parts: TableWriter | None = None
        self._ready: list[bytes] = []
        self._due: list[bytes] = []
        self._rows: list[bytes] = []

    def add_plain(self, ids: list[bytes], payloads: list[bytes]) -> None:
        """Jobs of nothing but a payload: the commonest, by the shortest way."""
        now, prefix, put = self._now, self._prefix, self._jobs.put
        head = keyspace.ready(self._target.number, 0, now, b"\0" * 16)[:-16]
        tail = records.LOAD_ROW.pack(b"\0" * 16, 0, 0, now, self._target.max_attempts, 0)[16:]
        large = records.PART_BYTES
        encode = records.encode_job
        for job, payload in zip(ids, payloads, strict=True):
            if len(payload) > large:
                self._add_one(job, JobRequest(payload))
                continue
            put(prefix + job, encode(now, payload, b"", b"")[0])
            self._ready.append(head + job)
            self._rows.append(job + tail)

    def add(self, ids: list[bytes], jobs: list[JobRequest]) -> None:
        for job, request in zip(ids, jobs, strict=True):
            self._add_one(job, request)

    def _add_one(self, job: bytes, request: JobRequest) -> None:
        payload, delay_ms, at_ms, priority, key, attempts, ttl_ms, headers = request
        if key is not None:
            raise InvalidArgument(KEY_REASON)
        now, number = self._now, self._target.number
        visible = now + delay_ms if at_ms is None else max(now, at_ms - self._target.drift_ms)
        row, further = records.encode_job(now, payload, b"", records.encode_headers(headers) if headers else b"")
        self._jobs.put(self._prefix + job, row)
        flags = due_at = 0
        if further:
            flags = records.HAS_PARTS
            if self._parts is None:
                self._parts = TableWriter(str(table_path(self._folder, self._name, PAYLOAD)))
            self._parts.put_many(
                [(keyspace.payload_part(number, job, part), value) for part, value in enumerate(further, 1)]
            )
        if ttl_ms is not None:
            due_at = now + ttl_ms
            self._due.append(keyspace.due(Due.TTL, due_at, number, job))
        self._ready.append(keyspace.ready(number, priority, visible, job))
        self._rows.append(
            records.LOAD_ROW.pack(job, priority, flags, visible, attempts or self._target.max_attempts, due_at)
        )

    def close(self) -> LoadPart:
        self._jobs.close()
        spaces = [JOBS]
        if self._parts is not None:
            self._parts.close()
            spaces.append(PAYLOAD)
        for space, keys in ((READY, self._ready), (DUE, self._due)):
            if keys:
                keys.sort()  # mostly in order already
                writer = TableWriter(str(table_path(self._folder, self._name, space)))
                put = writer.put
                for key in keys:
                    put(key, b"")
                writer.close()
                spaces.append(space)
        body = b"".join(self._rows)
        with rows_path(self._folder, self._name).open("wb") as out:
            out.write(body)
            out.write(crc32(body).to_bytes(4, "big"))
            out.flush()
            os.fsync(out.fileno())
        return LoadPart(self._name, self._target.number, len(self._rows), spaces)
