"""Tenure for PySpark: the data source `tenure`, and what goes around it. Needs `pip install 'tenure[spark]'`.

    session(...)            a SparkSession with the settings that suit it
    register(spark)         for sessions that PySpark's own look-up does not serve
    snapshot(url, ttl=…)    one moment of a store for several reads
    release()               drop the snapshots that reads took by themselves
    drain(spark, url, …)    executors as workers, until a queue is empty
    StreamListener()        rows, lag and batch times of streams, for Prometheus and the log

PySpark finds the data source by itself where the module `pyspark_tenure`, which comes with this package, is installed.
"""

from __future__ import annotations

from importlib import import_module as _import
from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

try:
    import numpy as _numpy
    import pyarrow as _pyarrow
    import pyspark as _pyspark
except (
    ModuleNotFoundError
) as exc:  # where the extra is not installed; `extras.needs` words it for its caller by the name
    from tenure.extras import missing

    raise ModuleNotFoundError(missing("tenure.spark", str(exc.name), "spark"), name=exc.name) from exc

from tenure.spark.session import session  # the module of that name, imported later, would replace it

if _CHECKING:
    from tenure.spark.datasource import TenureSource, register
    from tenure.spark.drain_workers import drain
    from tenure.spark.snapshots import release, snapshot
    from tenure.spark.stream_listener import StreamListener

del _numpy, _pyarrow, _pyspark

__all__ = ["StreamListener", "TenureSource", "drain", "register", "release", "session", "snapshot"]

#: Imported on first use: every Python process that Spark starts imports this package, and needs one of them at most.
_HOMES = {
    "TenureSource": "datasource", "StreamListener": "stream_listener", "drain": "drain_workers", "register": "datasource",
    "release": "snapshots",
    "snapshot": "snapshots",
}  # fmt: skip


def __getattr__(name: str) -> _Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tenure.spark' has no attribute {name!r}")
    found = getattr(_import(f"tenure.spark.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
