"""A table of a store as one file: Parquet, Arrow, CSV or JSON lines."""

from __future__ import annotations

import base64
import csv
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tenure.api.store import Store
from tenure.bulk.query import Query
from tenure.bulk.table_access import tables
from tenure.errors import InvalidArgument
from tenure.model.durations import Moment

Writer = Callable[[IO[bytes], pa.Schema, Iterator[pa.RecordBatch]], None]


def export(
    source: Store | str,
    table: str,
    path: str | os.PathLike[str],
    kind: str,
    *,
    columns: Sequence[str] | None = None,
    tenant: str | None = None,
    queue: str | None = None,
    state: str | Sequence[str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    token: str | None = None,
) -> int:
    """Write a table, all of one moment, to a file; returns how many rows it has. A file that is there is replaced,
    whole.

    `kind` is one of `FORMATS`. In CSV and JSON lines bytes are base64 and times are ISO 8601; CSV has headers as JSON.
    """
    target = Path(path).expanduser()
    draft = target.with_name(f".{target.name}.{os.urandom(6).hex()}")
    rows = 0

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    schema = Query(table, tuple(columns or ())).schema
    with tables(source, token=token) as moment:
        found = moment.batches(
            table, columns=columns, tenant=tenant, queue=queue, state=state, since=since, until=until
        )
        try:
            with _opened(draft, target) as file:
                FORMATS[kind](file, schema, counted(found))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    return rows


def _opened(draft: Path, target: Path) -> IO[bytes]:
    if target.is_dir():
        raise InvalidArgument(f"{target} is a folder: name a file")
    try:
        return draft.open("xb")  # never through a link that another user has put there
    except OSError as exc:
        raise InvalidArgument(f"{target} cannot be written: {exc.strerror}") from exc


def _parquet(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)


def _arrow(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _json_lines(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    encode = msgspec.json.Encoder().encode
    for batch in batches:
        file.writelines(encode(_plain(row, schema)) + b"\n" for row in batch.to_pylist())


def _csv(file: IO[bytes], schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    def lines(row: dict[str, Any]) -> list[Any]:
        return [
            msgspec.json.encode(value).decode() if isinstance(value, dict) else value
            for value in _plain(row, schema).values()
        ]

    class Text:
        def write(self, text: str) -> None:
            file.write(text.encode())

    writer = csv.writer(Text())
    writer.writerow(schema.names)
    for batch in batches:
        writer.writerows(lines(row) for row in batch.to_pylist())


def _plain(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """A row in values that both text formats have."""
    return {field.name: _value(row[field.name], field.type) for field in schema}


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    return dict(value) if pa.types.is_map(kind) else value


FORMATS: dict[str, Writer] = {"parquet": _parquet, "arrow": _arrow, "csv": _csv, "jsonl": _json_lines}
