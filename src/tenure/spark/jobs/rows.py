"""Rows of the table `jobs` as jobs, and jobs into a store from an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tenure.analysis.root import Root, open_root, parquet_files
from tenure.api.migration import BATCH, BATCH_BYTES, batches, restore
from tenure.api.store import Store
from tenure.model.attachments import Attached
from tenure.model.job import Job, ParentResult
from tenure.model.step import Step
from tenure.spark.connections import opened
from tenure.spark.jobs.root_tables import bounded_batches

#: What `Restoring` and `RestoringFiles` answer with, a row a batch.
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


#: What is attached to a job, by tenant, queue and id.
AttachedJobs = dict[tuple[str, str, str], Attached]


def _put_back(store: Store, jobs: Iterable[Job], attached: AttachedJobs) -> _Outcome:
    """Restore jobs of any queues, in batches. Idempotent: jobs that are there are left."""
    outcome = _Outcome()
    by_queue: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        by_queue.setdefault((job.queue, job.tenant), []).append(job)
    for (queue, tenant), of_queue in by_queue.items():
        handle = store.queue(queue, tenant)
        whole = [(job, attached.get((tenant, queue, job.id))) for job in of_queue]
        for batch in batches(whole):
            answer = restore(handle, batch)
            outcome.jobs += len(batch)
            outcome.added += len(answer.added)
            outcome.there += len(answer.there)
            outcome.refused |= answer.refused
    return outcome


@dataclass
class _Outcome:
    jobs: int = 0
    added: int = 0
    there: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def row(self) -> dict[str, object]:
        return {
            "jobs": self.jobs,
            "added": self.added,
            "there": self.there,
            "refused": msgspec.json.encode(self.refused).decode(),
        }


class Restoring:
    """Puts batches of the table `jobs` into the store `url`, on an executor."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            if part.num_rows:
                # Opened for each part and closed again: tasks take turns where only one process can open the store.
                with opened(self._url) as store:
                    outcome = _put_back(store, jobs_in(part), {})
                yield pa.RecordBatch.from_pylist([outcome.row()], schema=_OUTCOME)


class RestoringFiles:
    """Puts jobs of one archived file into the store `url`, on an executor, which reads the file itself.

    It is given the ids of the jobs that were chosen, and the path of their file below `root`.
    """

    def __init__(self, root: str, url: str) -> None:
        self._root, self._url = root, url

    def __call__(self, chosen: pa.Table) -> pa.Table:
        path = chosen.column("file")[0].as_py()
        ids = chosen.column("id").combine_chunks()
        rows: list[dict[str, object]] = []
        root = open_root(self._root)
        attached = attached_in(root, path.rpartition("/")[0], ids)
        with (
            opened(self._url) as store,
            root.open(path) as archived,
            pq.ParquetFile(archived, coerce_int96_timestamp_unit="us") as file,
        ):
            for batch in bounded_batches(file, BATCH, BATCH_BYTES):
                wanted = batch.filter(pc.is_in(batch.column("id"), ids))
                if wanted.num_rows:
                    rows.append(_put_back(store, jobs_in(wanted), attached).row())
        return pa.Table.from_pylist(rows, schema=_OUTCOME)


#: Beside the files of archived jobs: rows of the tables `steps` and `parents` that belong to them. Readers of the folder
#: pass over names that begin so.
STEPS, PARENTS = "_steps", "_parents"


def attached_in(root: Root, folder: str, ids: pa.Array) -> AttachedJobs:
    """What is attached to these jobs of an archive's folder."""
    found: AttachedJobs = {}
    for row in _rows(root, f"{folder}/{STEPS}", ids, "number"):
        step = Step(name=row["name"], kind=row["kind"], value=row["value"], stored_at_ms=_ms(row["stored_at"]) or 0)
        found.setdefault(_owner(row), Attached()).steps.append(step)
    for row in _rows(root, f"{folder}/{PARENTS}", ids, "place"):
        parent = ParentResult(id=row["parent_id"], queue=row["parent_queue"], state=row["parent_state"])
        found.setdefault(_owner(row), Attached()).parents.append(parent)
    return found


def _owner(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["tenant"], row["queue"], row["job_id"]


def _rows(root: Root, folder: str, ids: pa.Array, order: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in parquet_files(root, folder):
        with root.open(path) as opened_file, pq.ParquetFile(opened_file, coerce_int96_timestamp_unit="us") as file:
            for batch in bounded_batches(file, BATCH, BATCH_BYTES):
                rows += batch.filter(pc.is_in(batch.column("job_id"), ids)).to_pylist()
    return sorted(rows, key=lambda row: row[order])
