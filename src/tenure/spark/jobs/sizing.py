"""Spark settings chosen by the number of rows.

For few rows, generating code and re-planning each query costs seconds and saves nothing: both are turned off. For many rows,
there are enough partitions that what a task sorts fits into memory on a small machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

FEW = 300_000
#: Events that a task sorts, some 400 bytes each.
_A_TASK = 250_000
_PARTITIONS = "spark.sql.shuffle.partitions"
_FOR_FEW = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    _PARTITIONS: "2",
}
#: Cached tables are read a few times and dropped: compressing them costs more than it saves.
_FOR_MANY = {"spark.sql.inMemoryColumnarStorage.compressed": "false"}


@contextmanager
def sized(spark: SparkSession, rows: int) -> Iterator[None]:
    """Run the queries of a block with the settings that suit this many rows; the session's own are put back at the end."""
    settings = _FOR_FEW if rows <= FEW else {_PARTITIONS: _enough(spark, rows), **_FOR_MANY}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            spark.conf.set(name, str(was))


def _enough(spark: SparkSession, rows: int) -> str:
    return str(max(int(str(spark.conf.get(_PARTITIONS))), -(-rows // _A_TASK)))
