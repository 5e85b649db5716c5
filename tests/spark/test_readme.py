"""The README's example with Spark, as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tenure
from tests.docs.blocks import README, blocks

(EXAMPLE,) = (block for block in blocks(README) if "spark" in block.marks)


def test_tables_go_in_and_counts_come_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    orders = [(number, number * 1.5) for number in range(30)]  # ids are numbers, as in most tables; keys are text
    spark.createDataFrame(orders, "id bigint, total double").write.parquet(str(tmp_path / "orders"))
    body = EXAMPLE.body.replace('"orders")\n', f'"{tmp_path / "orders"}")\n').replace("./data", str(tmp_path / "data"))
    exec(compile(body, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "orders" in shown
    assert "30" in shown
    with tenure.open(f"rocksdb:{tmp_path / 'data'}") as store:
        assert store.queue("orders").counts().ready == 30
        assert store.queue("orders").claim()[0].payload.startswith(b'{"id":')
        assert store.queue("orders").list("ready", 100).jobs[0].key in {str(number) for number in range(30)}
