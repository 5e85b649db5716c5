"""Sorted files of jobs: what one task attempt writes for a bulk load, in the store's own file system.

Each queue has one set of files. Jobs that have only a payload are stored as segments, all others as rows. This module
makes the ids, in ascending order: the load's time, then the partition, then a count from a random start. Two attempts,
two partitions or two loads therefore never make the same id. `delay` and `ttl` count from the load's beginning, which is
also the `created_at` of its jobs.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tenure.bulk import layouts
from tenure.bulk.arrays import Bytes, Ints
from tenure.errors import InvalidArgument
from tenure.model.ids import MARK, queue_mark
from tenure.model.names import QueueName
from tenure.model.write import LoadPart, LoadTarget
from tenure.queueing.bulk_loads import encode_rows, rows_path, table_path
from tenure.storage import keyspace, records
from tenure.storage.checksum import crc32
from tenure.storage.engine import Row
from tenure.storage.engines.rocksdb.table_writer import TableWriter
from tenure.storage.folder import sync_names
from tenure.storage.keyspace import DUE, JOBS, PAYLOAD, SEGMENTS, Due
from tenure.storage.records import LoadShape
from tenure.storage.segments import SegmentedTransaction

PARTITIONS = 1 << 20
_PART_BITS = 36  # the partition ends where the mark of the queue begins
_VARIANT = 1 << 63
KEY_REASON = "a job with a key cannot be loaded in bulk: its key has to be looked up. Use the ordinary path"


class Ids:
    """Ids of one attempt, ascending."""

    def __init__(self, now_ms: int, partition: int) -> None:
        if not 0 <= partition < PARTITIONS:
            raise InvalidArgument(f"a bulk load has at most {PARTITIONS:,} partitions")
        high = now_ms << 16 | 0x7000 | secrets.randbits(12)
        self._next = high << 64 | _VARIANT | partition << _PART_BITS | secrets.randbits(_PART_BITS - 1)

    def take(self, count: int) -> Bytes:
        first = self._next
        self._next += count
        made = np.empty((count, 2), dtype=">u8")
        made[:, 0] = first >> 64
        made[:, 1] = np.arange(count, dtype=np.uint64) + np.uint64(first & 2**64 - 1)
        return made.view(np.uint8).reshape(count, 16)


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
        if not rows.num_rows:
            return
        files = self._queues.get(queue)
        if files is None:
            name = f"{self._name}-{len(self._queues)}"
            files = self._queues[queue] = _QueueFiles(self._folder, name, self._now, self._target(queue))
        files.add(self._ids.take(rows.num_rows), rows)
        self.rows += rows.num_rows

    def close(self) -> list[LoadPart]:
        parts = [files.close() for files in self._queues.values()]
        sync_names(self._folder)
        return parts


class _Shapes(NamedTuple):
    """The fields of a batch's jobs that their states need: one array for each field, in stored units."""

    priority: Ints
    flags: Ints
    visible_at_ms: Ints
    max_attempts: Ints
    due_at_ms: Ints

    def runs(self) -> list[tuple[int, LoadShape]]:
        """(how many, shape) of neighbours that are alike."""
        changes = np.zeros(len(self.priority), dtype=bool)
        for column in self:
            changes[1:] |= column[1:] != column[:-1]
        changes[0] = True
        starts = np.flatnonzero(changes)
        counts = np.diff(starts, append=len(changes)).tolist()
        shapes = zip(*[column[starts].tolist() for column in self], strict=True)
        return [(count, LoadShape(*shape)) for count, shape in zip(counts, shapes, strict=True)]


class _Payloads:
    """A column of payloads, as bytes objects or as they lie in Arrow's memory."""

    def __init__(self, column: pa.Array) -> None:
        """`column` is of large binaries, at least one, none of them null."""
        _, offsets, values = column.buffers()
        ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self._column = column
        self._values = memoryview(b"" if values is None else values)
        self._ends = ends
        sizes = np.diff(ends)
        self.longest = int(sizes.max())
        #: The length of every payload, 0 where they differ.
        self.width = self.longest if int(sizes.min()) == self.longest else 0

    def __len__(self) -> int:
        return len(self._column)

    def each(self, first: int, end: int) -> Sequence[bytes]:
        """The payloads at these places.

        Callers take few at a time, so that a batch is never copied as a whole.
        """
        if self.width:
            return _slots(self.width, end - first).unpack_from(self._values, int(self._ends[first]))
        found: list[bytes] = self._column.slice(first, end - first).to_numpy(zero_copy_only=False).tolist()
        return found

    def packed(self, first: int, end: int) -> memoryview:
        """The same payloads side by side."""
        return self._values[self._ends[first] : self._ends[end]]


