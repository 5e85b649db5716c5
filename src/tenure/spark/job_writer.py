"""DataFrames into queues, exactly once: batch (`df.write`) and stream (`df.writeStream`).

    executors   write()    check a column at a time, stage what is good, set aside what is not
    driver      commit()   record which attempts won, publish them in chunks; repeated, it finishes and never doubles
                abort()    forget what was staged, unless a commit has been recorded: that may have been published

A batch write is known by its `writeId`, which makes a whole job repeatable; a stream's by query and batch.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tenure.bulk import input_rows, staging
from tenure.bulk.publisher import Terms, commit, stage_rejects
from tenure.bulk.staging import Manifest, Part, PartWriter
from tenure.errors import InvalidArgument, TenureError
from tenure.model.names import QueueName, queue_name
from tenure.model.write import checked_write_id
from tenure.spark.connections import opened
from tenure.spark.options import checked, url_of, whole
from tenure.storage.staged_parts import folder_of

OPTIONS = frozenset(
    {"url", "table", "queue", "tenant", "writeId", "mode", "maxWaiting", "maxWait", "onInvalid", "quarantinePath",
     "staging", "path", "checkpointLocation"}
)  # fmt: skip
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
#: A stream's last batch is remembered until the next one is finished: the query may stand still for long.
_STREAM_KEEP = 365 * 86_400


@dataclass
class Staged(WriterCommitMessage):
    """What one attempt staged."""

    write_id: str
    partition: int
    name: str
    chunks: int
    rows: int
    rejected: int


@dataclass(frozen=True)
class Plan:
    """A write's options, checked, as its processes share them."""

    url: str
    root: str
    queue: QueueName | None
    write_id: str | None
    quarantine: str | None
    max_waiting: int | None
    max_wait: int


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    table = options.get("table") or "jobs"
    if table == "verdicts":
        from tenure.spark import verdict_writer

        return verdict_writer.writer(options, schema, overwrite)
    if table != "jobs":
        raise InvalidArgument(f"table {table!r} cannot be written to: jobs (the default) or verdicts")
    plan = planned(options, schema, overwrite)
    with opened(plan.url) as store:
        if (options.get("mode") or "ordinary") == "bulk":
            from tenure.spark import bulk_writer

            return bulk_writer.writer(plan, store)
    return JobsWriter(plan)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    if (options.get("mode") or "ordinary") == "bulk":
        raise InvalidArgument("a stream is written by the ordinary path: leave out mode=bulk, which is for large loads")
    plan = planned(options, schema, overwrite)
    with opened(plan.url):
        return JobsStreamWriter(plan)


