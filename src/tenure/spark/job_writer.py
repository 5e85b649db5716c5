"""DataFrames into queues, exactly once: batch (`df.write`) and stream (`df.writeStream`).

    executors   write()    check a column at a time, stage the valid rows, set aside the others
    driver      commit()   record which attempts won, publish them in chunks; repeated, it finishes and never doubles
                abort()    remove what was staged, unless a commit has been recorded: that may have been published

A batch write is known by its `writeId`, which makes a whole job repeatable; a stream's by the ids of query and batch.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import localcontext
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
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import NullType, StringType, StructField, StructType

from tenure.api.store import Store
from tenure.bulk import input_rows, staging
from tenure.bulk.flow_rows import FLOW_COLUMNS
from tenure.bulk.json_payloads import JsonStyle
from tenure.bulk.publisher import Terms, commit
from tenure.bulk.refused_rows import GIVEN
from tenure.bulk.staged_rows import StagedRows
from tenure.bulk.staging import Manifest, Part, RejectsWriter
from tenure.errors import InvalidArgument, TenureError
from tenure.model.names import QueueName, queue_name
from tenure.model.write import LoadPart, LoadTarget, checked_write_id
from tenure.settings import Settings
from tenure.spark.connections import opened
from tenure.spark.options import checked, choice, url_of, whole
from tenure.spark.task_process import spare_collections
from tenure.storage.staged_parts import folder_of

OPTIONS = frozenset(
    {"url", "table", "queue", "tenant", "writeId", "mode", "maxWaiting", "maxWait", "onInvalid", "quarantinePath",
     "staging", "token"}
)  # fmt: skip
#: Spark's local properties of a task: the query's id, the batch's id, the session's time zone, and its `to_json`.
_QUERY, _BATCH, _ZONE = "sql.streaming.queryId", "streaming.sql.batchId", "spark.sql.session.timeZone"
_IGNORE_NULLS = "spark.sql.jsonGenerator.ignoreNullFields"
#: The most digits of a decimal number in Spark.
_DECIMAL_DIGITS = 38
#: Seconds that a stream's last batch is remembered, unless the next batch ends earlier: a query may rest for months.
_STREAM_KEEP = 365 * 86_400
#: Where Spark's Parquet files keep the types of their columns.
_NOTE = "org.apache.spark.sql.parquet.row.metadata"


@dataclass
class Staged(WriterCommitMessage):
    """What one attempt staged."""

    write_id: str
    partition: int
    name: str
    chunks: int
    rows: int
    rejected: int
    #: Sorted files, one set for each queue.
    parts: list[LoadPart] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """A write's options, checked, as its processes share them."""

    url: str
    token: str | None
    root: str
    queue: QueueName | None
    write_id: str | None
    quarantine: str | None
    max_waiting: int | None
    max_wait: int
    mode: str
    #: The columns of the DataFrame, as its quarantine keeps them.
    given: pa.Schema
    #: The queue, for partitions that are staged as sorted files; None: all partitions are staged in chunks.
    target: LoadTarget | None = None

    @property
    def bulk(self) -> bool:
        return self.mode == "bulk"


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    table = choice(options, "table", "jobs")
    if table == "verdicts":
        from tenure.spark import verdict_writer

        return verdict_writer.writer(options, schema, overwrite)
    if table != "jobs":
        raise InvalidArgument(f"table {table!r} cannot be written to: jobs (the default) or verdicts")
    plan = planned(options, schema, overwrite)
    with opened(plan.url, plan.token) as store:
        if plan.bulk:
            from tenure.spark import bulk_writer

            return bulk_writer.writer(plan, store)
        return JobsWriter(replace(plan, target=_file_target(plan, schema, store)))


#: Columns that mean the same in sorted files as in chunks. Times do not: in files they count from the write's beginning.
_FILE_COLUMNS = frozenset({"payload", "priority", "max_attempts", "headers"})


