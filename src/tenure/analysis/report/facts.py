"""What a report shows, as plain values: `gathering` asks for them, `page` draws them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Series:
    """One value a bucket, None where there is none."""

    name: str
    values: list[float | None]
    colour: str


@dataclass
class Step:
    """A piece of a job's timeline: `waiting`, or an attempt and how it ended."""

    kind: str
    begin_ms: int
    end_ms: int
    text: str


@dataclass
class SlowJob:
    tenant: str
    queue: str
    job_id: str
    opened_ms: int
    ended_ms: int
    outcome: str
    attempts: int
    error: str | None = None
    steps: list[Step] = field(default_factory=list)


@dataclass
class Row:
    """A queue, or a tenant, over the whole span."""

    name: str
    enqueued: int
    done: int
    dead: int
    waiting: int
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None
    slo: float | None
    wasted_ms: int
    lease_ms: int
    paused_ms: int


@dataclass
class WorkerRow:
    """A worker by its name ("" of those that gave none), over the whole span."""

    worker: str
    deliveries: int
    queues: int
    done: int
    failed: int
    lost: int
    busy_ms: int | None
    last_ms: int


@dataclass
class Facts:
    title: str
    store: str
    begin_ms: int
    end_ms: int
    step_ms: int
    #: Where the events came from: "in 3 runs", "from its journal".
    source: str
    events: int
    totals: Row
    attempts_per_done: float | None
    life_p50: float | None
    life_p95: float | None
    oldest_ms: int | None
    slo_seconds: float
    times: list[int]
    #: Jobs per second.
    flows: list[Series]
    stocks: list[Series]
    waits: list[Series]
    run_times: list[Series]
    slo: list[Series]
    #: (row label, one value a bucket): p95 of waits.
    heat: list[tuple[str, list[float | None]]]
    causes: list[tuple[str, int, int]]
    tenants: list[Row]
    queues: list[Row]
    workers: list[WorkerRow]
    slowest: list[SlowJob]
    conserved: bool
    #: Whether percentiles are of every value, and not of sketches.
    exact: bool
