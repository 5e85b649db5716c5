"""The audit as a command for schedulers; Spark and DuckDB run the same laws, and find the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import tenure
from tenure import ManualClock
from tenure.analysis.audit import audit as local_audit
from tenure.cli.main import cli
from tenure.spark.jobs import audit as job
from tenure.spark.jobs.sizing import FEW
from tests.spark.made import live, small_plans
from tests.spark.planted import Planter

pytestmark = pytest.mark.timeout(400)  # a busy machine: the shared JVM may have to compile all of it first


@pytest.fixture(scope="module", autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with small_plans(spark):
        yield


@pytest.mark.parametrize("few", [FEW, 0], ids=["by the driver", "by executors"])
def test_both_engines_find_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(job, "FEW", few)
    clock = ManualClock()
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, clock=clock, sweep=False, durability="os") as store:
        live(store, clock, rounds=40, groups=(None, "a", "b"))
        Planter(store, clock).all()
    ran = CliRunner().invoke(cli, ["spark", "audit", "--store", url, "--json", "--output", str(tmp_path / "found")])
    on_spark, here = json.loads(ran.stdout.splitlines()[-1]), local_audit(url)
    assert on_spark["violations"] == here.facts["violations"]
    assert (ran.exit_code, on_spark["rejected"], on_spark["events"]) == (1, 30, here.facts["events"])
    assert spark.read.parquet(str(tmp_path / "found")).count() == 30


def test_few_rows_are_judged_without_java(tmp_path: Path) -> None:
    """A Java that cannot start is there, and not started."""
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        store.queue("sound").enqueue_many([b"x"] * 3)
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 7\n")
    java.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-m", "tenure", "spark", "audit", "--store", url],
        env={**os.environ, "JAVA_HOME": str(java.parent.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (ran.returncode, "clean: 3 jobs" in ran.stdout) == (0, True), ran.stdout + ran.stderr


def test_a_sound_store_is_clean(spark: SparkSession, tmp_path: Path) -> None:
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        store.queue("sound").enqueue_many([b"x"] * 3)
    ran = CliRunner().invoke(cli, ["spark", "audit", "--store", url])
    assert (ran.exit_code, "clean: 3 jobs" in ran.stdout + ran.stderr) == (0, True), ran.output
