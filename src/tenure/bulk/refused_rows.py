"""Rows that a queue refused, in the columns in which they were given: mended, they can be written again.

Staged rows have other columns than those of a write (`input_rows.STAGED`): times in milliseconds, payloads as bytes.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tenure.bulk.input_rows import STAGED
from tenure.model.names import QueueName

#: The columns of a write whose caller does not say which they were.
GIVEN = pa.schema(
    [
        ("payload", pa.binary()),
        ("queue", pa.string()),
        ("tenant", pa.string()),
        ("delay", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("ttl", pa.float64()),
        *[(name, kind) for name, kind in STAGED.items() if name != "payload" and not name.endswith("_ms")],
    ]
)


def as_given(name: QueueName, rows: pa.RecordBatch, given: pa.Schema) -> pa.RecordBatch:
    """The staged rows of a queue, in the columns `given`.

    Two types do not come back: a payload that was a struct or a variant is its JSON text, and a local time is a moment.
    Where there are none of these, the rows also have the metadata of `given`, which tells the types.
    """
    columns = [_column(field, name, rows) for field in given]
    alike = [column.type for column in columns] == given.types
    made = pa.RecordBatch.from_arrays(columns, names=given.names)
    return made.replace_schema_metadata(given.metadata) if alike else made


def _column(field: pa.Field, name: QueueName, rows: pa.RecordBatch) -> pa.Array:
    kind = field.type
    if pa.types.is_null(kind):
        return pa.nulls(rows.num_rows, kind)
    if field.name in ("tenant", "queue"):
        return pa.repeat(pa.scalar(getattr(name, field.name)), rows.num_rows).cast(kind)
    if field.name == "payload":
        payloads = rows.column("payload")
        binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
        return payloads.cast(kind) if binary else payloads.cast(pa.large_string()).cast(_text(kind))
    if field.name in ("delay", "ttl"):
        return _seconds(rows.column(f"{field.name}_ms"), kind)
    if field.name == "at":
        if not pa.types.is_timestamp(kind):
            return _seconds(rows.column("at_ms"), kind)
        return rows.column("at_ms").cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp(kind.unit, tz="UTC"))
    return rows.column(field.name).cast(kind)


def _text(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_struct(kind) else kind


def _seconds(ms: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_duration(kind):
        return ms.cast(pa.duration("ms")).cast(kind)
    return pc.divide(ms.cast(pa.float64()), 1000.0).cast(kind, safe=False)
