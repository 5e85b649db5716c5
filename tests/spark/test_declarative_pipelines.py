"""Declarative Pipelines: a sink of the format `tenure`, which gets the options that the pipeline adds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tenure
from tenure.spark.session import _plain_python

SPEC = """
name: into_a_queue
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
FLOW = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("work_queue", "tenure", {{"url": "rocksdb:{folder}/data", "queue": "work"}})


@dp.append_flow(target="work_queue")
def rows():
    return spark.readStream.schema("payload string").parquet("{folder}/in")
"""


#: The journal as the source of an Auto CDC flow: what each job is now.
CDC = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.temporary_view
def job_events():
    events = spark.readStream.format("tenure").option("url", "rocksdb:{folder}/data").option("table", "events").load()
    return events.where("job_id IS NOT NULL").select("job_id", "queue", "state", "attempt", "number", "time")


dp.create_streaming_table("job_states")
dp.create_auto_cdc_flow(
    target="job_states", source="job_events", keys=["job_id"], sequence_by="number", apply_as_deletes="state = 'gone'"
)
"""


def pipelines(verb: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `spark-pipelines` on the pipeline in a folder."""
    return subprocess.run(
        [str(Path(sys.executable).parent / "spark-pipelines"), verb, "--spec", "spark-pipeline.yml"],
        env=os.environ
        | {
            "PYSPARK_PYTHON": _plain_python(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.crash  # it kills nothing, but takes two Javas: `make test-crash` has the time
@pytest.mark.skipif("CRASH_ROUNDS" not in os.environ, reason="in make test-crash")
@pytest.mark.timeout(900)
def test_a_flow_into_a_queue(tmp_path: Path) -> None:
    pytest.importorskip("pyspark.pipelines")
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"payload": [str(n) for n in range(100)]}), tmp_path / "in" / "a.parquet")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "flow.py").write_text(FLOW.format(folder=tmp_path))
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    for _ in range(2):  # run again, it finds nothing new
        ran = pipelines("run", tmp_path)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", sweep=False) as store:
        assert store.queue("work").counts().ready == 100


@pytest.mark.crash  # as above
@pytest.mark.skipif("CRASH_ROUNDS" not in os.environ, reason="in make test-crash")
@pytest.mark.timeout(900)
def test_the_journal_as_the_source_of_an_auto_cdc_flow(tmp_path: Path) -> None:
    """As far as Spark checks it: running it needs a format with MERGE, whose connector is a Java library that is not here."""
    pytest.importorskip("pyspark.pipelines")
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", sweep=False) as store:
        store.queue("work").enqueue(b"x")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "flow.py").write_text(CDC.format(folder=tmp_path))
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    checked = pipelines("dry-run", tmp_path)
    assert checked.returncode == 0, checked.stdout[-2000:] + checked.stderr[-2000:]
