"""Files that task attempts stage, until a commit records which attempts count.

    <root>/<digest of the write's id>/<part>.arrow       chunks of at most 1,000 rows and 16 MiB, each of one queue
                                     /<part>.rejects     rows set aside, with their reason (Parquet)
                                     /<part>-0.…         sorted files, where a part is large (`load_files`)

The root lies in the folder of an embedded store (`staging/`), or where the write's option `staging` says. A part is
named by partition and attempt, so two attempts never share a file. What is left over after a day is removed by the next
write.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tenure.api.store import Store
from tenure.bulk.arrays import Ints
from tenure.bulk.flow_rows import FLOW_COLUMNS, flow_parts
from tenure.bulk.input_rows import STAGED
from tenure.bulk.refused_rows import GIVEN
from tenure.errors import InvalidArgument, TooLarge, Unavailable
from tenure.model.names import QueueName
from tenure.model.request import JobRequest, PlainRequests
from tenure.model.write import CHUNK, LoadPart
from tenure.settings import Settings
from tenure.storage.folder import expand, sync_names, sync_path
from tenure.storage.staged_parts import FOLDER, PIECE_BYTES, folder_of

#: The root of writes that are staged in the store itself, in pieces, instead of in a folder.
IN_STORE = "store:"
#: The most bytes of a chunk, which is one transaction and one request. A payload has at most 8 MiB.
CHUNK_BYTES = 16 * 1024 * 1024
#: The most rows and bytes that wait in memory for their chunks to fill, over all queues.
_HELD_ROWS, _HELD_BYTES = 50_000, 32 * 1024 * 1024
#: The most rows that one attempt stages as sorted files, and that one load ingests: other writers wait for a load.
MOST_LOADED = 1_000_000
_SCHEMA = pa.schema([(name, kind) for name, kind in STAGED.items()])


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What one attempt staged."""

    name: str
    chunks: int
    rows: int
    rejected: int = 0
    #: Sorted files instead of chunks (`load_files`), in the store's own folder.
    tables: list[LoadPart] = []


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """What a write consists of: the attempts that won, in order."""

    root: str
    parts: list[Part]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> Manifest:
        return _manifest(raw)


#: Made here, by one thread: msgspec crashes if two first work out the fields of one struct at once.
_manifest = msgspec.msgpack.Decoder(Manifest).decode


def root_of(url: str, told: str | None = None) -> str:
    """Where writes to this store are staged."""
    if told:
        return str(expand(told.removeprefix("file://")))
    storage = Settings.load(url).storage
    if storage.engine in ("rocksdb", "lmdb") and storage.path:
        return str(expand(storage.path) / FOLDER)
    if storage.engine == "http":
        return IN_STORE
    raise InvalidArgument(
        f"{url} keeps no folder to stage in: name one that every executor and the driver can reach, "
        '.option("staging", "/path")'
    )


class Chunk(NamedTuple):
    name: QueueName
    rows: pa.RecordBatch


