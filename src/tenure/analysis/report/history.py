"""A history as the tables that a report asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenure.analysis import attempts, metrics
from tenure.analysis.pauses import CHANGES, paused_hours
from tenure.analysis.sql import Engine

Table = Any  # an engine's own: an Arrow table or a name in DuckDB, a DataFrame on Spark
SLO = 60.0


@dataclass
class History:
    """Tables of one engine, and what is known of the whole."""

    store: str
    #: "in 3 runs", or "from its journal".
    source: str
    slo_seconds: float
    end_ms: int
    events: Table
    #: Deliveries that ended, lives that ended, and the last event of each job that is not gone.
    attempts: Table
    lives: Table
    carry: Table
    #: Hourly numbers, by the names of `metrics.TABLES`.
    partials: Mapping[str, Table]
    #: (tenant, queue) → how long it was paused.
    paused: Mapping[tuple[str, str], int]
    #: Whether percentiles are of every value, and not of sketches.
    exact: bool


def from_events(engine: Engine, events: Table, *, store: str, source: str, slo: float, end_ms: int) -> History:
    """Everything told from the events alone, exactly: for up to about a million of them."""
    chains = engine.keep("chains", attempts.CHAINS, events=events)
    tried = engine.keep("attempts", attempts.ATTEMPTS, chains=chains)
    lives = engine.keep("lives", attempts.LIVES, chains=chains)
    closed = engine.keep("closed", attempts.CLOSED_LIVES, lives=lives)
    tables = {"chains": chains, "attempts": tried, "lives": lives, "closed": closed}
    texts = metrics.partials(slo, metrics.Span(None, end_ms))
    hours, _ = paused_hours(engine.rows(CHANGES, events=events), {}, None, end_ms)
    paused: dict[tuple[str, str], int] = {}
    for _, tenant, queue, ms in hours:
        paused[tenant, queue] = paused.get((tenant, queue), 0) + ms
    return History(
        store=store,
        source=source,
        slo_seconds=slo,
        end_ms=end_ms,
        events=events,
        attempts=engine.keep("ended", "SELECT * FROM {attempts} WHERE ended_at IS NOT NULL", attempts=tried),
        lives=closed,
        carry=engine.keep("carry", attempts.CARRY, lives=lives),
        partials={name: engine.keep(f"hourly_{name}", text, **_named(text, tables)) for name, text in texts.items()},
        paused=paused,
        exact=True,
    )


def _named(text: str, tables: Mapping[str, Table]) -> dict[str, Table]:
    return {name: table for name, table in tables.items() if f"{{{name}}}" in text}
