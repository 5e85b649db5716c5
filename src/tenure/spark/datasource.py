"""The data source `tenure`: which module serves each of Spark's calls.

    spark.read             table_reader        spark.readStream        event_stream (events), claim_stream (claims)
    df.write               job_writer          df.writeStream          job_writer (jobs), verdict_writer (verdicts)

Modules are imported when they are needed: Spark plans, reads, writes and commits in separate processes, and none of
them needs all of these modules.
"""

from __future__ import annotations

import uuid

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tenure.errors import InvalidArgument
from tenure.spark.options import choice


class TenureSource(DataSource):
    """Spark makes one for each `load()`, and sends it to every process that works for the DataFrame."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._load = uuid.uuid4().hex[:16]

    @classmethod
    def name(cls) -> str:
        return "tenure"

    def schema(self) -> StructType | str:
        from tenure.spark import catalog_tables

        if catalog_tables.is_made(self.options):
            return catalog_tables.schema(self.options)
        if self._table("jobs") == "claims":
            from tenure.spark import claim_stream

            return claim_stream.schema(self.options)
        from tenure.spark import table_reader

        return table_reader.schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from tenure.spark import catalog_tables, table_reader

        return table_reader.reader(catalog_tables.with_kept(self.options, schema), schema, self._load)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        table = self._table("")
        if table == "events":
            from tenure.spark import event_stream

            return event_stream.stream_reader(self.options, schema)
        if table == "claims":
            from tenure.spark import claim_stream

            return claim_stream.stream_reader(self.options, schema)
        raise InvalidArgument(f'readStream needs .option("table", …): events or claims, not {table or None!r}')

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tenure.spark import job_writer

        return job_writer.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        table = self._table("jobs")
        if table == "jobs":
            from tenure.spark import job_writer

            return job_writer.stream_writer(self.options, schema, overwrite)
        if table == "verdicts":
            from tenure.spark import verdict_writer

            return verdict_writer.stream_writer(self.options, schema, overwrite)
        raise InvalidArgument(f"table {table!r} takes no stream: writeStream takes jobs or verdicts")

    def _table(self, default: str) -> str:
        return choice(self.options, "table", default)


def register(spark: SparkSession) -> None:
    """Register the source with a session whose Python does not find `pyspark_tenure` by itself."""
    spark.dataSource.register(TenureSource)