@lru_cache(64)
def _slots(width: int, count: int) -> Struct:
    return Struct(f"{width}s" * count)


class _QueueFiles:
    def __init__(self, folder: Path, name: str, now_ms: int, target: LoadTarget) -> None:
        self._folder, self._name, self._now, self._target = folder, name, now_ms, target
        self._tables: dict[int, TableWriter] = {}
        self._keys: list[bytes] = []
        #: The ids and shapes of jobs that are stored as rows.
        self._ids: list[Bytes] = []
        self._shapes: list[_Shapes] = []
        self._runs: list[tuple[int, LoadShape]] = []
        #: The place of each group's name, and for each job that has a group the place of its name.
        self._group_places: dict[str, int] = {}
        self._members: list[int] = []

    def add(self, ids: Bytes, rows: pa.RecordBatch) -> None:
        """Add jobs in the order of their ids. `rows` has columns of `input_rows.STAGED`; those that are null may be left out."""
        ids[:, MARK] = np.frombuffer(queue_mark(self._target.number), np.uint8)
        columns = {
            name: column
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
            if name == "payload" or column.null_count < len(column)
        }
        if "key" in columns:
            raise InvalidArgument(KEY_REASON)
        keys = np.empty(rows.num_rows, dtype=layouts.OF_QUEUE)
        keys["queue"], keys["id"] = self._target.number, ids
        self._keys.append(keys.tobytes())
        payloads = _Payloads(columns["payload"])
        each = SegmentedTransaction.jobs_in_one(payloads.longest) if columns.keys() == {"payload"} else 0
        if each:
            self._add_segments(ids.tobytes(), payloads, each)
        else:
            self._add_rows(ids, _listed(keys), payloads.each(0, len(payloads)), columns)

    def _add_segments(self, ids: bytes, payloads: _Payloads, each: int) -> None:
        """Add jobs that have only a payload, as segments of `each` jobs."""
        shape = LoadShape(0, records.TOGETHER, self._now, self._target.max_attempts, 0)
        # A generator, so that each segment is freed once it is written, and the next one takes its memory.
        self._table(SEGMENTS, filtered=True).put_many(self._segments(ids, payloads, each, shape))

    def _segments(self, ids: bytes, payloads: _Payloads, each: int, shape: LoadShape) -> Iterator[Row]:
        queue, now, width = keyspace.queue_prefix(self._target.number), self._now, payloads.width
        for begin in range(0, len(payloads), each):
            end = min(begin + each, len(payloads))
            jobs, part, packed = ids[16 * begin : 16 * end], payloads.each(begin, end), payloads.packed(begin, end)
            yield queue + jobs[-16:], records.encode_packed_segment(now, jobs, part, packed, width=width)
            self._runs.append((end - begin, shape))

    def _add_rows(
        self, ids: Bytes, keys: Sequence[bytes], payloads: Sequence[bytes], columns: dict[str, pa.Array]
    ) -> None:
        headers, groups = columns.get("headers"), columns.get("group")
        flags = np.zeros(len(payloads), dtype=np.int64)
        if headers is None and groups is None and max(map(len, payloads)) <= records.PART_BYTES:
            values = records.encode_plain_jobs(self._now, payloads)
        else:
            values, flags = self._encode(ids, payloads, headers, groups)
        self._table(JOBS, filtered=True).put_many(zip(keys, values, strict=True))
        shapes = self._shaped(columns, flags)
        self._ids.append(ids)
        self._shapes.append(shapes)
        for count, shape in shapes.runs():
            if self._runs and self._runs[-1][1] == shape:
                count += self._runs.pop()[0]
            self._runs.append((count, shape))

    def _table(self, space: int, *, filtered: bool = False) -> TableWriter:
        """The file of a space, made when its first row is added: RocksDB makes no file without rows."""
        if space not in self._tables:
            self._tables[space] = TableWriter(str(table_path(self._folder, self._name, space)), filtered=filtered)
        return self._tables[space]

    def _encode(
        self, ids: Bytes, payloads: Sequence[bytes], headers: pa.Array | None, groups: pa.Array | None
    ) -> tuple[list[bytes], Ints]:
        """The jobs' rows where some have headers, a group, or a payload of several parts. Notes the jobs' groups."""
        said = repeat(None, len(payloads)) if headers is None else headers.to_pylist()
        names = repeat(None, len(payloads)) if groups is None else groups.to_pylist()
        values: list[bytes] = []
        flags = np.zeros(len(payloads), dtype=np.int64)
        for at, (payload, pairs, group) in enumerate(zip(payloads, said, names, strict=True)):
            packed = records.encode_headers(dict(pairs)) if pairs else b""
            row, further = records.encode_job(self._now, payload, b"", packed, group.encode() if group else b"")
            values.append(row)
            if group:
                flags[at] = records.HAS_GROUP
                self._members.append(self._group_places.setdefault(group, len(self._group_places)))
            if further:
                flags[at] |= records.HAS_PARTS
                number, job = self._target.number, ids[at].tobytes()
                self._table(PAYLOAD).put_many(
                    [(keyspace.payload_part(number, job, part), value) for part, value in enumerate(further, 1)]
                )
        return values, flags

    def _shaped(self, columns: dict[str, pa.Array], flags: Ints) -> _Shapes:
        now, count = self._now, len(flags)

        def column(name: str, default: int) -> Ints:
            found = columns.get(name)
            if found is None:
                return np.full(count, default, dtype=np.int64)
            return np.asarray(pc.fill_null(found.cast(pa.int64()), default).to_numpy(zero_copy_only=False))

        visible = now + column("delay_ms", 0)
        if "at_ms" in columns:
            at = column("at_ms", 0) - self._target.drift_ms
            visible = np.where(np.asarray(columns["at_ms"].is_valid()), np.maximum(now, at), visible)
        ttl = column("ttl_ms", 0)  # one that is given is at least 1
        attempts = column("max_attempts", self._target.max_attempts)
        return _Shapes(column("priority", 0), flags, visible, attempts, np.where(ttl > 0, now + ttl, 0))

    def close(self) -> LoadPart:
        if self._shapes:
            ids = np.concatenate(self._ids)
            shapes = _Shapes(*[np.concatenate(column) for column in zip(*self._shapes, strict=True)])
            due = self._due(ids, shapes)
            if due is not None:
                self._table(DUE).put_many(zip(due, repeat(b"")))
        for table in self._tables.values():
            table.close()
        keys = b"".join(self._keys)
        with rows_path(self._folder, self._name).open("wb") as out:
            names = [name.encode() for name in self._group_places]
            groups = records.encode_load_groups(names, self._members) if names else b""
            body = encode_rows(self._runs, keys, groups)
            out.write(body)
            out.write(crc32(body).to_bytes(4, "big"))
            out.flush()
            os.fsync(out.fileno())
        return LoadPart(self._name, self._target.number, len(keys) // layouts.OF_QUEUE.itemsize, sorted(self._tables))

    def _due(self, ids: Bytes, shapes: _Shapes) -> list[bytes] | None:
        some = np.flatnonzero(shapes.due_at_ms)
        if not len(some):
            return None
        some = some[np.argsort(shapes.due_at_ms[some], kind="stable")]
        keys = np.empty(len(some), dtype=layouts.DUE)
        keys["kind"], keys["time"], keys["queue"] = int(Due.TTL), shapes.due_at_ms[some], self._target.number
        keys["id"] = ids[some]
        return _listed(keys)


def _listed(keys: npt.NDArray[Any]) -> list[bytes]:
    """The bytes of each element, or of each row."""
    found: list[bytes] = keys.view(f"V{keys.strides[0]}").ravel().tolist()
    return found
