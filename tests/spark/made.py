"""A store with a history in which everything happens, and its events as the table Spark reads."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

import tenure
from tenure import Backoff, Event, ManualClock, NewJob, Policy, Store
from tenure.bulk.schemas import ddl, schema
from tenure.model.lease import Settle

ERRORS = (
    "MailboxFull: ada@example.org", "Timeout: no answer after 31 s", "ValueError: 'x' is not a number", "KeyError: 17",
)  # fmt: skip


def schema_of(source: DataSource) -> StructType:
    """The columns of a source, as Spark works them out. Needs a session."""
    found = source.schema()
    made = found if isinstance(found, StructType) else StructType.fromDDL(found)
    assert isinstance(made, StructType)
    return made


@contextmanager
def small_plans(spark: SparkSession) -> Iterator[None]:
    """Tests have few rows and many plans: what Spark compiles for each costs more than running it as it is."""
    quick = {
        "spark.sql.adaptive.enabled": "false", "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.shuffle.partitions": "1",
    }  # fmt: skip
    before = {name: spark.conf.get(name) for name in quick}
    for name, value in quick.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            spark.conf.set(name, str(was))


def live(
    store: Store,
    clock: ManualClock,
    *,
    rounds: int,
    seed: int = 1,
    jobs: int = 12,
    groups: Sequence[str | None] = (None,),
) -> None:
    """Some hours of work in three queues of two tenants: failures, lost workers, replays, cancelled and purged jobs.

    Jobs are of these groups in turn.
    """
    chance = random.Random(seed)
    queues = [store.queue("emails"), store.queue("reports"), store.queue("emails", tenant="acme")]
    for queue in queues:
        queue.configure(Policy(max_attempts=3, lease=60, backoff=Backoff.fixed(30), retention=chance.choice([0, 7200])))
    for _ in range(rounds):
        queue = chance.choice(queues)
        made = [
            NewJob(b"%d" % n, priority=chance.randrange(3), delay=chance.choice([0, 0, 0, 90, 4000]),
                   ttl=chance.choice([None, None, None, 5000]), group=groups[n % len(groups)])
            for n in range(chance.randrange(jobs))
        ]  # fmt: skip
        if made:
            queue.enqueue_many(made)
        _work(chance, queue, clock)
        if chance.random() < 0.1:
            queue.pause() if chance.random() < 0.5 else queue.resume()
        if chance.random() < 0.15:
            queue.replay(limit=3)
        if chance.random() < 0.1:
            queue.purge(chance.choice(["dead", "done"]))
        for job in list(queue.list("ready", limit=2)) if chance.random() < 0.1 else []:
            queue.cancel(job.id)
        clock.advance(chance.choice([1, 20, 65, 400, 1900]))
        while store.sweep().more:
            pass
    for queue in queues:
        queue.resume()
        queue.enqueue(b"held at the end")
        queue.claim(lease=3600)


def _work(chance: random.Random, queue: Any, clock: ManualClock) -> None:
    claim = queue.claim(limit=chance.randrange(1, 12), worker=chance.choice(["w1", "w2", ""]))
    clock.advance(chance.choice([0, 0.25, 3, 12]))
    verdicts = []
    for delivery in claim:
        verb = chance.choices(["ack", "nack", "fail", "release", "leave"], [12, 4, 1, 1, 2])[0]
        if verb == "leave":
            continue
        error = chance.choice(ERRORS) if verb in ("nack", "fail") else None
        result = b"r" if verb == "ack" and chance.random() < 0.3 else None
        verdicts.append(Settle(verb, delivery.proof, result, error))
    if verdicts:
        queue.settle_many(verdicts)


def all_events(store: Store) -> list[Event]:
    found: list[Event] = []
    page = store.events(limit=100_000)
    while page.events:
        found += page.events
        page = store.events(after=page.cursor, limit=100_000)
    return found


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def event_rows(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """Events as rows of the table `events`, made in Python: what the data source must give too."""
    rows = []
    for e in events:
        leases = e.type in ("claimed", "extended")
        rows.append((
            "0", e.commit, e.index, e.number, _time(e.time_ms), e.type, e.tenant, e.queue, _number(e), e.job_id,
            e.state, e.priority, e.attempt, e.max_attempts, e.token, e.lease_id, None if leases else _time(e.at_ms),
            _time(e.at_ms) if leases else None, e.reason, e.text if e.type == "claimed" else None,
            e.text if e.type in ("retried", "died") else None,
            e.text if e.type.startswith("queue_") else None, *(e.previous or (None, None)), None,
        ))  # fmt: skip
    return rows


def table(spark: SparkSession, events: Sequence[Event]) -> DataFrame:
    return spark.createDataFrame(event_rows(events), ddl("events"))


def event_table(events: Sequence[Event]) -> pa.Table:
    wanted = schema("events")
    rows = [dict(zip(wanted.names, row, strict=True)) for row in event_rows(events)]
    return pa.Table.from_pylist(rows, schema=wanted)


def _number(event: Event) -> int:
    """Any number that stands for the queue."""
    return sum(map(ord, event.tenant + "/" + event.queue))


def a_store(**work: Any) -> tuple[Store, ManualClock]:
    clock = ManualClock()
    store = tenure.open("memory:", clock=clock, sweep=False)
    live(store, clock, **work)
    return store, clock