def _file_target(plan: Plan, schema: StructType, store: Store) -> LoadTarget | None:
    """The queue, if large partitions may be staged as sorted files; else None."""
    own_folder = Settings.load(plan.url).storage.engine == "rocksdb" and plan.root == staging.root_of(plan.url)
    if plan.mode == "ordinary" or plan.queue is None or plan.max_waiting is not None or not own_folder:
        return None
    if not _FILE_COLUMNS.issuperset(schema.names):
        return None
    queue = store.queue(plan.queue.queue, tenant=plan.queue.tenant)
    target = store.staged(plan.write_id or "spark").load_target(queue)
    return None if target.bounded else target


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    plan = planned(options, schema, overwrite)
    if plan.bulk:
        raise InvalidArgument("a stream is written by the ordinary path: leave out mode=bulk, which is for large loads")
    if plan.write_id is not None:
        raise InvalidArgument(
            "writeId names one batch write. A stream's batches are known by its query's id, which its checkpoint keeps; "
            "a second query, or a new checkpoint, under one writeId would drop batches: leave it out"
        )
    with opened(plan.url, plan.token):
        return JobsStreamWriter(plan)


def planned(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Plan:
    """Check the options and the schema before any row is read. Does not open the store."""
    said = checked(options, OPTIONS, "a write")
    if overwrite:
        raise InvalidArgument('jobs are only ever added: .mode("append")')
    url = url_of(said)
    input_rows.check_schema(to_arrow_schema(schema, timezone="UTC"))
    mode = choice(said, "mode", "auto", ("auto", "ordinary", "bulk"))
    if mode == "bulk" and not FLOW_COLUMNS.keys().isdisjoint(schema.names):
        raise InvalidArgument(f"mode=bulk takes no flows: leave it out, or the columns {', '.join(FLOW_COLUMNS)}")
    on_invalid = choice(
        said, "onInvalid", "quarantine" if said.get("quarantinePath") else "fail", ("fail", "quarantine")
    )
    if (on_invalid == "quarantine") != ("quarantinePath" in said):
        raise InvalidArgument("onInvalid=quarantine and quarantinePath go together")
    queue = queue_name(said["queue"], said.get("tenant", "default")) if "queue" in said else None
    if queue is None and "queue" not in schema.names:
        raise InvalidArgument('no queue is named: .option("queue", "emails"), or a column of that name')
    return Plan(
        url,
        said.get("token"),
        staging.root_of(url, said.get("staging")),
        queue,
        checked_write_id(said["writeId"]) if "writeId" in said else None,
        said.get("quarantinePath"),
        whole(said, "maxWaiting", 0) or None,
        whole(said, "maxWait", 3600),
        mode,
        _given(schema),
    )


def _given(schema: StructType) -> pa.Schema:
    """The columns in Arrow's types, with a note in Spark's own, by which Spark reads intervals and variants back."""
    fields = [
        StructField(field.name, from_arrow_type(GIVEN.field(field.name).type))
        if isinstance(field.dataType, NullType)
        else field
        for field in schema
    ]
    note = StructType([*fields, StructField("reason", StringType())]).json()
    # Parquet has no columns without a type: Spark does not read a file whose note has one, within a struct.
    return to_arrow_schema(schema, timezone="UTC").with_metadata(None if '"void"' in note else {_NOTE: note})


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
        query = context.getLocalProperty(_QUERY) if context else None
        batch = context.getLocalProperty(_BATCH) if context else None
        if not query or batch is None:
            raise InvalidArgument(
                "this Spark does not tell its tasks the ids of query and batch: write in foreachBatch"
            )
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
    """Write an attempt's rows to a file of its own.

    Raises InvalidArgument for invalid rows where there is no quarantine.
    """
    spare_collections()
    context = TaskContext.get()
    partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
    # Every Spark application counts attempts from 0, and another one may repeat this write: hence the random suffix.
    name = f"{partition:06d}-{attempt}-{uuid.uuid4().hex[:12]}"
    if plan.root == staging.IN_STORE:
        # No folder is shared with the store: the files are made here, and sent there.
        with tempfile.TemporaryDirectory(prefix="tenure-") as place:
            made = _stage(plan, write_id, batches, partition, name, Path(place))
            with opened(plan.url, plan.token) as store:
                staging.upload(store, write_id, Path(place), name)
            return made
    return _stage(plan, write_id, batches, partition, name, folder_of(plan.root, write_id))


def _stage(
    plan: Plan, write_id: str, batches: Iterator[pa.RecordBatch], partition: int, name: str, folder: Path
) -> Staged:
    out = StagedRows(folder, name, partition, plan.target)
    rejects = RejectsWriter(folder, name)
    style = json_style()
    try:
        for batch in batches:
            found = input_rows.check(batch, plan.queue, style)
            if found.bad is not None:
                if plan.quarantine is None:
                    raise refused(batch, found.reasons)
                rejects.add(found.bad.replace_schema_metadata(plan.given.metadata), found.reasons)
            for queue, rows in found.good:
                out.add(queue, rows)
        part = out.close()
        rejects.close()
    except BaseException:
        out.discard()
        raise
    return Staged(write_id, partition, name, part.chunks, part.rows, rejects.rows, part.tables)


def refused(batch: pa.RecordBatch, reasons: Sequence[str]) -> InvalidArgument:
    return InvalidArgument(
        f"{len(reasons)} of {batch.num_rows} rows cannot be enqueued; the first: {reasons[0]} "
        "(onInvalid=quarantine with a quarantinePath sets such rows aside)"
    )


def json_style() -> JsonStyle:
    """How this task writes structs and variants as JSON: by the settings of the session, which Spark tells its tasks."""
    from pyspark.sql.variant_utils import VariantUtils

    context = TaskContext.get()
    said = context.getLocalProperty if context else dict[str, str]().get
    zone = said(_ZONE) or _local_zone()

    def variant(value: bytes, metadata: bytes) -> str:
        with localcontext() as digits:
            digits.prec = 2 * _DECIMAL_DIGITS  # PySpark multiplies: with Python's 28 digits it would round
            return str(VariantUtils.to_json(value, metadata, zone))

    return JsonStyle(zone, variant, said(_IGNORE_NULLS) == "false")


def _local_zone() -> str:
    """The name of this machine's time zone, Spark's default; UTC if the zone has no name."""
    named = os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    return named or "UTC"


def publish(plan: Plan, write_id: str, messages: Sequence[WriterCommitMessage | None], previous: str | None) -> None:
    staged = sorted([m for m in messages if isinstance(m, Staged)], key=lambda m: m.partition)
    parts = [Part(m.name, m.chunks, m.rows, m.rejected, m.parts) for m in staged if m.rows or m.rejected]
    keep = None if previous is None else _STREAM_KEEP
    terms = Terms(plan.max_waiting, plan.max_wait, plan.quarantine, plan.given, keep, previous)
    with opened(plan.url, plan.token) as store:
        commit(store, write_id, Manifest(plan.root, parts), terms)


def forget(plan: Plan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove what attempts staged, after a failure.

    Once a commit is recorded nothing is removed: a repeat finishes it.
    """
    staged = [m for m in messages if isinstance(m, Staged)]
    with contextlib.suppress(TenureError, OSError):  # files that cannot be removed now expire
        for write_id in {m.write_id for m in staged}:
            with opened(plan.url, plan.token, patience=5) as store:
                recorded = store.staged(write_id).state() is not None
            if recorded:
                continue
            if plan.root == staging.IN_STORE:
                if plan.write_id is None:  # with a writeId, another run may be staging under it: its pieces must stay
                    with opened(plan.url, plan.token, patience=5) as store:
                        store.staged(write_id).drop_pieces()
            else:
                staging.discard_parts(plan.root, write_id, [m.name for m in staged if m.write_id == write_id])
