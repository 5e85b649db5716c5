"""The Python process of Spark's tasks, which lives for many of them."""

from __future__ import annotations

import gc
from functools import cache

import pyarrow as pa
from pyspark import TaskContext


@cache
def spare_collections() -> None:
    """Leave all that is loaded by now out of garbage collection, once for each process; only in a task's process.

    Spark's daemon collects all garbage after every task. It would look at every object of PySpark, pandas and our modules
    each time: some 50 ms, a fifth of the Python time of a read.
    """
    if TaskContext.get() is None:
        return
    pa.array([None])  # Arrow now loads pandas, if it is installed
    gc.freeze()
