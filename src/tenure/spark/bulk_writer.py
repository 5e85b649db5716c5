"""`mode=bulk`: executors make sorted files, and the store's owner takes them in whole. For large loads into an embedded RocksDB.

It keeps the promise of an ordinary write: each row is enqueued once under its `writeId`, also after failures. It differs
in this: all jobs appear in one moment; rows with a `key` are refused; `delay` and `ttl` count from the beginning of the write; and
executors must see the store's folder.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage

from tenure.api.store import Store
from tenure.bulk import input_rows, staging
from tenure.bulk.json_payloads import JsonStyle
from tenure.bulk.load_files import KEY_REASON, LoadWriter
from tenure.bulk.publisher import move_rejects
from tenure.bulk.staging import Manifest, Part, RejectsWriter
from tenure.errors import InvalidArgument
from tenure.model.names import QueueName
from tenure.model.write import LoadTarget
from tenure.spark.connections import opened
from tenure.spark.job_writer import Plan, Staged, forget, json_style, refused
from tenure.spark.task_process import spare_collections
from tenure.storage.staged_parts import expire, folder_of


def writer(plan: Plan, store: Store) -> DataSourceWriter:
    if plan.max_waiting is not None:
        raise InvalidArgument("maxWaiting holds back a writer in chunks: mode=bulk writes all at once")
    write_id = plan.write_id or f"spark-{uuid.uuid4().hex}"
    return LoadingWriter(plan, write_id, None if plan.queue is None else _target(store, write_id, plan.queue))


class LoadingWriter(DataSourceArrowWriter):
    def __init__(self, plan: Plan, write_id: str, target: LoadTarget | None) -> None:
        self._plan, self._write_id, self._target = plan, write_id, target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        spare_collections()
        plan, context = self._plan, TaskContext.get()
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        name = f"{partition:06d}-{attempt}-{uuid.uuid4().hex[:12]}"
        folder = folder_of(plan.root, self._write_id)
        out: LoadWriter | None = None
        rejects, style = RejectsWriter(folder, name), json_style()
        for batch in iterator:
            for rows, reasons, good in _checked(batch, plan.queue, style):
                if reasons:
                    if plan.quarantine is None:
                        raise refused(batch, reasons)
                    rejects.add(rows.replace_schema_metadata(plan.given.metadata), reasons)
                for queue, checked_rows in good:
                    if out is None:
                        now = (self._target or self._target_of(queue)).now_ms
                        out = LoadWriter(folder, name, partition, now, self._target_of)
                    out.add(queue, checked_rows)
        parts = [] if out is None else out.close()
        rejects.close()
        return Staged(self._write_id, partition, name, 0, sum(p.rows for p in parts), rejects.rows, parts)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        plan = self._plan
        loaded = sorted([m for m in messages if isinstance(m, Staged)], key=lambda m: m.partition)
        expire(plan.root)
        manifest = Manifest(plan.root, [Part(m.name, 0, m.rows, m.rejected) for m in loaded])
        with opened(plan.url, plan.token) as store:
            done = store.staged(self._write_id).load(manifest.encode(), [part for m in loaded for part in m.parts])
        if plan.quarantine is not None:
            # Of the attempts that were loaded, whichever commit loaded them: a repeat's own rows are not set aside
            # again. An earlier commit that delivered them removed their staged files.
            folder = folder_of(plan.root, self._write_id)
            parts = [
                part for part in Manifest.decode(done.manifest).parts if (folder / f"{part.name}.rejects").exists()
            ]
            move_rejects(folder, parts, plan.quarantine)
        staging.discard(plan.root, self._write_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        forget(self._plan, messages)

    def _target_of(self, queue: QueueName) -> LoadTarget:
        if queue == self._plan.queue and self._target is not None:
            return self._target
        with opened(self._plan.url, self._plan.token) as store:
            return _target(store, self._write_id, queue)


def _target(store: Store, write_id: str, queue: QueueName) -> LoadTarget:
    return store.staged(write_id).load_target(store.queue(queue.queue, tenant=queue.tenant))


_Checked = tuple[pa.RecordBatch, list[str], list[tuple[QueueName, pa.RecordBatch]]]


def _checked(batch: pa.RecordBatch, default: QueueName | None, style: JsonStyle) -> Iterator[_Checked]:
    """As `input_rows.check`, and rows with a key set aside."""
    if "key" in batch.schema.names and batch.column("key").null_count < batch.num_rows:
        given = np.asarray(pc.is_valid(batch.column("key")).to_numpy(zero_copy_only=False))
        refused = batch.filter(pa.array(given))
        yield refused, [KEY_REASON] * refused.num_rows, []
        batch = batch.filter(pa.array(~given))
    found = input_rows.check(batch, default, style)
    yield (batch if found.bad is None else found.bad), found.reasons, found.good
