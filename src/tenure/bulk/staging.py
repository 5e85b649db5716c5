"""Where task attempts put what they wrote, until a commit says which of them count.

    <root>/<digest of the write's id>/<part>.arrow       chunks of at most 1,000 rows, each of one queue
                                     /<part>.rejects     rows set aside, with their reason (Parquet)

The root lies in the folder of an embedded store (`staging/`), or where the write was told. A part is named by partition
and attempt, so two attempts never meet. Whatever is left over after a day is removed by the next write.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from tenure.api.store import Store
from tenure.bulk.input_rows import STAGED
from tenure.errors import InvalidArgument, Unavailable
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.model.write import CHUNK
from tenure.settings import Settings
from tenure.storage.folder import expand
from tenure.storage.staged_parts import FOLDER, PIECE_BYTES, folder_of

#: Instead of a folder: staged in the store itself, piece by piece.
IN_STORE = "store:"
#: Rows held back in memory while they wait for their chunk to fill.
_HELD = 50_000
_SCHEMA = pa.schema([(name, kind) for name, kind in STAGED.items()])


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What one attempt staged."""

    name: str
    chunks: int
    rows: int
    rejected: int = 0


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


class PartWriter:
    """One attempt's file. It counts only once it is closed, and a manifest names it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self.name = folder, name
        folder.mkdir(parents=True, exist_ok=True)
        self._at = folder / f"{name}.arrow"
        self._sink = pa.OSFile(str(self._at), "wb")
        self._out = pa.ipc.new_stream(self._sink, _SCHEMA)
        self._held: dict[QueueName, list[pa.RecordBatch]] = {}
        self._counts: dict[QueueName, int] = {}
        self.chunks = self.rows = 0

    def add(self, name: QueueName, rows: pa.RecordBatch) -> None:
        held = self._held.setdefault(name, [])
        waiting = self._counts.get(name, 0)
        at = 0
        if waiting:
            at = min(CHUNK - waiting, rows.num_rows)
            held.append(rows.slice(0, at))
            waiting += at
            if waiting < CHUNK:
                self._counts[name] = waiting
                return
            self._flush(name)
        while rows.num_rows - at >= CHUNK:
            self._write(name, rows.slice(at, CHUNK))
            at += CHUNK
        if at < rows.num_rows:
            self._held.setdefault(name, []).append(rows.slice(at))
            self._counts[name] = rows.num_rows - at
        if len(self._counts) > 1 and sum(self._counts.values()) > _HELD:
            self._flush_all()

    def close(self) -> Part:
        self._flush_all()
        self._out.close()
        self._sink.close()
        _sync(self._at)
        return Part(self.name, self.chunks, self.rows)

    def discard(self) -> None:
        self._out.close()
        self._sink.close()
        self._at.unlink(missing_ok=True)

    def _flush_all(self) -> None:
        for name in list(self._held):
            self._flush(name)

    def _flush(self, name: QueueName) -> None:
        held = self._held.pop(name, [])
        self._counts.pop(name, None)
        if held:
            whole = [complete(batch) for batch in held]
            self._write(name, whole[0] if len(whole) == 1 else pa.concat_batches(whole))

    def _write(self, name: QueueName, rows: pa.RecordBatch) -> None:
        self._out.write_batch(complete(rows), custom_metadata={"tenant": name.tenant, "queue": name.queue})
        self.chunks += 1
        self.rows += rows.num_rows


def complete(rows: pa.RecordBatch) -> pa.RecordBatch:
    """With every column of `STAGED`; those that were left out are null."""
    if rows.schema == _SCHEMA:
        return rows
    return pa.RecordBatch.from_arrays(
        [rows.column(f.name) if f.name in rows.schema.names else pa.nulls(rows.num_rows, f.type) for f in _SCHEMA],
        schema=_SCHEMA,
    )


def read_part(folder: Path, part: Part) -> Iterator[Chunk]:
    """The chunks of a part, in order."""
    at = folder / f"{part.name}.arrow"
    try:
        source = pa.memory_map(str(at))
    except FileNotFoundError:
        raise Unavailable(
            f"{at} is gone: what is staged is kept for a day. The write can no longer be finished under this id"
        ) from None
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


def requests(rows: pa.RecordBatch) -> list[JobRequest]:
    """A chunk as a store takes it."""
    payloads = rows.column("payload").to_pylist()
    named = [
        (at, rows.column(name))
        for at, name in enumerate(("delay_ms", "at_ms", "priority", "key", "max_attempts", "ttl_ms", "headers"))
        if rows.column(name).null_count < rows.num_rows
    ]
    if not named:
        return [_new(JobRequest, (payload, *_NO)) for payload in payloads]
    columns: list[list[object]] = [[default] * len(payloads) for default in _NO]
    for at, column in named:
        default = _NO[at]
        values = column.to_pylist()
        if at == 6:
            values = [dict(pairs) if pairs else None for pairs in values]
        elif default is not None and column.null_count:
            values = [default if value is None else value for value in values]
        columns[at] = values
    return [_new(JobRequest, fields) for fields in zip(payloads, *columns, strict=True)]


# ── the folder ───────────────────────────────────────────────────────────────────────────────────────────────────────


def discard(root: str, write_id: str) -> None:
    shutil.rmtree(folder_of(root, write_id), ignore_errors=True)


def discard_parts(root: str, write_id: str, names: list[str]) -> None:
    folder = folder_of(root, write_id)
    for name in names:
        for file in folder.glob(f"{name}.*"):
            file.unlink(missing_ok=True)


def upload(store: Store, write_id: str, folder: Path, name: str) -> None:
    """An attempt's files into the store, in pieces: where it shares no folder with the executors."""
    staged = store.staged(write_id)
    for file in sorted(folder.glob(f"{name}.*")):
        with file.open("rb") as source:
            for piece in range(1_000_000):
                data = source.read(PIECE_BYTES)
                if not data and piece:
                    break
                staged.put_piece(file.name, piece, data)


def download(store: Store, write_id: str, folder: Path, name: str) -> None:
    """A part's file back from the store, if it has one of that name."""
    staged = store.staged(write_id)
    with (folder / name).open("wb") as out:
        piece = 0
        while (data := staged.piece(name, piece)) is not None:
            out.write(data)
            piece += 1
    if not piece:
        (folder / name).unlink()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
