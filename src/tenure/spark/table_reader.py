"""Reading a store's tables: options to a query, a query to partitions, a partition to record batches.

`partitions` runs for every action of Spark, in a process of its own: it takes the snapshot, or finds the one that an earlier
action of the same DataFrame took, or the one that the option `snapshot` names, and cuts it into key ranges. `read` runs on the
executors, and renews the snapshot while it reads. Nothing tells when a DataFrame is no longer used, so a snapshot lives for
its time to live after its last use, or until the program ends (`snapshots.release`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tenure.bulk import snapshot_locations
from tenure.bulk.plan import Part
from tenure.bulk.query import Query
from tenure.bulk.schemas import columns_of, ddl
from tenure.bulk.snapshot_locations import Place
from tenure.errors import InvalidArgument
from tenure.model.durations import moment_ms
from tenure.spark.options import checked, choice, flag, url_of, whole
from tenure.spark.snapshots import note_taken
from tenure.spark.task_process import spare_collections

OPTIONS = frozenset(
    {"url", "table", "tenant", "queue", "state", "since", "until", "columns", "rowsPerPartition", "snapshot",
     "snapshotTtl", "pushdown", "token"}
)  # fmt: skip
#: Options of streams, which Spark also asks a schema for.
STREAM_OPTIONS = frozenset({"startingOffsets", "maxEventsPerTrigger", "consumer", "failOnDataLoss"})
ROWS = 250_000
TTL_SECONDS = 3600
#: Spark 4.3 keeps the filters that it pushed with the loaded table: a later query without them, or another branch of the
#: same query, then reads the filtered rows. The reader therefore has no `pushFilters`.
NO_PUSHDOWN = (
    "pushdown=true gave wrong answers: Spark applies a pushed filter to every other use of the DataFrame as well. "
    "Choose rows by the options tenant, queue, state, since and until"
)


def schema(options: Mapping[str, str]) -> str:
    found = checked(options, OPTIONS | STREAM_OPTIONS, "a read")
    url_of(found)
    return ddl(choice(found, "table", "jobs"), columns_asked(found))


def reader(options: Mapping[str, str], schema: StructType, load: str) -> DataSourceReader:
    """`load` tells DataFrames apart: all readers of one DataFrame, and of those derived from it, have the same."""
    found = checked(options, OPTIONS, "a read")
    if flag(found, "pushdown"):
        raise InvalidArgument(NO_PUSHDOWN)
    return TableReader(found, schema, load)


def query_of(options: Mapping[str, str], schema: StructType, table: str) -> Query:
    states = tuple(state.strip().lower() for state in options["state"].split(",")) if options.get("state") else ()
    known = {column.name for column in columns_of(table)}
    for name in schema.fieldNames():
        if name not in known:
            raise InvalidArgument(f"table {table} has no column {name!r}")
    return Query(
        table,
        tuple(schema.fieldNames()),
        options.get("tenant"),
        options.get("queue"),
        states,
        moment("since", options),
        moment("until", options),
    )


def moment(name: str, options: Mapping[str, str]) -> int | None:
    """An option that is a time: ISO 8601, in UTC unless it says otherwise."""
    text = options.get(name)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"option {name}={text!r} is not a time: 2026-01-31T12:00:00, in UTC") from None
    return moment_ms(name, found if found.tzinfo is not None else found.replace(tzinfo=UTC))


class TablePartition(InputPartition):
    def __init__(self, place: Place, query: Query, part: Part) -> None:
        super().__init__(None)
        self.place = place
        self.query = query
        self.part = part

    def __repr__(self) -> str:
        return f"TablePartition({self.query.table}, {self.part})"


class TableReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType, load: str) -> None:
        self._url = url_of(options)
        self._load = load
        self._token = options.get("token")
        self._snapshot = options.get("snapshot")
        self._rows = whole(options, "rowsPerPartition", ROWS)
        self._ttl_ms = 1000 * whole(options, "snapshotTtl", TTL_SECONDS)
        self._query = query_of(options, schema, choice(options, "table", "jobs"))
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        if self._snapshot is None:
            name = f"{snapshot_locations.NAME}-{self._load}"
            place = snapshot_locations.take_once(self._url, self._ttl_ms, name, self._token)
            note_taken(self._url, place.id, self._token)
        else:
            place = snapshot_locations.find(self._url, self._snapshot, self._token)
        return [TablePartition(place, self._query, part) for part in place.plan(self._query, self._rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        spare_collections()
        if isinstance(partition, TablePartition):  # Spark makes one of its own where there is none
            yield from in_schema(partition.place.read(partition.query, partition.part), self._schema)


def in_schema(batches: Iterable[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """As Spark's Java expects them, to the letter."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    for batch in batches:
        if batch.schema.equals(wanted):
            yield batch
        else:
            columns = [batch.column(field.name).cast(field.type) for field in wanted]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def columns_asked(options: Mapping[str, str]) -> list[str] | None:
    text = options.get("columns")
    return None if not text else [name.strip() for name in text.split(",")]
