"""A root's Parquet files as DataFrames, and DataFrames as Parquet files.

On a disk Spark reads and writes them itself. On an object store the executors' Python does, through
`tenure.analysis.object_root`: Spark's own readers need jars (hadoop-aws) that PySpark does not bring, and configuration of
their own. Whole columns of whole files are read there: nothing that a query leaves out is left out before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from tenure.analysis.root import LocalRoot, Root, open_root, parquet_files

#: What an executor reads, or hands to Spark, at once.
_BATCH_ROWS, _BATCH_BYTES = 10_000, 16 * 1024 * 1024
#: The parts of a file's path below the root that name it: table, run, attempt, file.
_LEVELS = 4
_MOST_TASKS = 1_000
_WRITTEN = "part INT, rows BIGINT"


def row_count(root: Root, place: str) -> int:
    """How many rows the Parquet files of a folder have, by what they say of themselves."""
    count = 0
    for path in parquet_files(root, place):
        with root.open(path) as file:
            count += pq.read_metadata(file).num_rows
    return count


def write(rows: DataFrame, root: Root, place: str, options: Mapping[str, str]) -> None:
    """Write rows as Parquet files into a folder that is not there yet. `options` are of Spark's writer."""
    if isinstance(root, LocalRoot):
        rows.write.mode("error").options(**options).parquet(str(root.path / place))
        return
    writer = _Writer(root.address, place, to_arrow_schema(rows.schema, timezone="UTC"))
    if not rows.mapInArrow(writer, _WRITTEN).collect():
        writer.write(root, 0, ())  # a table with no rows still tells its columns


def read(spark: SparkSession, root: Root, places: Sequence[str], schema: StructType | None = None) -> DataFrame:
    """The rows of the Parquet files of some folders. Without a schema the first file has it."""
    if isinstance(root, LocalRoot):
        reader = spark.read if schema is None else spark.read.schema(schema)
        return reader.parquet(*[str(root.path / place) for place in places])
    return _read(spark, root, places, schema, name_files=False)


def read_with_file(spark: SparkSession, root: Root, places: Sequence[str]) -> DataFrame:
    """The same, and the path of each row's file below the root, as the column `file`."""
    if isinstance(root, LocalRoot):
        names = F.split("_metadata.file_path", "/")
        return read(spark, root, places).withColumn("file", F.array_join(F.slice(names, -_LEVELS, _LEVELS), "/"))
    return _read(spark, root, places, None, name_files=True)


def bounded_batches(file: pq.ParquetFile, rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file in batches of at most `rows`, and of about `size` bytes by what each row group says of its size."""
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        fitting = size * group.num_rows // max(1, group.total_byte_size)
        yield from file.iter_batches(batch_size=max(1, min(rows, fitting)), row_groups=[number])


def _read(
    spark: SparkSession, root: Root, places: Sequence[str], schema: StructType | None, *, name_files: bool
) -> DataFrame:
    paths = [path for place in places for path in parquet_files(root, place)]
    if schema is None:
        with root.open(paths[0]) as file:
            schema = from_arrow_schema(pq.read_schema(file))
    if name_files:
        schema = StructType([*schema.fields, StructField("file", StringType())])
    reader = _Reader(root.address, tuple(paths), to_arrow_schema(schema, timezone="UTC"))
    numbers = spark.range(0, len(paths), 1, max(1, min(_MOST_TASKS, len(paths))))
    return numbers.mapInArrow(reader, schema)


class _Writer:
    """Writes the rows of a task as one file, named by the task's number: a task that runs twice writes the same rows, and
    the file that appears last is as good as the first. It is sent to executors."""

    def __init__(self, address: str, place: str, schema: pa.Schema) -> None:
        self._address, self._place, self._schema = address, place, schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batches = iter(batches)
        full = next((batch for batch in batches if batch.num_rows), None)
        task = TaskContext.get()
        if full is not None and task is not None:
            part = task.partitionId()
            rows = self.write(open_root(self._address), part, chain([full], batches))
            yield pa.RecordBatch.from_pydict(
                {"part": pa.array([part], pa.int32()), "rows": pa.array([rows], pa.int64())}
            )

    def write(self, root: Root, part: int, batches: Iterable[pa.RecordBatch]) -> int:
        """Write a file; how many rows it has."""
        rows = 0
        with (
            root.draft(f"{self._place}/part-{part:05}.parquet") as file,
            pq.ParquetWriter(file, self._schema, compression="zstd", compression_level=1) as writer,
        ):
            for batch in batches:
                writer.write_batch(_fitted(batch, self._schema))
                rows += batch.num_rows
        return rows


class _Reader:
    """Reads files by their numbers, on an executor. Columns that a file does not have are null."""

    def __init__(self, address: str, paths: tuple[str, ...], schema: pa.Schema) -> None:
        self._address, self._paths, self._schema = address, paths, schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        root = open_root(self._address)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                path = self._paths[number]
                with root.open(path) as opened, pq.ParquetFile(opened, pre_buffer=True) as file:
                    for rows in bounded_batches(file, _BATCH_ROWS, _BATCH_BYTES):
                        yield _fitted(rows, self._schema, file=path)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, **constants: str) -> pa.RecordBatch:
    """The columns of a schema: cast from a batch, or the same value in each row."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.repeat(pa.scalar(constants.get(field.name), field.type), batch.num_rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
