"""Spark reads: a store's jobs compared with the same rows in Parquet, the same through a server, and the journal into
bronze.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from os import urandom
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import tenure
from bench.rows import Row, Setting, paired_ratio, spread
from bench.runner import Run, Section

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "spark-out"
_BYTES = 200
_SETTING = Setting("os", None, _BYTES, 2, "core")
#: Rounds that count, after those in which Java still compiles.
_ROUNDS, _WARMING = 3, 2
_SERVED_ROUNDS, _SERVED_WARMING = 2, 1  # some was compiled while writing the rows as Parquet
_READ, _OF_PARQUET, _SERVED = 600_000, 0.6, 150_000
#: Events a second that `history` writes, and the least factor over the stream by which it wrote them before (issue 21).
_BRONZE, _OF_STREAM = 250_000, 3.0


def rows(run: Run) -> Iterator[Row]:
    count = run.pick(2_000, 1_000_000, 1_000_000)
    try:
        import tenure.spark
    except ImportError as exc:
        yield Row(NAME, "jobs into Spark", _SETTING, skipped=str(exc))
        return
    folder = run.new_folder("store")
    url = f"rocksdb:{folder}"
    with tenure.open(url, durability="os", sweep=False) as store:
        queue = store.queue("emails")
        for _ in range(count // 1000):
            queue.enqueue_many([urandom(_BYTES) for _ in range(1000)])
    with ExitStack() as stack:
        spark = stack.enter_context(session(run))
        served = stack.enter_context(_server(url))
        parquet = run.new_folder("parquet")
        _jobs(spark, served).write.parquet(str(parquet))
        found = _rates({"served": lambda: _jobs(spark, served)}, count, _SERVED_ROUNDS, _SERVED_WARMING)
        bronze = [count / _bronze(spark, served, run.new_folder("bronze"), count) for _ in range(3)][1:]
    with session(run) as spark:  # the server has ended, and the store is free
        found |= _rates({"own": lambda: _jobs(spark, url), "parquet": lambda: spark.read.parquet(str(parquet))}, count)
        files = [count / _bronze_files(spark, url, run.new_folder("bronze"), count) for _ in range(_ROUNDS + 1)][1:]
    own, there = found["own"], found["parquet"]
    row = _row("jobs, from a snapshot's folder", own, f"{count:,} rows")
    row.ratio, row.ratio_of = paired_ratio(own, there), "to Parquet"
    yield row.expect(f">= {_READ:,}", median(own) >= _READ).expect(
        f">= {_OF_PARQUET} of Parquet's", row.ratio >= _OF_PARQUET
    )
    yield _row("the same rows from Parquet", there)
    row = _row("jobs, through a server", found["served"])
    yield row.expect(f">= {_SERVED:,}", median(found["served"]) >= _SERVED)
    row = _row("the journal into bronze, as `history` writes it", files, "Parquet written by the Python tasks")
    row.unit = "events/s"
    row.ratio, row.ratio_of = median(files) / median(bronze), "to the stream below"
    yield row.expect(f">= {_BRONZE:,}", median(files) >= _BRONZE).expect(
        f">= {_OF_STREAM:g} of the stream", row.ratio >= _OF_STREAM
    )
    row = _row("the journal into bronze by a stream", bronze, "readStream, availableNow, batches of 250,000")
    row.unit = "events/s"
    yield row


def _row(what: str, rates: list[float], note: str = "") -> Row:
    middle, low, high = spread(rates)
    return Row(NAME, what, _SETTING, middle, "rows/s", low, high, note=note)


def _rates(
    ways: dict[str, Callable[[], DataFrame]], count: int, rounds: int = _ROUNDS, warming: int = _WARMING
) -> dict[str, list[float]]:
    """Measure rows a second, all columns, from the load to the last row; in turn, after warm-up rounds."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warming + rounds):
        for name, load in ways.items():
            began = time.perf_counter()
            load().write.format("noop").mode("overwrite").save()
            if turn >= warming:
                found[name].append(count / (time.perf_counter() - began))
    return found


def _jobs(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("tenure").option("url", url).option("table", "jobs").load()


def _bronze(spark: SparkSession, url: str, folder: Path, count: int) -> float:
    def write(batch: DataFrame, number: int) -> None:
        batch.write.parquet(str(folder / "bronze" / f"batch={number}"))

    began = time.perf_counter()
    reader = spark.readStream.format("tenure").option("url", url).option("table", "events")
    query = (
        reader.option("maxEventsPerTrigger", 250_000)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = time.perf_counter() - began
    assert spark.read.parquet(str(folder / "bronze")).count() == count + 1, "and the queue's own event"
    shutil.rmtree(folder)
    return seconds


def _bronze_files(spark: SparkSession, url: str, folder: Path, count: int) -> float:
    """Do the first part of a `history` run: plan the journal of a snapshot, and write it, a file for each task."""
    from tenure.analysis.root import LocalRoot
    from tenure.bulk import snapshot_locations
    from tenure.bulk.query import Query
    from tenure.spark.jobs import journal, parquet_files

    began = time.perf_counter()
    start, end = journal.bounds(url, None, "nothing yet")
    with tenure.spark.snapshot(url, name="bench") as snap:
        place = snapshot_locations.find(url, snap.id)
        parts = place.events(start.commit, end.commit, 250_000)
        written = parquet_files.write(spark, place, Query("events"), parts, LocalRoot(folder), "bronze")
    seconds = time.perf_counter() - began
    assert sum(file.rows for file in written) == count + 1, "and the queue's own event"
    shutil.rmtree(folder)
    return seconds


@contextmanager
def session(run: Run) -> Iterator[SparkSession]:
    import tenure.spark

    spark = tenure.spark.session(
        "bench",
        master="local[2]",
        memory="2g",
        conf={"spark.local.dir": str(run.new_folder("scratch")), "spark.log.level": "OFF"},
    )
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _server(url: str) -> Iterator[str]:
    """Serve the store by a listener, in a separate process."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.spark_out", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
    finally:
        child.communicate()


def _serve(url: str) -> None:
    from tenure.backends.owner.listener import Listener
    from tenure.protocol.dispatcher import Dispatcher

    with tenure.open(url, durability="os", sweep=False) as store:
        listening = socket.create_server(("127.0.0.1", 0))
        listener = Listener(listening, Dispatcher(store._backend))
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        sys.stdin.read()
        listener.stop()


SECTION = Section(
    NAME, "Spark reads jobs and the journal, two cores", "to Parquet, for the same rows", rows, ("usual", "full")
)

if __name__ == "__main__":
    _serve(sys.argv[1])