@dataclass
class _OpenChunk:
    """Rows of one queue that wait for their chunk to fill."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class PartWriter:
    """One attempt's file. It counts only once it is closed, and a manifest names it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self.name = folder, name
        folder.mkdir(parents=True, exist_ok=True)
        self._at = folder / f"{name}.arrow"
        self._sink = pa.OSFile(str(self._at), "wb")
        self._out = pa.ipc.new_stream(self._sink, _SCHEMA)
        self._open: dict[QueueName, _OpenChunk] = {}
        self.chunks = self.rows = 0

    def add(self, name: QueueName, rows: pa.RecordBatch) -> None:
        ends = np.cumsum(row_bytes(rows))
        at = before = 0
        while at < rows.num_rows:
            chunk = self._open.setdefault(name, _OpenChunk())
            # As many rows as still fit, by their number and by their weight; at least one into an empty chunk.
            fit = int(np.searchsorted(ends, before + CHUNK_BYTES - chunk.bytes, "right"))
            end = min(fit, at + CHUNK - chunk.rows)
            if end <= at and chunk.rows:
                self._flush(name)
                continue
            end = max(end, at + 1)
            chunk.batches.append(rows.slice(at, end - at))
            chunk.rows += end - at
            chunk.bytes += int(ends[end - 1]) - before
            at, before = end, int(ends[end - 1])
            if chunk.rows >= CHUNK or chunk.bytes >= CHUNK_BYTES:
                self._flush(name)
        waiting = self._open.values()
        if len(waiting) > 1 and (
            sum([chunk.rows for chunk in waiting]) > _HELD_ROWS or sum([chunk.bytes for chunk in waiting]) > _HELD_BYTES
        ):
            self._flush_all()

    def add_together(self, name: QueueName, rows: pa.RecordBatch) -> None:
        """Add rows that must be in one chunk. Raises TooLarge."""
        size = int(row_bytes(rows).sum())
        if size > CHUNK_BYTES:
            raise TooLarge("a flow", size, CHUNK_BYTES)
        chunk = self._open.get(name)
        if chunk is not None and (chunk.rows + rows.num_rows > CHUNK or chunk.bytes + size > CHUNK_BYTES):
            self._flush(name)
        self.add(name, rows)

    def close(self) -> Part:
        self._flush_all()
        self._out.close()
        self._sink.close()
        sync_path(self._at)
        sync_names(self._at.parent)
        return Part(self.name, self.chunks, self.rows)

    def discard(self) -> None:
        self._out.close()
        self._sink.close()
        self._at.unlink(missing_ok=True)

    def _flush_all(self) -> None:
        for name in list(self._open):
            self._flush(name)

    def _flush(self, name: QueueName) -> None:
        batches = [complete(batch) for batch in self._open.pop(name).batches]
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        self._out.write_batch(rows, custom_metadata={"tenant": name.tenant, "queue": name.queue})
        self.chunks += 1
        self.rows += rows.num_rows


def row_bytes(rows: pa.RecordBatch) -> Ints:
    """The bytes of each row: its payload, and an equal share of the batch's other columns."""
    payloads = pc.fill_null(pc.binary_length(rows.column("payload")), 0).to_numpy(zero_copy_only=False)
    others = [column for name, column in zip(rows.schema.names, rows.columns, strict=True) if name != "payload"]
    share = sum([column.nbytes for column in others]) // max(1, rows.num_rows)
    found: Ints = np.asarray(payloads, dtype=np.int64) + share
    return found


class RejectsWriter:
    """The rows that one attempt sets aside, as they came, with a column `reason`: a Parquet file, written as they come.

    The file keeps the metadata of the first rows' schema.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._at = folder / f"{name}.rejects"
        self._out: pq.ParquetWriter | None = None
        self.rows = 0

    def add(self, rows: pa.RecordBatch, reasons: Sequence[str]) -> None:
        table = pa.Table.from_batches([rows])
        for place, column in enumerate(rows.schema):
            if pa.types.is_null(column.type):  # readers take Parquet's column of nothing for one of numbers
                table = table.set_column(place, column.name, pa.nulls(rows.num_rows, GIVEN.field(column.name).type))
        table = table.append_column("reason", pa.array(reasons, pa.string()))
        if self._out is None:
            self._at.parent.mkdir(parents=True, exist_ok=True)
            self._out = pq.ParquetWriter(self._at, table.schema)
        self._out.write_table(table)
        self.rows += len(reasons)

    def close(self) -> Path | None:
        """Make the file durable, and return its path; None if no row was set aside."""
        if self._out is None:
            return None
        self._out.close()
        sync_path(self._at)
        sync_names(self._at.parent)
        return self._at


def complete(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with all columns of `STAGED`. Columns that were left out are null."""
    if rows.schema == _SCHEMA:
        return rows
    return pa.RecordBatch.from_arrays(
        [rows.column(f.name) if f.name in rows.schema.names else pa.nulls(rows.num_rows, f.type) for f in _SCHEMA],
        schema=_SCHEMA,
    )


