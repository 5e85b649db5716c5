"""A SparkSession with the settings that suit Tenure, and small machines."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from tenure.process import Layer, closed_at_exit

#: The variable by which `session` tells Spark's processes in which folder to note the snapshots that reads take.
READS = "SPARK_TENURE_READS"

#: Options of the driver's Java: a garbage collector without threads of its own, for machines with few cores; no log
#: lines about class-data sharing; and Arrow's vectors without a check of bounds, reference count and null for every
#: value, which Spark's readers and writers of batches check once themselves.
JAVA = (
    "-XX:+UseSerialGC -Xshare:auto -Xlog:disable -Xlog:all=error:stderr "
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
#: Options of a Java that lives for seconds or minutes: only the fast compiler, since code runs too rarely to pay for the
#: optimizing one. With that option alone Java reserves 48 MiB for compiled code, and where they are full it stops Spark.
SHORT_LIVED_JAVA = f"{JAVA} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"

#: Java's buffers for record batches lie outside its heap, in memory of the C library. By default the library keeps freed
#: buffers of up to 32 MiB for reuse, in a pool for every thread: here it returns those of 6 MiB and more at once. The
#: buffers of 4 MiB that batches of small rows need are reused, also by Python: as new memory, they would take a tenth of
#: the processor time of a read.
_MALLOC = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(6 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 1024 * 1024),
}


def session(
    app: str = "tenure",
    *,
    master: str | None = None,
    memory: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The active session, or a new one.

    `memory` is the driver's heap. `conf` has settings of Spark, which override those made here. Without `master` it is
    that of spark-submit, or this machine (`local[*]`).
    """
    local = master is not None and master.startswith("local")
    settings = {
        "spark.app.name": app,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # PySpark would send the source line of every expression to Java, in more calls than the expression itself.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Java builds a batch for Python outside its heap, in buffers that double as they fill, one set for each task.
        # Payloads have up to 8 MiB, so a batch and its buffer have up to 12 and 16; batches of 10,000 small rows have less.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * 1024 * 1024),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": JAVA,
    }
    if local:
        settings |= {
            # Loopback: a laptop's host name may not resolve, and other machines must not connect.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        }
    if master is not None:
        settings["spark.master"] = master
    if memory is not None:
        settings["spark.driver.memory"] = memory
    builder = SparkSession.builder
    settings |= dict(conf or {})
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _launching(local, settings.get("spark.pyspark.python"), {READS: str(reads_folder())}):
        return builder.getOrCreate()


@contextmanager
def _launching(local: bool, executors: str | None, told: Mapping[str, str]) -> Iterator[None]:
    """Set what Spark's Java takes from its environment only, while it starts; its Pythons inherit it.

    Which Python looks for data sources (`python3` by default); the address of this machine (Java warns of loopback names);
    how memory is returned to the system; and what our own modules are told. On a cluster the executors' Python may be
    elsewhere: then `spark.pyspark.python` says where, which PySpark itself only heeds when it is submitted.
    """
    added = {name: value for name, value in _MALLOC.items() if name not in os.environ} | dict(told)
    if "PYSPARK_PYTHON" not in os.environ:
        if local:
            added["PYSPARK_PYTHON"] = _plain_python()
        elif executors is not None:
            added["PYSPARK_PYTHON"] = executors
    if not local and "PYSPARK_DRIVER_PYTHON" not in os.environ:
        added["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if local and "SPARK_LOCAL_IP" not in os.environ:
        added["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


class _ProgramFolder:
    """A temporary folder that is removed when this program ends. The end of a forked child leaves it alone."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        closed_at_exit(self, Layer.APPLICATION)

    def close_at_exit(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class _ReadsFolder(_ProgramFolder):
    """Snapshots that are noted here at the program's end are released."""

    def close_at_exit(self) -> None:
        if any(self.path.iterdir()):
            from tenure.spark.snapshots import release

            release()
        super().close_at_exit()


@cache
def _reads() -> _ReadsFolder:
    return _ReadsFolder("tenure-reads-")


def reads_folder() -> Path:
    """Where this program's reads note the snapshots they take."""
    return _reads().path


@cache
def _python_folder() -> _ProgramFolder:
    return _ProgramFolder("tenure-spark-")


def _plain_python() -> str:
    """A script that starts this Python with PySpark from where it is installed.

    Spark puts its own zip files first on PYTHONPATH, and every worker then unpacks PySpark's modules from them; that is
    most of the time a short task takes. Only those entries are left out of the path.
    """
    script = _python_folder().path / "python"
    path = os.environ.get("PYTHONPATH")
    setting = f"export PYTHONPATH={shlex.quote(path)}" if path else "unset PYTHONPATH"
    script.write_text(f'#!/bin/sh\n{setting}\nexec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o700)
    return str(script)
