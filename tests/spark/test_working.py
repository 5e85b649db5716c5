"""Executors as workers: claims as a stream, verdicts as a sink, and draining a queue."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tenure
import tenure.spark
from tenure import Backoff, Policy
from tenure.api.store import Store
from tenure.spark import drain_workers, outcomes, verdict_writer
from tenure.spark.claim_stream import ClaimReader, planned
from tenure.spark.drain_workers import judge


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"lmdb:{tmp_path / 'data'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with tenure.open(url, sweep=False) as made:
        made.queue("work").configure(Policy(max_attempts=3, backoff=Backoff.fixed(0)))
        yield made
        report = made.check()
        assert report.clean, report.findings


def fill(store: Store, count: int) -> None:
    for first in range(0, count, 1_000):
        store.queue("work").enqueue_many([b"%d" % n for n in range(first, min(first + 1_000, count))])


def claims(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    reading = spark.readStream.format("tenure").option("table", "claims").option("url", url).option("queue", "work")
    for name, value in options.items():
        reading = reading.option(name, value)
    return reading.load()


# ── claims and verdicts ──────────────────────────────────────────────────────────────────────────────────────────────


def verdicts(jobs: DataFrame) -> DataFrame:
    """Every tenth job fails for good, every fifth is tried again, the others are done."""
    number = F.col("payload").cast("string").cast("int")
    verdict = F.when(number % 10 == 0, "dead").when(number % 5 == 0, "retry").otherwise("ok")
    return jobs.select("receipt", verdict.alias("verdict"), F.lit("because").alias("error"))


def test_claims_to_verdicts(spark: SparkSession, url: str, store: Store, tmp_path: Path) -> None:
    fill(store, 200)
    writing = verdicts(claims(spark, url, maxJobsPerTrigger=100)).writeStream.format("tenure")
    writing = writing.option("table", "verdicts").option("url", url).option("queue", "work")
    query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    counts = store.queue("work").counts()
    assert (counts.dead, counts.leased, counts.removed) == (20, 0, 160)
    assert counts.waiting == 20, "to be tried again"
    assert {job.error for job in store.queue("work").list("dead")} == {"because"}


def test_verdicts_in_foreach_batch_and_a_batch_that_runs_again(
    spark: SparkSession, url: str, store: Store, tmp_path: Path
) -> None:
    fill(store, 50)
    seen: list[int] = []

    def work(batch: DataFrame, number: int) -> None:
        rows = batch.select("receipt", F.lit("ok").alias("verdict")).toArrow()
        seen.append(rows.num_rows)
        if len(seen) == 1:
            raise RuntimeError("the first time it fails")
        settled = batch.sparkSession.createDataFrame(rows)
        for _ in range(2):  # a verdict that is given again changes nothing
            settled.write.format("tenure").mode("append").option("table", "verdicts").option("url", url).option(
                "queue", "work"
            ).save()

    def run() -> None:
        writing = claims(spark, url, lease=3600).writeStream.foreachBatch(
            work
        )  # it outlives the pause between two runs
        query = writing.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination(300)

    with pytest.raises(Exception, match="the first time it fails"):
        run()
    assert store.queue("work").counts().leased == 50
    run()
    assert seen == [50, 50], "the same jobs, by the same claim"
    assert store.queue("work").counts().removed == 50
    # Once more, as after a kill just before Spark's log of it: the claim is settled, and the batch empty.
    last = max((tmp_path / "c" / "commits").glob("[0-9]*"))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink()
    run()
    assert sum(seen[2:]) == 0


class Limit:
    """What Spark hands over, and the source does not need."""


def test_looking_claims_nothing_and_leases_are_kept_alive(url: str, store: Store) -> None:
    fill(store, 10)
    reader = ClaimReader(planned({"url": url, "queue": "work", "lease": "6", "partitions": "3"}))
    try:
        start = reader.initialOffset()
        first = reader.latestOffset(start, Limit())  # type: ignore[arg-type]
        assert store.queue("work").counts().leased == 0
        parts = reader.partitions(start, first)
        assert len(parts) == 1, "ten jobs fit the first claim"
        (until,) = {job.lease_until_ms for job in store.queue("work").list("leased")}
        assert until is not None
        # The first beat comes after a third of the lease: the other two are left to a machine that is slow.
        while {job.lease_until_ms for job in store.queue("work").list("leased")} == {until}:
            threading.Event().wait(0.05)
        assert store.queue("work").counts().leased == 10
        assert all((job.lease_until_ms or 0) > until for job in store.queue("work").list("leased"))
        assert [rows.num_rows for rows in reader.read(parts[0])] == [10]
        assert reader.latestOffset(first, Limit()) == first, "nothing is ready"  # type: ignore[arg-type]
        # From here on nobody keeps them: they run out, and the old id gives nothing, for ever.
        again = first
        while again == first:
            threading.Event().wait(0.05)
            again = reader.latestOffset(first, Limit())  # type: ignore[arg-type]
        assert list(reader.read(parts[0])) == []
        assert reader.partitions(start, first) == []
        assert [rows.num_rows for part in reader.partitions(first, again) for rows in reader.read(part)] == [10]
    finally:
        reader.stop()


@pytest.mark.parametrize(
    ("row", "error"),
    [(("no receipt", "ok"), "not a receipt"), (("0" * 32 + "." + "0" * 32 + ".1", "perhaps"), "ok, retry, dead")],
)
def test_verdicts_are_checked(url: str, store: Store, row: tuple[str, str], error: str) -> None:
    """As an executor does it, but here: there a task that fails is tried four times."""
    batch = pa.RecordBatch.from_pydict({"receipt": [row[0]], "verdict": [row[1]]})
    with pytest.raises(tenure.InvalidArgument, match=error):
        verdict_writer.settle(verdict_writer.Plan(url, store.queue("work").name), iter([batch]))


# ── draining ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def drained(spark: SparkSession, url: str, store: Store, tmp_path: Path, jobs: int) -> None:
    """One in twenty fails each time it is tried, and one executor is killed while it works."""
    fill(store, jobs)
    mark = str(tmp_path / "killed")
    alone = str(spark.sparkContext.master).startswith("local[")  # the executor is the driver's own process

    def victim() -> int:
        """Called in a task: its executor, or, where that is the driver, this worker."""
        if alone:
            return os.getpid()
        executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[1])
        assert "CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_text()
        return executor

    def handler(delivery: tenure.Delivery) -> object:
        number = int(delivery.payload)
        if number == jobs // 3:
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(victim(), signal.SIGKILL)
        if number % 40 == 0:
            raise ValueError(f"no {number}")
        return "retry" if number % 40 == 20 else None

    rows = tenure.spark.drain(spark, url, "work", handler, lease=3, batch=50).collect()
    assert Path(mark).exists()
    counts = store.queue("work").counts()
    assert (counts.dead, counts.removed, counts.waiting + counts.leased) == (jobs // 20, jobs - jobs // 20, 0)
    ended = Counter(row.job_id for row in rows if row.verdict in ("ok", "dead"))
    assert len(ended) == jobs, "every job was done or is dead"
    assert set(ended.values()) == {1}, "and once"
    assert any(row.verdict == "expired" for row in rows), "what the killed one had in hand"
    told = Counter(row.verdict for row in rows)
    assert (told["ok"], told["dead"]) == (jobs - jobs // 20, jobs // 20)
    assert {row.error for row in rows if row.verdict == "retry"} - {None}, "errors are told"
    assert_no_stale_verdict(store)
    print(f"drained {jobs:,} jobs, an executor killed: {dict(told)}")


def assert_no_stale_verdict(store: Store) -> None:
    """No job is settled under another lease than the one it was last claimed by."""
    holder: dict[str, str | None] = {}
    cursor = None
    while (page := store.events(after=cursor, limit=10_000)).events:
        for event in page.events:
            if event.type == "claimed" and event.job_id:
                holder[event.job_id] = event.lease_id
            elif event.type in ("done", "retried") and event.job_id:
                assert event.lease_id == holder.pop(event.job_id, None)
        cursor = page.cursor


@pytest.mark.crash
def test_drain(spark: SparkSession, url: str, store: Store, tmp_path: Path) -> None:
    drained(spark, url, store, tmp_path, int(os.environ.get("SPARK_DRAIN", "2000")))


def test_drain_to_a_limit_and_of_nothing(
    spark: SparkSession, url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = str  # it gives back what is no verdict
    assert tenure.spark.drain(spark, url, "work", handler, until="idle").count() == 0
    fill(store, 100)
    store.queue("work").enqueue(b"later", delay=3600)
    monkeypatch.setattr(outcomes, "FEW", 10)  # more are put together by Spark: it must say the same
    taken = tenure.spark.drain(spark, url, "work", lambda delivery: ("retry", "why"), limit=20, batch=5, tasks=2)
    rows = taken.collect()
    assert [(len(rows), row.verdict, row.error, row.attempt) for row in rows] == [(20, "retry", "why", 1)] * 20
    assert all(row.claimed_at <= row.settled_at and row.worker.startswith("drain-") for row in rows)
    monkeypatch.undo()
    assert taken.dtypes == tenure.spark.drain(spark, url, "work", handler, limit=1, tasks=1).dtypes
    assert tenure.spark.drain(spark, url, "work", lambda delivery: b"r", until="idle", tasks=1).count() == 100
    assert store.queue("work").counts().scheduled == 1
    with pytest.raises(tenure.InvalidArgument, match="empty or idle"):
        tenure.spark.drain(spark, url, "work", handler, until="never")


def test_a_claim_of_drain_is_bounded_by_bytes(url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred jobs of 8 MiB would be a task of 800 MiB."""
    queue = store.queue("work")
    queue.enqueue_many([bytes(1_000)] * 10)
    monkeypatch.setattr(drain_workers, "_CLAIM_BYTES", 2_500)
    held: list[int] = []
    plan = drain_workers.Plan(url, queue.name, "drain", 60.0, 100, None, "empty", None)
    claimed, tally = drain_workers.work(plan, lambda _: held.append(queue.counts().leased), "worker")
    assert (claimed, tally.settled) == (10, 10)
    assert max(held) == 2


