"""Jobs as a stream: `readStream` of table `claims`, to be settled by table `verdicts` (or in `foreachBatch`).

    latestOffset   only looks: if jobs are ready, it mints an id into the offset, which Spark logs
    partitions     claims by that id, a claim a partition, and keeps the leases alive until the next look
    read           an executor asks for the same claim again, and gets what is still open of it

So a batch that is run again gets the same jobs for as long as its lease lives; afterwards its id gives an empty batch,
and the jobs come with a later one. Nothing is acknowledged by reading: what no verdict reaches comes back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tenure.api.claim import Claim
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.bulk.schemas import HEADERS, TIME
from tenure.errors import InvalidArgument, LeaseLost
from tenure.model.lease import MAX_CLAIM, Delivery
from tenure.model.names import QueueName, queue_name
from tenure.spark.connections import opened
from tenure.spark.heartbeat import Heartbeat
from tenure.spark.options import checked, url_of, whole
from tenure.spark.task_process import spare_collections

OPTIONS = frozenset({"url", "table", "queue", "tenant", "lease", "worker", "partitions", "maxJobsPerTrigger", "token"})
#: Payloads that one partition claims, and that one record batch holds, in bytes.
CLAIM_BYTES, _BATCH_BYTES = 32 * 1024 * 1024, 8 * 1024 * 1024
SCHEMA = pa.schema(
    [
        ("receipt", pa.string()), ("id", pa.string()), ("tenant", pa.string()), ("queue", pa.string()),
        ("payload", pa.binary()), ("headers", HEADERS), ("key", pa.string()), ("priority", pa.int32()),
        ("attempt", pa.int64()), ("max_attempts", pa.int64()), ("token", pa.int64()), ("created_at", TIME),
    ]
)  # fmt: skip
_DDL = (
    "receipt STRING, id STRING, tenant STRING, queue STRING, payload BINARY, headers MAP<STRING, STRING>, key STRING, "
    "priority INT, attempt BIGINT, max_attempts BIGINT, token BIGINT, created_at TIMESTAMP"
)


@dataclass(frozen=True)
class Plan:
    url: str
    token: str | None
    queue: QueueName
    lease: float
    worker: str
    partitions: int
    jobs: int


@dataclass
class ClaimPartition(InputPartition):
    """A claim, by its id and its limit: every process that asks with both gets the same jobs."""

    id: str
    limit: int


def schema(options: Mapping[str, str]) -> str:
    planned(options)
    return _DDL


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    return ClaimReader(planned(options))


def planned(options: Mapping[str, str]) -> Plan:
    said = checked(options, OPTIONS, "a stream of claims")
    if "queue" not in said:
        raise InvalidArgument('no queue is named: .option("queue", "emails")')
    partitions = whole(said, "partitions", 2, 1, 1_000)
    return Plan(
        url_of(said),
        said.get("token"),
        queue_name(said["queue"], said.get("tenant", "default")),
        float(whole(said, "lease", 60, 1, 86_400)),
        said.get("worker", "spark"),
        partitions,
        whole(said, "maxJobsPerTrigger", 1_000, 1, partitions * MAX_CLAIM),
    )


class ClaimReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._open = ExitStack()
        self._store: Store | None = None
        self._heartbeat: Heartbeat | None = None
        #: With `availableNow`: how many of the jobs that were ready at its beginning are still to be claimed.
        self._left: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Only the plan is sent to executors: they open the store themselves."""
        return {"_plan": self._plan}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_plan"])  # type: ignore[misc]

    # ── in the query's own process ───────────────────────────────────────────────────────────────────────────────────

    def initialOffset(self) -> dict[str, Any]:
        return {"id": "", "jobs": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._plan.jobs)

    def prepareForTriggerAvailableNow(self) -> None:
        self._left = self._ready()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # Spark asks for the next batch when the last one has ended: leases that it left unsettled may expire.
        if self._heartbeat is not None:
            self._heartbeat.let_go()
        if (self._left is not None and self._left <= 0) or not self._ready():
            return start
        if self._left is not None:
            self._left -= self._plan.jobs
        return {"id": uuid.uuid4().hex, "jobs": self._plan.jobs}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end or not end["id"]:
            return []
        share = -(-int(end["jobs"]) // self._plan.partitions)
        found: list[InputPartition] = []
        claimed = 0
        for number in range(self._plan.partitions):
            partition = ClaimPartition(f"{end['id']}.{number}", share)
            claim = _claim(self._queue(), self._plan, partition)
            if not claim:
                break  # nothing more is ready; or this was claimed before, and has run out or is settled
            assert self._heartbeat is not None
            self._heartbeat.hold(claim)
            found.append(partition)
            claimed += len(claim)
        if self._left is not None and claimed:
            self._left += int(end["jobs"]) - claimed  # large jobs are claimed fewer at a time
        return found

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls this one batch late, and never for the last batch. Verdicts settle jobs."""

    def stop(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._open.close()
        self._store = self._heartbeat = None

    def _queue(self) -> Queue:
        if self._store is None:
            self._store = self._open.enter_context(opened(self._plan.url, self._plan.token))
        queue = self._store.queue(self._plan.queue.queue, tenant=self._plan.queue.tenant)
        if self._heartbeat is None:
            self._heartbeat = Heartbeat(queue, self._plan.lease)
        return queue

    def _ready(self) -> int:
        """How many jobs a claim would get now.

        If none is ready but some are leased, this also counts the jobs of expired leases.
        """
        queue = self._queue()
        counts = queue.counts()
        if not counts.ready and counts.leased:
            assert self._store is not None
            self._store.sweep()
            counts = queue.counts()
        return counts.ready

    # ── in an executor ───────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ClaimPartition)
        spare_collections()
        plan = self._plan
        with opened(plan.url, plan.token) as store:
            claim = _claim(store.queue(plan.queue.queue, tenant=plan.queue.tenant), plan, partition)
        if claim:
            yield from batches_of(claim.deliveries)


def _claim(queue: Queue, plan: Plan, partition: ClaimPartition) -> Claim | None:
    try:
        return queue.claim(
            limit=partition.limit, lease=plan.lease, worker=plan.worker, id=partition.id, max_bytes=CLAIM_BYTES
        )
    except LeaseLost:
        return None  # the lease expired: another worker has its jobs, or a later batch brings them


def batches_of(deliveries: Sequence[Delivery]) -> Iterator[pa.RecordBatch]:
    """Deliveries as record batches of about 8 MiB at most; one delivery may be as much."""
    begin = size = 0
    for at, delivery in enumerate(deliveries):
        if at > begin and size + len(delivery.payload) > _BATCH_BYTES:
            yield batch_of(deliveries[begin:at])
            begin, size = at, 0
        size += len(delivery.payload)
    if begin < len(deliveries):
        yield batch_of(deliveries[begin:])


def batch_of(deliveries: Sequence[Delivery]) -> pa.RecordBatch:
    columns: list[list[Any]] = [
        [d.receipt for d in deliveries],
        [d.id for d in deliveries],
        [d.tenant for d in deliveries],
        [d.queue for d in deliveries],
        [d.payload for d in deliveries],
        [list(d.headers.items()) for d in deliveries],
        [d.key for d in deliveries],
        [d.priority for d in deliveries],
        [d.attempt for d in deliveries],
        [d.max_attempts for d in deliveries],
        [d.token for d in deliveries],
        [d.created_at for d in deliveries],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
