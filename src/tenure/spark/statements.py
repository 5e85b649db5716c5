"""Statements of `tenure.analysis` on Spark."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.storagelevel import StorageLevel


def run(spark: SparkSession, text: str, **tables: DataFrame) -> DataFrame:
    """The answer to a statement, whose tables are written `{events}`; those that it does not name are left out."""
    named = {name: table for name, table in tables.items() if f"{{{name}}}" in text}
    return spark.sql(text, args=None, **named)


class SparkEngine:
    """Spark as an `analysis.sql.Engine`; `close` lets go of the tables that were kept."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._kept: list[DataFrame] = []

    def rows(self, text: str, **tables: DataFrame) -> list[dict[str, Any]]:
        return [row.asDict() for row in run(self._spark, text, **tables).collect()]

    def keep(self, name: str, text: str, **tables: DataFrame) -> DataFrame:
        self._kept.append(run(self._spark, text, **tables).persist(StorageLevel.MEMORY_AND_DISK))
        return self._kept[-1]

    def close(self) -> None:
        for table in self._kept:
            table.unpersist()
        self._kept.clear()
