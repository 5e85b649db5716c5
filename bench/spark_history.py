"""Spark over the history: `history` from an empty folder and `audit` of one snapshot, compared with a bare group-by of
the same events.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from os import urandom
from typing import TYPE_CHECKING

import tenure
from bench.rows import Row, Setting
from bench.runner import Run, Section
from bench.spark_out import session
from tenure import Policy, Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "spark-told"
_SETTING = Setting("os", None, 128, 2, "core")
#: The targets of issue 5, at full size.
_AUDIT_SECONDS, _HISTORY_SECONDS = 90, 120


def rows(run: Run) -> Iterator[Row]:
    jobs = run.pick(1_000, 100_000, 1_000_000)
    events = run.pick(5_000, 500_000, 5_000_000)
    try:
        from tenure.spark.jobs.audit import audit
        from tenure.spark.jobs.history import history
    except ImportError as exc:
        yield Row(NAME, "history", _SETTING, skipped=str(exc))
        return
    folder = run.new_folder("store")
    url = f"rocksdb:{folder}"
    with tenure.open(url, durability="os", sweep=False) as store:
        queue = store.queue("emails")
        queue.configure(Policy(retention=86_400))
        _live(queue, jobs)
    with session(run) as spark:  # a driver with 2 GB
        audited = audit(spark, url)
    assert audited.rejected == 0, audited.facts
    with tenure.open(url, durability="os", sweep=False) as store:
        _live(store.queue("emails"), (events - 3 * jobs) // 3)
    root = run.new_folder("history")
    with session(run) as spark:
        updated = history(spark, url, str(root / "lake"), consumer=None)
        bare = _seconds(spark.read.parquet(str(root / "lake" / "bronze" / "run=*" / "*")))
    row = Row(NAME, "audit", _SETTING, audited.read / audited.seconds, "rows/s")
    row.note = (
        f"{audited.facts['jobs']:,} jobs and {audited.facts['events']:,} events in {audited.seconds:.0f} s, clean"
    )
    if run.size == "full":
        row.expect(f"<= {_AUDIT_SECONDS} s", audited.seconds <= _AUDIT_SECONDS)
    yield row
    row = Row(NAME, "history", _SETTING, updated.read / updated.seconds, "events/s")
    row.ratio, row.ratio_of = bare / updated.seconds, "to a group-by of them from Parquet"
    row.note = f"{updated.read:,} events to bronze, silver and gold in {updated.seconds:.0f} s, spark.driver.memory=2g"
    if run.size == "full":
        row.expect(f"<= {_HISTORY_SECONDS} s", updated.seconds <= _HISTORY_SECONDS)
    yield row


def _live(queue: Queue, jobs: int) -> None:
    """Run lives to their end, in batches: three events each, and the jobs are kept."""
    for start in range(0, jobs, 1000):
        count = min(1000, jobs - start)
        queue.enqueue_many([urandom(128) for _ in range(count)])
        queue.ack_many(queue.claim(limit=count))


def _seconds(bronze: DataFrame) -> float:
    began = time.perf_counter()
    bronze.groupBy("queue_number", "job_id").count().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


SECTION = Section(
    NAME, "Spark tells and audits a history, two cores, 2 GB", "to a bare group-by", rows, ("usual", "full")
)
