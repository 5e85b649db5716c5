"""A Spark session around a command: what must be there first, a quiet start, a line that tells where the job is."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from leasehold.cli.session import Session
from leasehold.errors import InvalidArgument, LeaseholdError, OpenError, StoreError
from leasehold.stores.telemetry import configure_logging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OURS = re.compile(r"leasehold\.[\w.]+\.(\w+): (.+)")
_OPENING = ("OpenError", "StoreLocked", "FormatError", "UnknownEngine")


class SparkMissing(OpenError):
    """Something that Spark needs is not installed."""

    code = "spark_missing"


class SparkFailed(StoreError):
    """Spark ended the job."""

    code = "spark_failed"


def require() -> None:
    """Say what is missing before anything starts."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise SparkMissing("PySpark is not installed: pip install 'leasehold[spark]'") from None
    home = os.environ.get("JAVA_HOME")
    if not (home and os.access(os.path.join(home, "bin", "java"), os.X_OK)) and shutil.which("java") is None:
        raise SparkMissing(
            "Spark needs Java 17 or newer, and none was found (neither JAVA_HOME nor on the PATH)."
            " On Debian or Ubuntu: sudo apt-get install openjdk-17-jre-headless"
        )


@contextmanager
def spark_session(
    session: Session, job: str, master: str, memory: str | None, conf: Sequence[str]
) -> Iterator[SparkSession]:
    log = session.settings.log
    configure_logging("debug" if session.debug else log.level, "json" if session.json else log.format)
    require()
    settings = {"spark.log.level": "WARN" if session.debug else "ERROR"}
    for pair in conf:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidArgument(f"--conf {pair}: a setting of Spark is NAME=VALUE")
        settings[name.strip()] = value.strip()
    from pyspark.sql import SparkSession

    from leasehold.spark import session as made

    lent = SparkSession.getActiveSession()  # a program that has one runs its commands on it, and keeps it
    with hushed(session.debug):
        spark = lent or made(f"leasehold {job}", master=master, memory=memory, conf=settings)
    try:
        with _translated():
            yield spark
    finally:
        if lent is None:
            with hushed(session.debug):
                spark.stop()


@contextmanager
def hushed(debug: bool = False) -> Iterator[None]:
    """Java greets on stderr, at length: kept back, and shown only if the start fails."""
    if debug:
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        before = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(before, kept.read())
            raise
        finally:
            os.dup2(before, 2)
            os.close(before)


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of ours come back from Spark's processes as text: say them as they were."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        yield
    except LeaseholdError:
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


Told = Callable[[str], None]


@contextmanager
def telling(session: Session, job: str) -> Iterator[Told]:
    """A line that says where the job is: one that changes where a person looks, one a step elsewhere; none with --json."""
    if session.json:
        yield lambda step: None
        return
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda step: console.print(f"{job}: {step}", markup=False, soft_wrap=True)
        return
    with console.status(f"{job} …") as status:
        yield lambda step: status.update(f"{job}: {step}")


def summary_shape(summary: Any) -> dict[str, object]:
    return {
        "job": summary.job,
        "read": summary.read,
        "written": summary.written,
        "rejected": summary.rejected,
        "seconds": round(summary.seconds, 3),
        **summary.facts,
    }
