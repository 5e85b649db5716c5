"""The data source `tenure`: which class does what Spark asks for.

    spark.read             reading.reader      spark.readStream        streaming.reader (events), claiming.reader (claims)
    df.write               writing.writer      df.writeStream          writing.stream_writer, settling.stream_writer

Each is imported when it is asked for: planning, reading, writing and committing run in processes of their own, and
none needs what the others do.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

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

#: Streams in and out by their table, where it is not `events`: what claims jobs, and what settles them.
_STREAM_READERS = {"events": "streaming", "claims": "claiming"}
_STREAM_WRITERS = {"jobs": "writing", "verdicts": "settling"}


class TenureSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tenure"

    def schema(self) -> StructType | str:
        if self._table("jobs") == "claims":
            return str(_of("claiming").schema(self.options))
        return str(_of("reading").schema(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        made: DataSourceReader = _of("reading").reader(self.options, schema)
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        table = self.options.get("table")
        if table not in _STREAM_READERS:
            raise InvalidArgument(
                f'readStream needs .option("table", …): one of {", ".join(_STREAM_READERS)}, not {table!r}'
            )
        made: DataSourceStreamReader = _of(_STREAM_READERS[table]).stream_reader(self.options, schema)
        return made

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        made: DataSourceWriter = _of("writing").writer(self.options, schema, overwrite)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        table = self._table("jobs")
        if table not in _STREAM_WRITERS:
            raise InvalidArgument(f"table {table!r} takes no stream: writeStream takes {', '.join(_STREAM_WRITERS)}")
        made: DataSourceStreamWriter = _of(_STREAM_WRITERS[table]).stream_writer(self.options, schema, overwrite)
        return made

    def _table(self, default: str) -> str:
        return str(self.options.get("table") or default)


def _of(module: str) -> Any:
    return import_module(f"tenure.spark.{module}")


def register(spark: SparkSession) -> None:
    """Make the source known to a session whose Python does not find `pyspark_tenure` by itself."""
    spark.dataSource.register(TenureSource)
