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
    spark.createDataFrame(
        [(f"order-{number}", number * 1.5) for number in range(30)], "id string, total double"
    ).write.parquet(str(tmp_path / "orders"))
    body = EXAMPLE.body.replace('"orders")\n', f'"{tmp_path / "orders"}")\n').replace("./data", str(tmp_path / "data"))
    exec(compile(body, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "orders" in shown
    assert "30" in shown
    with tenure.open(f"rocksdb:{tmp_path / 'data'}") as store:
        assert store.queue("orders").counts().ready == 30
        assert store.queue("orders").claim()[0].payload.startswith(b'{"id":"order-')
