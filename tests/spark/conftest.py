"""One JVM for all Spark tests of a run: they share an xdist group, and thus a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import leasehold.spark

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            # PySpark leaves sockets to the garbage collector, and pandas warns about what PySpark does with it.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
            )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]` with four tries a task; its warehouse and its scratch files in a folder that goes with the run."""
    place = tmp_path_factory.mktemp("spark")
    made = leasehold.spark.session(
        "tests",
        master="local[2,4]",
        memory="1g",
        conf={
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.local.dir": str(place / "scratch"),
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "ERROR",
        },
    )
    yield made
    made.stop()
