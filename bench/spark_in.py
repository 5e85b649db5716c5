"""Spark writes: a DataFrame into a queue by default, in chunks only and in bulk, compared with `enqueue_many` and
Parquet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import tenure
from bench.rows import Row, Setting, paired_ratio, spread
from bench.runner import Run, Section
from bench.spark_out import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "spark-in"
_BYTES = 200
_SETTING = Setting("disk", 1000, _BYTES, 2, "core")
_ROUNDS = 3
_ORDINARY, _OF_MANY, _BULK = 60_000, 0.6, 250_000
#: How many times as long as Parquet a write may take.
_OF_PARQUET = 2.0


def rows(run: Run) -> Iterator[Row]:
    count = run.pick(2_000, 1_000_000, 1_000_000)
    fewer = run.pick(2_000, 300_000, 1_000_000)  # for the slower ways
    if find_spec("pyspark") is None:
        yield Row(NAME, "a DataFrame into a queue", _SETTING, skipped="PySpark is not installed")
        return
    found: dict[str, list[float]] = {"auto": [], "ordinary": [], "bulk": [], "many": [], "parquet": []}
    with session(run) as spark:
        parquet = run.new_folder("rows")
        spark.range(0, count, 1, 4).selectExpr("unhex(repeat(sha2(cast(id as string), 256), 7)) as payload").selectExpr(
            f"substring(payload, 1, {_BYTES}) as payload"
        ).write.parquet(str(parquet))
        df = spark.read.parquet(str(parquet))
        some = run.new_folder("some")
        df.limit(fewer).repartition(4).write.parquet(str(some))
        few = spark.read.parquet(str(some))
        payloads = [row.payload for row in few.collect()]
        for turn in range(_ROUNDS + 1):
            for mode, rows, many in (("auto", few, fewer), ("ordinary", few, fewer), ("bulk", df, count)):
                seconds = _write(rows, run.new_folder(mode), mode, many)
                if turn:
                    found[mode].append(many / seconds)
            others = {
                "many": _many(payloads, run.new_folder("many")),
                "parquet": _parquet(few, run.new_folder("parquet")),
            }
            for way, seconds in others.items():
                if turn:
                    found[way].append(fewer / seconds)
    row = _row("a DataFrame", found["auto"], f"{fewer:,} rows, large partitions as files")
    row.ratio, row.ratio_of = paired_ratio(found["auto"], found["many"]), "to enqueue_many"
    yield row.expect(f">= {_ORDINARY:,}", median(found["auto"]) >= _ORDINARY).expect(
        f">= {_OF_MANY} of enqueue_many", row.ratio >= _OF_MANY
    )
    row = _row("a DataFrame, in chunks only", found["ordinary"], f"{fewer:,} rows, mode=ordinary")
    row.ratio, row.ratio_of = paired_ratio(found["ordinary"], found["many"]), "to enqueue_many"
    yield row.expect(f">= {_OF_MANY} of enqueue_many", row.ratio >= _OF_MANY)
    row = _row("a DataFrame, in bulk", found["bulk"], f"{count:,} rows: sorted files, taken in whole")
    row.ratio, row.ratio_of = paired_ratio(found["bulk"], found["many"]), "to enqueue_many"
    yield row.expect(f">= {_BULK:,}", median(found["bulk"]) >= _BULK)
    yield _row("enqueue_many of the same rows", found["many"], "one thread, batches of 1,000")
    row = _row("the same DataFrame as Parquet", found["parquet"], "the ratio is a DataFrame's time to Parquet's")
    row.ratio, row.ratio_of = paired_ratio(found["parquet"], found["auto"]), "the time into a queue"
    yield row.expect(f"<= {_OF_PARQUET:g}", row.ratio <= _OF_PARQUET)


def _row(what: str, rates: list[float], note: str = "") -> Row:
    middle, low, high = spread(rates)
    return Row(NAME, what, _SETTING, middle, "jobs/s", low, high, note=note)


def _write(df: DataFrame, folder: Path, mode: str, count: int) -> float:
    url = f"rocksdb:{folder}"
    with tenure.open(url, sweep=False) as store:
        store.queue("emails").pause()  # created beforehand: only the write is measured
    began = time.perf_counter()
    df.write.format("tenure").mode("append").option("url", url).option("queue", "emails").option("mode", mode).save()
    seconds = time.perf_counter() - began
    with tenure.open(url, sweep=False) as store:
        assert store.queue("emails").counts().enqueued == count
    return seconds


def _parquet(df: DataFrame, folder: Path) -> float:
    began = time.perf_counter()
    df.write.mode("overwrite").parquet(str(folder))
    return time.perf_counter() - began


def _many(payloads: list[bytes], folder: Path) -> float:
    with tenure.open(f"rocksdb:{folder}", sweep=False) as store:
        queue = store.queue("emails")
        queue.pause()
        began = time.perf_counter()
        for at in range(0, len(payloads), 1000):
            queue.enqueue_many(payloads[at : at + 1000])
        return time.perf_counter() - began


SECTION = Section(
    NAME, "Spark writes jobs, two cores, `disk`", "to `enqueue_many` of the same rows", rows, ("usual", "full")
)
