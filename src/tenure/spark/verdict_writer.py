"""Verdicts into the queue: `df.write` or `df.writeStream` with table `verdicts`.

    receipt   what the claim gave out with the job: the proof that settles it
    verdict   ok (done), retry (the policy decides when, or that it is dead), dead
    error     for retry and dead        result   for ok, bytes or text        delay   for retry, seconds
    queue, tenant                       null or left out: the write's options say

Executors settle as they write: there is nothing to stage, since a receipt settles once. A task that is tried again, or
a batch that is run again, meets its own verdicts and leaves them; a job whose lease is gone belongs to another by now
and is left alone too. Both are counted, and told in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tenure.api.store import Store
from tenure.errors import AlreadySettled, InvalidArgument, LeaseLost
from tenure.model.durations import duration_ms
from tenure.model.job import MAX_ERROR_CHARS
from tenure.model.lease import Settle, proof_of
from tenure.model.names import QueueName, queue_name
from tenure.model.request import checked_bytes
from tenure.spark.connections import opened
from tenure.spark.options import checked, url_of
from tenure.spark.task_process import spare_collections

OPTIONS = frozenset({"url", "table", "queue", "tenant", "token"})
COLUMNS = ("receipt", "verdict", "error", "result", "delay", "queue", "tenant")
VERBS = {"ok": "ack", "retry": "nack", "dead": "fail"}
#: Verdicts in one transaction.
_BATCH = 1_000


@dataclass
class Tally(WriterCommitMessage):
    """What became of verdicts: taken now, taken before, of jobs no longer the caller's, of damaged ones."""

    settled: int = 0
    repeated: int = 0
    lost: int = 0
    damaged: int = 0

    def add(self, other: Tally) -> None:
        self.settled += other.settled
        self.repeated += other.repeated
        self.lost += other.lost
        self.damaged += other.damaged


@dataclass(frozen=True)
class Plan:
    url: str
    queue: QueueName | None
    token: str | None = None


def planned(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Plan:
    said = checked(options, OPTIONS, "a write of verdicts")
    if overwrite:
        raise InvalidArgument('verdicts are only ever added: .mode("append")')
    for needed in ("receipt", "verdict"):
        if needed not in schema.names:
            raise InvalidArgument(f"there is no column {needed!r} among {', '.join(schema.names)}")
    for name in schema.names:
        if name not in COLUMNS:
            raise InvalidArgument(f"column {name!r}: verdicts have {', '.join(COLUMNS)}")
    queue = queue_name(said["queue"], said.get("tenant", "default")) if "queue" in said else None
    if queue is None and "queue" not in schema.names:
        raise InvalidArgument('no queue is named: .option("queue", "emails"), or a column of that name')
    return Plan(url_of(said), queue, said.get("token"))


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    return VerdictWriter(planned(options, schema, overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    return VerdictStreamWriter(planned(options, schema, overwrite))


class VerdictWriter(DataSourceArrowWriter):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Tally:
        return settle(self._plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        tell(self._plan, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A verdict that was taken stands."""


class VerdictStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Tally:
        return settle(self._plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        tell(self._plan, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """A verdict that was taken stands."""


def settle(plan: Plan, batches: Iterator[pa.RecordBatch]) -> Tally:
    spare_collections()
    tally = Tally()
    with opened(plan.url, plan.token) as store:
        for batch in batches:
            by_queue: dict[QueueName, list[Settle]] = {}
            # All of a batch is checked before any of it is settled.
            for row in batch.to_pylist():
                by_queue.setdefault(_queue(row, plan.queue), []).append(_verdict(row))
            for name, items in by_queue.items():
                for at in range(0, len(items), _BATCH):
                    tally.add(take(store, name, items[at : at + _BATCH]))
    return tally


def take(store: Store, name: QueueName, items: Sequence[Settle]) -> Tally:
    """Settle, and count the answers."""
    tally = Tally()
    for outcome in store.queue(name.queue, tenant=name.tenant).settle_many(items):
        if outcome is None:
            tally.settled += 1
        elif isinstance(outcome, AlreadySettled):
            tally.repeated += 1
        elif isinstance(outcome, LeaseLost):
            tally.lost += 1
        else:
            tally.damaged += 1
    return tally


def tell(plan: Plan, messages: Sequence[WriterCommitMessage | None]) -> Tally:
    whole = Tally()
    for message in messages:
        if isinstance(message, Tally):
            whole.add(message)
    from tenure.telemetry import Telemetry

    telemetry = Telemetry(plan.url)
    say = telemetry.warning if whole.lost or whole.damaged else telemetry.info
    say("verdicts_taken", **vars(whole))
    return whole


def _queue(row: Mapping[str, Any], default: QueueName | None) -> QueueName:
    queue, tenant = row.get("queue"), row.get("tenant")
    if queue is None and tenant is None and default is not None:
        return default
    if queue is None and default is None:
        raise InvalidArgument("no queue is named, by the row or by the write")
    return queue_name(queue or (default and default.queue), tenant or (default.tenant if default else "default"))


def _verdict(row: Mapping[str, Any]) -> Settle:
    verb = VERBS.get(row["verdict"])
    if verb is None:
        raise InvalidArgument(f"verdict {row['verdict']!r}: {', '.join(VERBS)}")
    result, error, delay = row.get("result"), row.get("error"), row.get("delay")
    if isinstance(result, str):
        result = result.encode()
    return Settle(
        verb,
        proof_of(row["receipt"]),
        checked_bytes("result", result) if verb == "ack" and result is not None else None,
        str(error)[:MAX_ERROR_CHARS] if verb != "ack" and error is not None else None,
        duration_ms("delay", delay) if verb == "nack" and delay is not None else None,
    )