def gone(file: Path) -> Unavailable:
    return Unavailable(
        f"{file} is gone: what is staged is kept for a day. The write can no longer be finished under this id"
    )


def read_part(folder: Path, part: Part) -> Iterator[Chunk]:
    """The chunks of a part, in order."""
    at = folder / f"{part.name}.arrow"
    try:
        source = pa.OSFile(str(at))  # read, not mapped: a mapped file of gigabytes counts as this process's memory
    except FileNotFoundError:
        raise gone(at) from None
    count = 0
    with source, pa.ipc.open_stream(source) as rows:
        while True:
            try:
                batch, about = rows.read_next_batch_with_custom_metadata()
            except StopIteration:
                break
            count += 1
            yield Chunk(QueueName(about[b"tenant"].decode(), about[b"queue"].decode()), batch)
    if count != part.chunks:
        raise Unavailable(f"{at} has {count} chunks instead of {part.chunks}: it was cut short, or another wrote there")


_NO = tuple(JobRequest(b""))[1:]
_new = tuple.__new__


#: Which field of a request each column is, the payload not counted.
_STAGED_FIELDS = [
    (JobRequest._fields.index(name) - 1, name) for name in STAGED if name != "payload" and name not in FLOW_COLUMNS
]
_FLOW = JobRequest._fields.index("flow") - 1
_HEADERS = JobRequest._fields.index("headers") - 1


def requests(rows: pa.RecordBatch) -> Sequence[JobRequest]:
    """The rows of a chunk as the requests that a store takes."""
    payloads: list[bytes] = rows.column("payload").to_numpy(zero_copy_only=False).tolist()
    named = [(at, rows.column(name)) for at, name in _STAGED_FIELDS if rows.column(name).null_count < rows.num_rows]
    flows = flow_parts(rows)
    if not named and flows is None:
        return PlainRequests(payloads)
    columns: list[list[object]] = [[default] * len(payloads) for default in _NO]
    for at, column in named:
        default = _NO[at]
        values = column.to_pylist()
        if at == _HEADERS:
            values = [dict(pairs) if pairs else None for pairs in values]
        elif default is not None and column.null_count:
            values = [default if value is None else value for value in values]
        columns[at] = values
    if flows is not None:
        columns[_FLOW] = list(flows)
    return [_new(JobRequest, fields) for fields in zip(payloads, *columns, strict=True)]


# ── the folder ───────────────────────────────────────────────────────────────────────────────────────────────────────


def discard(root: str, write_id: str) -> None:
    shutil.rmtree(folder_of(root, write_id), ignore_errors=True)


def discard_parts(root: str, write_id: str, names: list[str]) -> None:
    folder = folder_of(root, write_id)
    for name in names:
        for file in folder.glob(f"{name}*"):
            file.unlink(missing_ok=True)


def upload(store: Store, write_id: str, folder: Path, name: str) -> None:
    """Put an attempt's files into the store, in pieces. For stores that share no folder with the executors."""
    staged = store.staged(write_id)
    for file in sorted(folder.glob(f"{name}.*")):
        with file.open("rb") as source:
            for piece in range(1_000_000):
                data = source.read(PIECE_BYTES)
                if not data and piece:
                    break
                staged.put_piece(file.name, piece, data)


def download(store: Store, write_id: str, folder: Path, name: str) -> None:
    """Fetch a part's file from the store into `folder`. Makes no file if the store has none of that name."""
    staged = store.staged(write_id)
    with (folder / name).open("wb") as out:
        piece = 0
        while (data := staged.piece(name, piece)) is not None:
            out.write(data)
            piece += 1
    if not piece:
        (folder / name).unlink()
