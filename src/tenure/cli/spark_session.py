"""A Spark session for a command: check requirements, start without output, show the current step."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rich.console import Console

from tenure.cli.session import Session
from tenure.errors import InvalidArgument, SettingsError
from tenure.extras import missing
from tenure.telemetry import configure_logging

if TYPE_CHECKING:
    from tenure.analysis.summary import Summary
    from tenure.spark.job_session import SparkSession


def require() -> None:
    """Check that Spark's requirements are installed. Raises SettingsError, which says what to install."""
    if find_spec("pyspark") is None:
        raise SettingsError(missing("tenure spark", "pyspark", "spark"))
    home = os.environ.get("JAVA_HOME")
    if not (home and os.access(os.path.join(home, "bin", "java"), os.X_OK)) and shutil.which("java") is None:
        raise SettingsError(
            "Spark needs Java 17 or newer, and none was found (neither JAVA_HOME nor on the PATH)."
            " On Debian or Ubuntu: sudo apt-get install openjdk-17-jre-headless"
        )


@contextmanager
def hushed(debug: bool = False) -> Iterator[None]:
    """Hold back what Java prints on stderr at the start, and show it only if the start fails."""
    if debug:
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as output:
        before = os.dup(2)
        os.dup2(output.fileno(), 2)
        try:
            yield
        except BaseException:
            output.seek(0)
            os.write(before, output.read())
            raise
        finally:
            os.dup2(before, 2)
            os.close(before)


def checked_conf(conf: Sequence[str]) -> dict[str, str]:
    """Return the settings of `--conf`, by name. Raises InvalidArgument."""
    settings: dict[str, str] = {}
    for pair in conf:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidArgument(f"--conf {pair}: a setting of Spark is NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


@contextmanager
def spark_session(
    session: Session,
    job: str,
    master: str,
    memory: str | None,
    conf: Sequence[str],
    is_short: Callable[[], bool] = lambda: False,
) -> Iterator[SparkSession]:
    """Yield a session for a command. `is_short`, called once Spark is found, says that the job will take seconds."""
    log = session.settings.log
    configure_logging("debug" if session.debug else log.level, "json" if session.json else log.format)
    require()
    settings = {"spark.log.level": "WARN" if session.debug else "ERROR", **checked_conf(conf)}
    from tenure.spark.job_session import running
    from tenure.spark.session import SHORT_LIVED_JAVA

    if is_short():
        settings = {"spark.driver.extraJavaOptions": SHORT_LIVED_JAVA} | settings
    with running(f"tenure {job}", master, memory, settings, lambda: hushed(session.debug)) as spark:
        yield spark


StepCallback = Callable[[str], None]
"""Called with the name of each step at its beginning."""


@contextmanager
def step_line(session: Session, job: str) -> Iterator[StepCallback]:
    """Show the job's current step: a changing line on a terminal, one line a step elsewhere, nothing with --json."""
    if session.json:
        yield lambda step: None
        return
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda step: console.print(f"{job}: {step}", markup=False, soft_wrap=True)
        return
    with console.status(f"{job} …") as status:
        yield lambda step: status.update(f"{job}: {step}")


def summary_shape(summary: Summary) -> dict[str, object]:
    return {
        "job": summary.job,
        "read": summary.read,
        "written": summary.written,
        "rejected": summary.rejected,
        "seconds": round(summary.seconds, 3),
        **summary.facts,
    }
