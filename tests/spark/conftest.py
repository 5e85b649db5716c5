"""One JVM for all Spark tests of a run: they share an xdist group, and thus a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import tenure.spark
from tenure.analysis.commit_log import new_attempt
from tenure.spark.session import SHORT_LIVED_JAVA
from tests.analysis import s3_server

HERE = Path(__file__).parent
#: Each takes minutes: `make test` has fifteen for everything. Most start several Javas, one after the other; the tour
#: (`test_example.py`) runs every job of `tenure.spark.jobs`, each of which has tests of its own.
LONG = {"test_archive_kill.py", "test_cluster.py", "test_example.py", "test_stream_crash.py", "test_stream_kill.py"}


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            if item.path.name in LONG and "CRASH_ROUNDS" not in os.environ:
                item.add_marker(pytest.mark.skip(reason="takes minutes: in make test-crash"))
            if item.get_closest_marker("timeout") is None:
                # The first one starts the Java: five seconds, and a minute and more on a machine that is busy elsewhere.
                item.add_marker(pytest.mark.timeout(360))
            # PySpark leaves sockets to the garbage collector, and pandas warns about what PySpark does with it.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
            )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, object_store: str) -> Iterator[SparkSession]:
    """`local[2]` with four tries a task; its warehouse and its scratch files in a folder that goes with the run.

    SPARK_MASTER="local-cluster[2,1,1024]" runs the same tests with executors that are processes of their own.
    """
    place = tmp_path_factory.mktemp("spark")
    master = os.environ.get("SPARK_MASTER", "local[2,4]")
    conf = {
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.local.dir": str(place / "scratch"),
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
    }
    if not master.startswith("local["):
        os.environ["SPARK_HOME"] = str(linked_home(place / "home"))
        conf |= {
            # Executors get their Python and its path from here; the driver's wrapper is made for its own.
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(
                [str(HERE / "simulated"), os.environ.get("PYTHONPATH", "")]
            ),
            "spark.pyspark.python": sys.executable,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    # Spark's processes import the simulated `fdb` and know the object store; the driver's environment stays as it is.
    path = os.environ.get("PYTHONPATH")
    theirs = os.pathsep.join([str(HERE / "simulated"), *([path] if path else [])])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PYTHONPATH": theirs, **s3_server.environment(object_store)}.items():
            patch.setenv(name, value)
        made = tenure.spark.session("tests", master=master, memory="1g", conf=conf)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The address of an S3 server on loopback, which Spark's processes know."""
    with s3_server.endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(spark: SparkSession, object_store: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address on the object store for one test; the driver knows the server too."""
    pytest.importorskip("obstore")
    for name, value in s3_server.environment(object_store).items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.BUCKET}/{new_attempt()}"


def linked_home(home: Path) -> Path:
    """Spark as it is installed, by links: a cluster of its own writes `work/` beside it."""
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name in ("bin", "sbin", "jars", "python", "data", "licenses"):
            (home / entry.name).symlink_to(entry)
    return home
