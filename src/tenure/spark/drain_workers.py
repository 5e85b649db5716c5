"""`drain`: Spark's executors as workers, until the queue is empty.

Every task claims, runs the handler, keeps its lease alive and settles, over and over. What a task that was killed had
in hand comes back when its lease runs out, and goes to another. The outcomes are read from the journal, which has also
what such a task had settled before.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tenure.api.claim import Claim
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.errors import InvalidArgument
from tenure.model.job import MAX_ERROR_CHARS
from tenure.model.lease import MAX_CLAIM, Delivery, Settle
from tenure.model.names import DEFAULT_TENANT, QueueName, queue_name
from tenure.model.retry import whole_number
from tenure.spark.connections import opened
from tenure.spark.heartbeat import Heartbeat
from tenure.spark.outcomes import history
from tenure.spark.verdict_writer import VERBS, Tally, take

Handler = Callable[[Delivery], object]
"""Takes a delivery; gives back nothing or bytes (done, with that result), `ok`, `retry` or `dead`, or one of these and a
text. What it raises is a retry."""

#: Verdicts wait for others for at most this many jobs and seconds.
_TOGETHER, _PATIENCE = 100, 1.0
#: Payloads that one claim brings, in bytes: a task holds one claim in memory.
_CLAIM_BYTES = 32 * 1024 * 1024
_TALLY = pa.schema([(name, pa.int64()) for name in ("claimed", "settled", "repeated", "lost", "damaged")])


@dataclass(frozen=True)
class Plan:
    url: str
    queue: QueueName
    run: str
    lease: float
    batch: int
    limit: int | None
    until: str
    max_seconds: float | None


def drain(
    spark: SparkSession,
    url: str,
    queue: str,
    handler: Handler,
    *,
    tenant: str = DEFAULT_TENANT,
    tasks: int | None = None,
    lease: float = 60.0,
    batch: int = 100,
    limit: int | None = None,
    until: str = "empty",
    max_seconds: float | None = None,
) -> DataFrame:
    """Run `handler` on the queue's jobs now, in `tasks` tasks side by side (as many as there are cores), and wait for the end.

    It ends when the queue is `empty` (nothing ready, leased or scheduled), or `idle` (what is scheduled is left alone), or
    after about `limit` jobs, or after `max_seconds`. Returns a row a delivery: job_id, token, attempt, verdict (`ok`, `retry`,
    `dead`, `expired`), error, worker, claimed_at, settled_at. The handler goes to the executors, so it must not hold on to
    what lives in this process only.
    """
    if until not in ("empty", "idle"):
        raise InvalidArgument(f"until={until!r}: empty or idle")
    count = whole_number("tasks", _cores(spark) if tasks is None else tasks, 1, 100_000)
    run = f"drain-{uuid.uuid4().hex[:12]}"
    plan = Plan(
        url,
        queue_name(queue, tenant),
        run,
        float(lease),
        whole_number("batch", batch, 1, MAX_CLAIM),
        None if limit is None else -(-whole_number("limit", limit, 1, 2**40) // count),
        until,
        max_seconds,
    )
    # Keeps the store open: this process then owns an embedded store, and the tasks connect to it.
    with opened(url) as store:
        journal = history(store)
        spark.range(0, count, 1, count).mapInArrow(_task(plan, handler), _ddl(_TALLY)).collect()
        return journal.outcomes(spark, plan.queue, plan.run)


def _cores(spark: SparkSession) -> int:
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and says so in several ways
        return max(1, int(spark.conf.get("spark.sql.leafNodeDefaultParallelism", "2") or 2))


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} BIGINT" for field in schema)


# ── in an executor ───────────────────────────────────────────────────────────────────────────────────────────────────


def _task(plan: Plan, handler: Handler) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                claimed, tally = work(plan, handler, f"{plan.run}-{number}")
                values = [claimed, tally.settled, tally.repeated, tally.lost, tally.damaged]
                yield pa.RecordBatch.from_arrays([pa.array([value], pa.int64()) for value in values], schema=_TALLY)

    return run


def work(plan: Plan, handler: Handler, worker: str) -> tuple[int, Tally]:
    """What one task does: claim, run and settle jobs until the queue has no more."""
    claimed, tally = 0, Tally()
    deadline = None if plan.max_seconds is None else time.monotonic() + plan.max_seconds
    with opened(plan.url) as store:
        queue = store.queue(plan.queue.queue, tenant=plan.queue.tenant)
        heartbeat = Heartbeat(queue, plan.lease)
        try:
            while (plan.limit is None or claimed < plan.limit) and (deadline is None or time.monotonic() < deadline):
                room = plan.batch if plan.limit is None else min(plan.batch, plan.limit - claimed)
                # A waiting claim also takes over expired leases, and with them the jobs of a task that died.
                claim = queue.claim(limit=room, lease=plan.lease, wait=0.5, worker=worker, max_bytes=_CLAIM_BYTES)
                if not claim:
                    if _over(queue, plan.until):
                        break
                    continue
                claimed += len(claim)
                with heartbeat.holding(claim):
                    _run(store, plan, handler, claim, heartbeat, tally)
        finally:
            heartbeat.stop()
    return claimed, tally


def _run(store: Store, plan: Plan, handler: Handler, claim: Claim, heartbeat: Heartbeat, tally: Tally) -> None:
    verdicts: list[Settle] = []
    told = time.monotonic()
    for delivery in claim:
        if heartbeat.lost(claim):
            break  # the rest is another's by now
        verdicts.append(judge(handler, delivery))
        if len(verdicts) >= _TOGETHER or time.monotonic() - told > _PATIENCE:
            tally.add(take(store, plan.queue, verdicts))
            verdicts, told = [], time.monotonic()
    if verdicts:
        tally.add(take(store, plan.queue, verdicts))


def judge(handler: Handler, delivery: Delivery) -> Settle:
    """Run the handler on one job, and turn what it says into a verdict."""
    try:
        said = handler(delivery)
    except Exception as exc:  # noqa: BLE001 - an exception of the handler fails its job, not the task
        return Settle("nack", delivery.proof, None, f"{type(exc).__name__}: {exc}"[:MAX_ERROR_CHARS])
    verdict, text = said if isinstance(said, tuple) and len(said) == 2 else (said, None)
    if verdict is None:
        return Settle("ack", delivery.proof)
    if isinstance(verdict, bytes):
        return Settle("ack", delivery.proof, verdict)
    verb = VERBS.get(verdict) if isinstance(verdict, str) else None
    if verb is None:
        error = f"the handler gave back {said!r}: nothing, bytes, or one of {', '.join(VERBS)}"
        return Settle("nack", delivery.proof, None, error[:MAX_ERROR_CHARS])
    if verb == "ack":
        return Settle("ack", delivery.proof, text.encode() if isinstance(text, str) else text)
    return Settle(verb, delivery.proof, None, None if text is None else str(text)[:MAX_ERROR_CHARS])


def _over(queue: Queue, until: str) -> bool:
    counts = queue.counts()
    return not counts.ready and not counts.leased and (until == "idle" or not counts.scheduled)
