"""Statements of `tenure.analysis` on Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession


def run(spark: SparkSession, text: str, **tables: DataFrame) -> DataFrame:
    """The answer to a statement, whose tables are written `{events}`; those that it does not name are left out."""
    named = {name: table for name, table in tables.items() if f"{{{name}}}" in text}
    return spark.sql(text, args=None, **named)
