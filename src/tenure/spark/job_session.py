"""A Spark session around one job, and Spark's errors in our words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from tenure.errors import InvalidArgument, OpenError, StoreError, TenureError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession as SparkSession

_OURS = re.compile(r"tenure\.[\w.]+\.(\w+): (.+)")
_OPENING = ("OpenError", "StoreLocked", "FormatError", "UnknownEngine")


class SparkFailed(StoreError):
    """Spark ended the job."""

    code = "spark_failed"


Quietly = Callable[[], AbstractContextManager[None]]
"""Wrapped around the start and stop of Java, which prints much."""


@contextmanager
def running(
    name: str, master: str, memory: str | None, settings: Mapping[str, str], quietly: Quietly
) -> Iterator[SparkSession]:
    """The active session of this thread, which is left open; or a new one, which is stopped at the end of the block."""
    from pyspark.sql import SparkSession

    from tenure.spark.session import session

    lent = SparkSession.getActiveSession()
    with quietly():
        spark = lent or session(name, master=master, memory=memory, conf=dict(settings))
    try:
        with _translated():
            yield spark
    finally:
        if lent is None:
            with quietly():
                spark.stop()


@contextmanager
def _translated() -> Iterator[None]:
    """Raise our own errors again as what they were: they come back from Spark's processes as text."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        yield
    except TenureError:
        raise
    except PySparkException as exc:
        text = str(exc)
        ours = [match for match in _OURS.findall(text) if match[0] not in ("SparkFailed",)]
        if ours:
            name, said = ours[-1]
            kind = OpenError if name in _OPENING else InvalidArgument if name == "InvalidArgument" else SparkFailed
            raise kind(said.strip()) from exc
        first = text.strip().splitlines()[0] if text.strip() else type(exc).__name__
        if isinstance(exc, AnalysisException | ParseException):
            raise InvalidArgument(f"Spark cannot do that: {first}") from exc
        raise SparkFailed(f"Spark ended the job: {first}") from exc
