"""The five-minute tour runs, and says what it did."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.made import small_plans

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]  # it kills nothing, and takes minutes
SCRIPT = Path(__file__).parents[2] / "examples" / "pipeline.py"


def test_the_tour(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path)])
    with small_plans(spark):
        runpy.run_path(str(SCRIPT))
    said = capsys.readouterr().out
    for part in (
        "load, first: 500 jobs written, 100 rows rejected",
        "load, again: 0 jobs written",
        "history: run 1 covers",
        "QuotaError",
        "audit: 0 violations",
        "check(): clean",
    ):
        assert part in said, said
    assert (tmp_path / "report.html").stat().st_size > 20_000
