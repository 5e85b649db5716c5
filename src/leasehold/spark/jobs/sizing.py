"""Few rows, many plans: what Spark compiles and adapts for each query costs seconds, and saves nothing where rows are few."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

FEW = 300_000
_AS_IT_IS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}


@contextmanager
def sized(spark: SparkSession, rows: int) -> Iterator[None]:
    """Within it, queries are run as they are if they are over few rows, and as the session says otherwise."""
    if rows > FEW:
        yield
        return
    before = {name: spark.conf.get(name) for name in _AS_IT_IS}
    for name, value in _AS_IT_IS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            spark.conf.set(name, str(was))
