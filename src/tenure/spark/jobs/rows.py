"""Rows of the table `jobs` as jobs, and jobs into a store from an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from tenure.api.migration import batches
from tenure.model.job import Job
from tenure.spark.connections import opened

#: What `restored` answers with, a row a batch.
OUTCOME = "jobs BIGINT, added BIGINT, there BIGINT, refused STRING"
_OUTCOME = pa.schema([("jobs", pa.int64()), ("added", pa.int64()), ("there", pa.int64()), ("refused", pa.string())])


def jobs_in(batch: pa.RecordBatch) -> list[Job]:
    return [job_of(row) for row in batch.to_pylist()]


def job_of(row: dict[str, Any]) -> Job:
    headers = row["headers"] or []
    return Job(
        id=row["id"],
        tenant=row["tenant"],
        queue=row["queue"],
        state=row["state"],
        payload=row["payload"],
        headers=dict(headers.items() if isinstance(headers, dict) else headers),
        key=row["key"],
        priority=row["priority"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        token=row["token"],
        replays=row["replays"],
        created_at_ms=_ms(row["created_at"]) or 0,
        visible_at_ms=_ms(row["visible_at"]) or 0,
        ended_at_ms=_ms(row["ended_at"]),
        reason=row["reason"],
        error=row["error"],
        result=row["result"],
        progress=row["progress"],
        progress_note=row["progress_note"],
        lease_id=None,
        lease_until_ms=None,
        worker=None,
        due_at_ms=_ms(row["due_at"]),
        group=row.get("group"),
    )


def _ms(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


class Restoring:
    """Puts batches of the table `jobs` into the store `url`, on an executor.

    Idempotent: jobs that are there are left.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            if part.num_rows:
                yield self._restore(jobs_in(part))

    def _restore(self, jobs: list[Job]) -> pa.RecordBatch:
        added = there = 0
        refused: dict[str, str] = {}
        by_queue: dict[tuple[str, str], list[Job]] = {}
        for job in jobs:
            by_queue.setdefault((job.queue, job.tenant), []).append(job)
        # Opened for each part and closed again: tasks take turns where only one process can open the store.
        with opened(self._url) as store:
            for (queue, tenant), of_queue in by_queue.items():
                handle = store.queue(queue, tenant)
                for batch in batches(iter(of_queue)):
                    answer = handle.restore(batch)
                    added += len(answer.added)
                    there += len(answer.there)
                    refused |= answer.refused
        said = msgspec.json.encode(refused).decode()
        return pa.RecordBatch.from_pylist(
            [{"jobs": len(jobs), "added": added, "there": there, "refused": said}], schema=_OUTCOME
        )
