"""The outcomes of deliveries, read from the journal, which also has what a killed task settled before it died.

One row for each delivery that a worker claimed whose name begins with a given prefix. (job, token) names a delivery,
and its first event after the claim is its outcome. A few outcomes are put together in the driver, many by Spark from a
snapshot, so that the driver's memory is no limit.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tenure.api.store import Store
from tenure.bulk.journal_reader import At, Journal
from tenure.bulk.query import Query
from tenure.bulk.schemas import TIME
from tenure.errors import InvalidArgument
from tenure.model.durations import as_datetime
from tenure.model.event import Event
from tenure.model.names import QueueName

OUTCOMES = pa.schema(
    [
        ("job_id", pa.string()), ("token", pa.int64()), ("attempt", pa.int64()), ("verdict", pa.string()),
        ("error", pa.string()), ("worker", pa.string()), ("claimed_at", TIME), ("settled_at", TIME),
    ]
)  # fmt: skip
_VERDICTS = {"done": "ok", "retried": "retry", "died": "dead", "expired": "expired", "released": "released"}
_COLUMNS = ("type", "time", "job_id", "token", "attempt", "worker", "error")
#: At most so many events are read in the driver: some 200 MB.
FEW = 1_000_000
#: Seconds that the snapshot of a larger run is kept after its last use.
_KEPT = 3600


class History(Protocol):
    """From the moment it is made."""

    def outcomes(self, spark: SparkSession, queue: QueueName, workers: str) -> DataFrame: ...


def history(store: Store) -> History:
    try:
        return OneJournal(store)
    except InvalidArgument:
        return ManyJournals(store)


class OneJournal:
    """Outcomes from a store with one journal, whose rows are decoded as arrays."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._journal = Journal(store.url, 0, store=store)
        self._start: At = self._journal.ends()[1]

    def outcomes(self, spark: SparkSession, queue: QueueName, workers: str) -> DataFrame:
        if self._journal.ends()[1].number - self._start.number > FEW:
            return self._many(spark, queue, workers)
        return spark.createDataFrame(self._few(queue, workers))

    def _many(self, spark: SparkSession, queue: QueueName, workers: str) -> DataFrame:
        snapshot = self._store.take_snapshot("drain", _KEPT)
        reading = spark.read.format("tenure").option("url", self._store.url).option("table", "events")
        reading = reading.option("tenant", queue.tenant).option("queue", queue.queue)
        events = reading.option("snapshot", snapshot.id).option("columns", ", ".join(_COLUMNS)).load()
        claimed = events.where((F.col("type") == "claimed") & F.col("worker").startswith(workers))
        ended = events.where(F.col("type").isin(*_VERDICTS))
        verdict = F.coalesce(*[F.when(F.col("type") == kind, F.lit(said)) for kind, said in _VERDICTS.items()])
        claimed = claimed.select("job_id", "token", "attempt", "worker", F.col("time").alias("claimed_at"))
        ended = ended.select("job_id", "token", verdict.alias("verdict"), "error", F.col("time").alias("settled_at"))
        return claimed.join(ended, ["job_id", "token"], "left").select(*OUTCOMES.names)

    def _few(self, queue: QueueName, workers: str) -> pa.Table:
        query = Query("events", _COLUMNS, queue.tenant, queue.queue)
        batches = self._journal.fetch(query, self._start, self._journal.ends()[1]) or []
        events = pa.Table.from_batches(batches, query.schema)
        claimed = events.filter(pc.and_(pc.equal(events["type"], "claimed"), pc.starts_with(events["worker"], workers)))
        ended = events.filter(pc.is_in(events["type"], pa.array(list(_VERDICTS))))
        joined = claimed.select(["job_id", "token", "attempt", "worker", "time"]).join(
            ended.select(["job_id", "token", "type", "time", "error"]), ["job_id", "token"], right_suffix="_ended"
        )
        verdicts = joined["type"]
        for kind, verdict in _VERDICTS.items():
            verdicts = pc.if_else(pc.equal(verdicts, kind), verdict, verdicts)
        columns = {
            "job_id": joined["job_id"],
            "token": joined["token"],
            "attempt": joined["attempt"],
            "verdict": verdicts,
            "error": joined["error"],
            "worker": joined["worker"],
            "claimed_at": joined["time"],
            "settled_at": joined["time_ended"],
        }
        return pa.table([columns[field.name] for field in OUTCOMES], names=OUTCOMES.names).cast(OUTCOMES)


class ManyJournals:
    """Outcomes from a store with one journal per queue, read event by event."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cursor = None
        while (page := store.events(after=self._cursor, limit=100_000)).events:
            self._cursor = page.cursor

    def outcomes(self, spark: SparkSession, queue: QueueName, workers: str) -> DataFrame:
        ours: dict[tuple[str, int], dict[str, Any]] = {}
        cursor = self._cursor
        while (page := self._store.events(after=cursor, limit=10_000)).events:
            for event in page.events:
                if event.job_id is not None and (event.tenant, event.queue) == queue:
                    _note(ours, event, workers)
            cursor = page.cursor
        return spark.createDataFrame(pa.Table.from_pylist(list(ours.values()), schema=OUTCOMES))


def _note(ours: dict[tuple[str, int], dict[str, Any]], event: Event, workers: str) -> None:
    assert event.job_id is not None
    key = (event.job_id, event.token)
    if event.type == "claimed":
        if event.text and event.text.startswith(workers):
            ours[key] = {
                "job_id": event.job_id,
                "token": event.token,
                "attempt": event.attempt,
                "worker": event.text,
                "claimed_at": as_datetime(event.time_ms),
            }
        return
    row, verdict = ours.get(key), _VERDICTS.get(event.type)
    if row is not None and verdict is not None and "verdict" not in row:
        row["verdict"] = verdict
        row["error"] = event.text if verdict in ("retry", "dead") else None
        row["settled_at"] = as_datetime(event.time_ms)