def planned(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Plan:
    """Check everything that can be told before a row is read; the caller opens the store, which makes it if need be."""
    said = checked(options, OPTIONS, "a write")
    if overwrite:
        raise InvalidArgument('jobs are only ever added: .mode("append")')
    url = url_of(said)
    input_rows.check_schema(to_arrow_schema(schema, timezone="UTC"))
    if said.get("mode", "ordinary") not in ("ordinary", "bulk"):
        raise InvalidArgument(f"option mode={said['mode']!r}: ordinary or bulk")
    on_invalid = said.get("onInvalid", "quarantine" if said.get("quarantinePath") else "fail")
    if on_invalid not in ("fail", "quarantine"):
        raise InvalidArgument(f"option onInvalid={on_invalid!r}: fail or quarantine")
    if (on_invalid == "quarantine") != ("quarantinePath" in said):
        raise InvalidArgument("onInvalid=quarantine and quarantinePath go together")
    queue = queue_name(said["queue"], said.get("tenant", "default")) if "queue" in said else None
    if queue is None and "queue" not in schema.names:
        raise InvalidArgument('no queue is named: .option("queue", "emails"), or a column of that name')
    return Plan(
        url,
        staging.root_of(url, said.get("staging")),
        queue,
        checked_write_id(said["writeId"]) if "writeId" in said else None,
        said.get("quarantinePath"),
        whole(said, "maxWaiting", 0) or None,
        whole(said, "maxWait", 3600),
    )


class JobsWriter(DataSourceArrowWriter):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # One id a write, minted here: its tasks' attempts share it, another run of the job does not.
        self._write_id = plan.write_id or f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(self._plan, self._write_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        publish(self._plan, self._write_id, messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        forget(self._plan, messages)


class JobsStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        query = self._plan.write_id or (context.getLocalProperty(_QUERY) if context else None)
        batch = context.getLocalProperty(_BATCH) if context else None
        if not query or batch is None:
            raise InvalidArgument('this Spark does not name its query and batch: give the stream .option("writeId", …)')
        return stage(self._plan, _of_batch(query, int(batch)), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        query = staged[0].write_id.rsplit("/", 1)[0]
        if any(message.write_id != _of_batch(query, batchId) for message in staged):
            raise InvalidArgument(f"batch {batchId} was staged as {sorted({m.write_id for m in staged})}")
        publish(self._plan, _of_batch(query, batchId), messages, _of_batch(query, batchId - 1))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        forget(self._plan, messages)


def _of_batch(query: str, batch: int) -> str:
    return f"{query}/{batch}"


# ── what batch and stream share ──────────────────────────────────────────────────────────────────────────────────────


def stage(plan: Plan, write_id: str, batches: Iterator[pa.RecordBatch]) -> Staged:
    """An attempt's rows to a file of its own."""
    context = TaskContext.get()
    partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
    # Attempt numbers begin anew with every application, and a write may be repeated by another: the last part tells them apart.
    name = f"{partition:06d}-{attempt}-{uuid.uuid4().hex[:12]}"
    if plan.root == staging.IN_STORE:
        # No folder is shared with the store: made here, and sent there.
        with tempfile.TemporaryDirectory(prefix="tenure-") as place:
            made = _stage(plan, write_id, batches, partition, name, Path(place))
            with opened(plan.url) as store:
                staging.upload(store, write_id, Path(place), name)
            return made
    return _stage(plan, write_id, batches, partition, name, folder_of(plan.root, write_id))


def _stage(
    plan: Plan, write_id: str, batches: Iterator[pa.RecordBatch], partition: int, name: str, folder: Path
) -> Staged:
    out: PartWriter | None = None
    rejects: list[tuple[pa.RecordBatch, list[str]]] = []
    try:
        for batch in batches:
            found = input_rows.check(batch, plan.queue)
            if found.bad is not None:
                if plan.quarantine is None:
                    raise InvalidArgument(
                        f"{len(found.reasons)} of {batch.num_rows} rows cannot be enqueued; the first: {found.reasons[0]} "
                        "(onInvalid=quarantine with a quarantinePath sets such rows aside)"
                    )
                rejects.append((found.bad, found.reasons))
            for queue, rows in found.good:
                out = out or PartWriter(folder, name)
                out.add(queue, rows)
        part = Part(name, 0, 0) if out is None else out.close()
        if rejects:
            folder.mkdir(parents=True, exist_ok=True)
            stage_rejects(folder, name, rejects)
    except BaseException:
        if out is not None:
            out.discard()
        raise
    return Staged(write_id, partition, name, part.chunks, part.rows, sum(len(reasons) for _, reasons in rejects))


def publish(plan: Plan, write_id: str, messages: Sequence[WriterCommitMessage | None], previous: str | None) -> None:
    staged = sorted([m for m in messages if isinstance(m, Staged)], key=lambda m: m.partition)
    parts = [Part(m.name, m.chunks, m.rows, m.rejected) for m in staged if m.rows or m.rejected]
    terms = Terms(
        plan.max_waiting, plan.max_wait, plan.quarantine, None if previous is None else _STREAM_KEEP, previous
    )
    with opened(plan.url) as store:
        commit(store, write_id, Manifest(plan.root, parts), terms)


def forget(plan: Plan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """After a failure. Once a commit is recorded nothing is taken back: it may be published, and can be finished."""
    staged = [m for m in messages if isinstance(m, Staged)]
    with contextlib.suppress(TenureError, OSError):  # what cannot be removed now expires
        for write_id in {m.write_id for m in staged}:
            with opened(plan.url, patience=5) as store:
                recorded = store.staged(write_id).state() is not None
            if recorded:
                continue
            if plan.root == staging.IN_STORE:
                if plan.write_id is None:  # another run under the same name may be staging: its pieces are not ours
                    with opened(plan.url, patience=5) as store:
                        store.staged(write_id).drop_pieces()
            else:
                staging.discard_parts(plan.root, write_id, [m.name for m in staged if m.write_id == write_id])
