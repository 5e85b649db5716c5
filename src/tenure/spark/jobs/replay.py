"""`replay`: dead letters chosen by a SQL predicate over the table `jobs`, brought back where they are still what was
read.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tenure.errors import InvalidArgument
from tenure.spark.jobs import journal
from tenure.spark.jobs.summary import Summary, Told, quietly
from tenure.spark.lineage import traced
from tenure.spark.snapshots import snapshot

BATCH = 1000


def batched(items: Iterable[tuple[str, int]], size: int) -> Iterator[list[tuple[str, int]]]:
    left = iter(items)
    while part := list(islice(left, size)):
        yield part


@traced(reads=("url",), writes=("url",))
def replay(
    spark: SparkSession,
    url: str,
    where: str,
    *,
    tenant: str | None = None,
    queue: str | None = None,
    limit: int | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    told: Told = quietly,
) -> Summary:
    """Replay the dead jobs for which `where` holds, the first to die first. `rate` is jobs a second, over all of them.

    A job that was replayed, purged or died again since it was read is left alone, and counted as rejected.
    """
    began = time.monotonic()
    if rate is not None and not 0.001 <= rate <= 1_000_000:
        raise InvalidArgument(f"rate={rate!r} is jobs a second, from 0.001 to 1,000,000")
    with snapshot(url, name="replay") as snap:
        told("choosing dead jobs")
        reader = spark.read.format("tenure").option("url", url).option("snapshot", snap.id).option("state", "dead")
        for name, value in (("tenant", tenant), ("queue", queue)):
            if value is not None:
                reader = reader.option(name, value)
        chosen = reader.load().where(F.expr(where)).orderBy("ended_at", "id")
        if limit is not None:
            chosen = chosen.limit(limit)
        rows = chosen.select("tenant", "queue", "id", "token").collect()
    by_queue: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for row in rows:
        by_queue[row.tenant, row.queue][row.id] = row.token
    done = left = at = 0
    if rows and not dry_run:
        told(f"replaying {len(rows):,} jobs")
        with journal.there(url) as store:
            for (of_tenant, of_queue), tokens in by_queue.items():
                handle = store.queue(of_queue, of_tenant)
                for part in batched(tokens.items(), BATCH):
                    delay = 0.0 if rate is None else at / rate
                    answer = handle.replay(dict(part), rate=rate, delay=delay)
                    at += len(part)
                    done += answer.count
                    left += len(answer.skipped)
                    told(f"replayed {done:,} of {len(rows):,}")
    return Summary(
        job="replay",
        read=len(rows),
        written=done,
        rejected=left,
        seconds=time.monotonic() - began,
        facts={
            "dry_run": dry_run,
            "queues": {f"{t}/{q}": len(ids) for (t, q), ids in sorted(by_queue.items())},
            "ids": [row.id for row in rows[:20]],
        },
    )