def test_what_a_handler_may_say(store: Store) -> None:
    store.queue("work").enqueue_many([b"x"])
    delivery = store.queue("work").claim()[0]

    def said(value: object) -> tuple[str, bytes | None, str | None]:
        settle = judge(lambda _: value, delivery)
        return settle.verb, settle.result, settle.error

    assert said(None) == ("ack", None, None)
    assert said(b"r") == ("ack", b"r", None)
    assert said("ok") == ("ack", None, None)
    assert said(("ok", "r")) == ("ack", b"r", None)
    assert said(("retry", "why")) == ("nack", None, "why")
    assert said("dead") == ("fail", None, None)
    assert said(42)[0] == "nack"


# ── the listener ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_streams_are_told_of(spark: SparkSession, url: str, store: Store, tmp_path: Path) -> None:
    fill(store, 30)
    registry = CollectorRegistry()
    listener = tenure.spark.StreamListener(registry)
    spark.streams.addListener(listener)
    try:
        df = spark.readStream.format("tenure").option("table", "events").option("url", url).load()
        writing = df.writeStream.format("noop").queryName("told").option("checkpointLocation", str(tmp_path / "c"))
        query = writing.trigger(availableNow=True).start()
        assert query.awaitTermination(300)

        def value(name: str) -> float:
            return registry.get_sample_value(f"tenure_stream_{name}", {"query": "told"}) or 0.0

        until = threading.Event()
        for _ in range(1_000):  # events of a query come a moment after its end
            if value("rows_total") >= 30 and registry.get_sample_value("tenure_stream_running") == 0:
                break
            until.wait(0.1)
        assert value("rows_total") >= 30
        assert value("batches_total") >= 1
        assert value("batch_seconds_sum") > 0
        assert value("lag") == 0
        assert registry.get_sample_value("tenure_stream_running") == 0
        assert registry.get_sample_value("tenure_stream_failures_total") == 0
    finally:
        spark.streams.removeListener(listener)
