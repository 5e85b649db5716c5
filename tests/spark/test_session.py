"""The session builder, and PySpark finding the source by itself."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tenure.spark.task_process import spare_collections


def test_times_are_utc_and_python_runs(spark: SparkSession):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.parallelize(range(10), 2).map(lambda n: n + 1).sum() == 55


def test_freed_memory_goes_back_to_the_system_unless_the_program_says_otherwise(spark: SparkSession):
    def told(_: int) -> list[str | None]:
        return [os.environ.get(name) for name in ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_")]

    assert spark.sparkContext.parallelize([0], 1).map(told).collect() == [["2", str(6 * 1024 * 1024)]]
    code = (
        "import os\n"
        "from tenure.spark.session import _launching\n"
        "with _launching(True, None, {}):\n"
        "    print(os.environ['MALLOC_ARENA_MAX'], os.environ['MALLOC_TRIM_THRESHOLD_'])\n"
        "print(os.environ['MALLOC_ARENA_MAX'], os.environ.get('MALLOC_TRIM_THRESHOLD_'))\n"
    )
    given = {**os.environ, "MALLOC_ARENA_MAX": "8"}
    ran = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["8", str(16 * 1024 * 1024), "8", "None"]


def test_the_source_is_found_without_registering(spark: SparkSession):
    with pytest.raises(AnalysisException, match="unknown table 'nope'"):
        spark.read.format("tenure").option("url", "memory:").option("table", "nope").load()


def test_the_end_of_a_forked_child_leaves_the_programs_folders():
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tenure.spark.session import _plain_python, reads_folder\n"
        "folders = [reads_folder(), Path(_plain_python()).parent]\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "assert all(folder.exists() for folder in folders)\n"
        "print(*folders)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    folders = [Path(folder) for folder in ran.stdout.split()]
    assert len(folders) == 2
    assert not any(folder.exists() for folder in folders)


def test_collections_spare_what_a_task_s_process_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each process; a program that calls the same code outside of a task keeps its own collections."""
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    for context, times in ((None, 0), (object(), 1)):
        spare_collections.cache_clear()
        monkeypatch.setattr(TaskContext, "get", lambda context=context: context)
        for _ in range(2):
            spare_collections()
        assert len(frozen) == times
    spare_collections.cache_clear()
