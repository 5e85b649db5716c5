"""The session builder, and PySpark finding the source by itself."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession


def test_times_are_utc_and_python_runs(spark: SparkSession):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.parallelize(range(10), 2).map(lambda n: n + 1).sum() == 55


def test_the_source_is_found_without_registering(spark: SparkSession):
    with pytest.raises(AnalysisException, match="unknown table 'nope'"):
        spark.read.format("tenure").option("url", "memory:").option("table", "nope").load()
