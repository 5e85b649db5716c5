"""Settings by how many rows there are.

Few rows, many plans: what Spark compiles and adapts for each query costs seconds, and saves nothing. Many rows: what a task
sorts should fit into memory, on a machine that has little, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

FEW = 300_000
#: Events that a task sorts, some 400 bytes each.
_A_TASK = 250_000
_PARTITIONS = "spark.sql.shuffle.partitions"
_AS_IT_IS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    _PARTITIONS: "2",
}
#: What is kept between two steps is read a few times and gone: making it small costs more than it saves.
_LOOSE = {"spark.sql.inMemoryColumnarStorage.compressed": "false"}


@contextmanager
def sized(spark: SparkSession, rows: int) -> Iterator[None]:
    """Within it, queries are run as they are if they are over few rows, and in enough parts if over many."""
    settings = _AS_IT_IS if rows <= FEW else {_PARTITIONS: _enough(spark, rows), **_LOOSE}
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
