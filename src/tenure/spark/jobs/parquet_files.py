"""A store's rows as Parquet files, written where they are decoded: rows never pass through Spark's Java.

Each part of a snapshot becomes one file, named by the part's number. A task that runs twice writes the same rows, and
the file that appears last is as good as the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tenure.analysis.root import Root, open_root
from tenure.bulk.plan import Part
from tenure.bulk.query import Query
from tenure.bulk.snapshot_locations import Place
from tenure.spark.task_process import spare_collections

#: Columns that hardly repeat: Parquet would make a dictionary of each, hash by hash, and throw it away.
_UNLIKE = frozenset({"job_id", "id", "number", "commit", "payload", "result", "raw", "headers", "last_commit"})
_LEVEL_OF_ZSTD = 1
_OUTCOME = "part BIGINT, rows BIGINT, first_number BIGINT, last_number BIGINT, last_commit BIGINT, last_ms BIGINT"


class Written(NamedTuple):
    """One file; its events' numbers, last commit and last time, where it is of the table `events`."""

    part: int
    rows: int
    first_number: int | None = None
    last_number: int | None = None
    last_commit: int | None = None
    last_ms: int | None = None


def write(
    spark: SparkSession | None, place: Place, query: Query, parts: Sequence[Part], root: Root, folder: str
) -> list[Written]:
    """Write the parts as files into a folder below `root`, a task each, or in this process where `spark` is None."""
    writer = _Writer(place, query, tuple(parts), root.address, folder)
    if spark is None:
        return [writer.write(number) for number in range(len(parts))]
    numbers = spark.range(0, len(parts), 1, max(1, len(parts)))
    rows = numbers.mapInArrow(writer, _OUTCOME).collect()
    return sorted(Written(*row) for row in rows)


class _Writer:
    """What a task does with the numbers of parts. It is sent to executors, so it holds only what finds the rows."""

    def __init__(self, place: Place, query: Query, parts: tuple[Part, ...], root: str, folder: str) -> None:
        self._place, self._query, self._parts, self._root, self._folder = place, query, parts, root, folder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_collections()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                written = self.write(number)
                columns = [pa.array([value], pa.int64()) for value in written]
                yield pa.RecordBatch.from_arrays(columns, names=list(Written._fields))

    def write(self, number: int) -> Written:
        schema = self._query.schema
        repeated = [name for name in schema.names if name not in _UNLIKE]
        found = Written(number, 0)
        with (
            open_root(self._root).draft(f"{self._folder}/part-{number:05}.parquet") as file,
            pq.ParquetWriter(
                file, schema, use_dictionary=repeated, compression="zstd", compression_level=_LEVEL_OF_ZSTD
            ) as writer,
        ):
            for batch in self._place.read(self._query, self._parts[number]):
                writer.write_batch(batch.replace_schema_metadata())
                found = _and(found, batch)
        return found


def _and(found: Written, batch: pa.RecordBatch) -> Written:
    """What was found so far, and this batch; the events of a part come in order."""
    rows = found.rows + batch.num_rows
    if "number" not in batch.schema.names:
        return found._replace(rows=rows)
    numbers, times = batch.column("number"), batch.column("time")
    return Written(
        found.part,
        rows,
        numbers[0].as_py() if found.first_number is None else found.first_number,
        numbers[-1].as_py(),
        batch.column("commit")[-1].as_py(),
        pc.max(times).cast(pa.int64()).as_py() // 1000,
    )
