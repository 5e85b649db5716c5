"""Leasehold for PySpark: the data source `leasehold`, and what goes around it. Needs `pip install 'leasehold[spark]'`.

    session(...)            a SparkSession with the settings that suit it
    register(spark)         for sessions that PySpark's own look-up does not serve
    snapshot(url, ttl=…)    one moment of a store for several reads
    drain(spark, url, …)    executors as workers, until a queue is empty
    StreamListener()        rows, lag and batch times of streams, for Prometheus and the log

PySpark finds the data source by itself where the module `pyspark_leasehold`, which comes with this package, is installed.
"""

from __future__ import annotations

try:
    import numpy as _numpy
    import pyarrow as _pyarrow
    import pyspark as _pyspark
except ImportError as exc:  # pragma: no cover - where the extra is not installed
    raise ImportError(
        f"leasehold.spark needs PySpark, pyarrow and numpy ({exc}): pip install 'leasehold[spark]'"
    ) from exc

from leasehold.spark.datasource import LeaseholdSource, register
from leasehold.spark.draining import drain
from leasehold.spark.listening import StreamListener
from leasehold.spark.session import session
from leasehold.spark.snapshots import snapshot

del _numpy, _pyarrow, _pyspark

__all__ = ["LeaseholdSource", "StreamListener", "drain", "register", "session", "snapshot"]
