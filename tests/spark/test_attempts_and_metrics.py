"""Attempts, lives and hourly numbers, on both engines: against the same told in plain Python, and however cut into runs."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tenure import Event
from tenure.analysis import attempts, causes, metrics
from tenure.analysis.sql import Engine, local_sql
from tenure.spark.statements import SparkEngine
from tests.spark.made import a_store, all_events, event_table, small_plans, table

pytestmark = pytest.mark.timeout(400)  # a busy machine: the shared JVM may have to compile all of it first
SLO = 60.0
HOUR = 3_600_000
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def events() -> Iterator[list[Event]]:
    store, _ = a_store(rounds=150)
    with store:
        yield all_events(store)


@pytest.fixture(scope="module", params=["duckdb", "spark"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "duckdb":
        with local_sql() as sql:
            yield sql
    else:
        spark = request.getfixturevalue("spark")
        made = SparkEngine(spark)
        with small_plans(spark):
            yield made
        made.close()


def given(engine: Engine, rows: Rows | list[tuple[Any, ...]], schema: str) -> Any:
    """Rows as a table of the engine."""
    if isinstance(engine, SparkEngine):
        return engine._spark.createDataFrame(rows, schema)
    names = [column.split()[0] for column in schema.split(", ")]
    return pa.Table.from_pylist([row if isinstance(row, dict) else dict(zip(names, row, strict=True)) for row in rows])


class Told:
    """The history of these events, run by run."""

    def __init__(self, engine: Engine, events: list[Event], cuts: list[int], name: str) -> None:
        self._engine = engine
        self.attempts: Rows = []
        self.lives: Rows = []
        self.gold: dict[str, Any] = {}
        carried: Any = None
        tried: Any = None
        lives: Any = None
        start: int | None = None
        for first, last in zip([0, *cuts], [*cuts, len(events)], strict=True):
            part, run = events[first:last], f"{name}_{first}"
            span = metrics.Span(start, part[-1].time_ms)
            rows = table(engine._spark, part) if isinstance(engine, SparkEngine) else event_table(part)
            if carried is None:
                chains = engine.keep(f"chains_{run}", attempts.CHAINS, events=rows)
            else:
                chains = engine.keep(f"chains_{run}", attempts.CHAINS_CARRIED, events=rows, carried=carried)
            tried = engine.keep(f"attempts_{run}", attempts.ATTEMPTS, chains=chains)
            lives = engine.keep(f"lives_{run}", attempts.LIVES, chains=chains)
            closed = engine.keep(f"closed_{run}", attempts.CLOSED_LIVES, lives=lives)
            self.attempts += engine.rows("SELECT * FROM {t} WHERE ended_at IS NOT NULL", t=tried)
            self.lives += engine.rows("SELECT * FROM {t}", t=closed)
            tables = {"chains": chains, "attempts": tried, "lives": lives, "closed": closed}
            for kind, text in metrics.partials(SLO, span).items():
                named = {key: value for key, value in tables.items() if f"{{{key}}}" in text}
                partial = engine.keep(f"{kind}_{run}", text, **named)
                before = self.gold.get(kind)
                both = "SELECT * FROM {a} UNION ALL SELECT * FROM {b}"
                self.gold[kind] = (
                    partial if before is None else engine.keep(f"{kind}_{run}_all", both, a=before, b=partial)
                )
            carried = engine.keep(f"carry_{run}", attempts.CARRY, lives=lives)
            start = span.end
        self.attempts += engine.rows("SELECT * FROM {t} WHERE ended_at IS NULL", t=tried)
        self.lives += engine.rows(attempts.OPEN_LIVES, lives=lives)

    def merged(self, kind: str, by: tuple[str, ...] | None = None, columns: str = "*") -> Rows:
        return self._engine.rows(f"SELECT {columns} FROM ({metrics.merged(kind, by)}) AS m", partials=self.gold[kind])

    def facts(self) -> dict[str, list[tuple[Any, ...]]]:
        found = {"attempts": _plain(self.attempts), "lives": _plain(self.lives)}
        return found | {kind: _plain(self.merged(kind)) for kind in self.gold}


def _plain(rows: Rows) -> list[tuple[Any, ...]]:
    left_out = ("carried", "queue_number")
    names = sorted(name for name in rows[0] if "sketch" not in name and name not in left_out)
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


@pytest.fixture(scope="module")
def undisturbed(engine: Engine, events: list[Event]) -> Told:
    return Told(engine, events, [], "whole")


@pytest.mark.crash
def test_cut_anywhere_it_is_the_same_history(engine: Engine, events: list[Event], undisturbed: Told) -> None:
    if isinstance(engine, SparkEngine) and "CRASH_ROUNDS" not in os.environ:
        pytest.skip("takes two minutes, and test_history.py cuts a history on Spark: in make test-crash")
    whole = undisturbed.facts()
    n = len(events)
    cut = Told(engine, events, [2 * n // 5], "cut")
    for name, rows in cut.facts().items():
        assert rows == whole[name], name
        assert rows, name


def test_attempts_are_what_happened(events: list[Event], undisturbed: Told) -> None:
    told: dict[tuple[str, str, int], tuple[Any, ...]] = {}
    visible: dict[tuple[str, str], int | None] = {}
    held: dict[tuple[str, str], Event] = {}
    for e in events:
        if e.job_id is None:
            continue
        job = (e.tenant + "/" + e.queue, e.job_id)
        if job in held:
            claim = held.pop(job)
            told[*job, claim.token] = (
                claim.time_ms - (visible[job] or 0),
                e.type,
                e.time_ms - claim.time_ms,
                e.text if e.type in ("retried", "died") else None,
            )
        if e.type == "claimed":
            held[job] = e
            told[*job, e.token] = (e.time_ms - (visible[job] or 0), None, None, None)
        elif e.state == "waiting":
            visible[job] = e.at_ms
    rows = undisturbed.attempts
    found = {
        (r["tenant"] + "/" + r["queue"], r["job_id"], r["token"]): (r["wait_ms"], r["outcome"], r["run_ms"], r["error"])
        for r in rows
    }
    assert found == told
    assert len(rows) == len(found)
    assert {row[1] for row in told.values()} >= {"done", "retried", "died", "released", "expired", None}


def test_lives_are_what_happened(events: list[Event], undisturbed: Told) -> None:
    lives: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    was: dict[tuple[str, str], str] = {}
    for e in events:
        if e.job_id is None:
            continue
        job = (e.tenant + "/" + e.queue, e.job_id)
        if e.type in ("enqueued", "replayed"):
            lives[job].append({"opened": e.time_ms, "claims": 0, "first": None, "end": None})
        life = lives[job][-1]
        if e.type == "claimed":
            life["claims"] += 1
            life["first"] = life["first"] or e.time_ms
        if e.state in ("done", "dead", "gone") and was.get(job) in ("waiting", "leased"):
            life["end"] = (e.time_ms, "dead" if e.type == "died" else e.type)
        was[job] = e.state or ""
    told = {
        (*job, number): (life["opened"], life["claims"], life["first"], life["end"])
        for job, all_of_it in lives.items()
        for number, life in enumerate(all_of_it)
    }
    found = {
        (r["tenant"] + "/" + r["queue"], r["job_id"], r["life"]): (
            _ms(r["opened_at"]), r["attempts"], _ms(r["first_claimed_at"]),
            None if r["outcome"] is None else (_ms(r["ended_at"]), r["outcome"]),
        )
        for r in undisturbed.lives
    }  # fmt: skip
    assert found == told
    assert any(number > 0 for _, _, number in told), "some job was replayed"


def test_gold_is_silver_counted(events: list[Event], undisturbed: Told) -> None:
    flows = undisturbed.merged("flows")
    counted = Counter((e.type, e.tenant, e.queue, e.time_ms // HOUR) for e in events if e.job_id is not None)
    for row in flows:
        for name in metrics.TYPES:
            assert row[name] == counted[name, row["tenant"], row["queue"], _ms(row["hour"]) // HOUR]
        moved = sum(row[f"d_{state}"] for state in metrics.STATES)
        assert row["entered"] - row["left"] == moved, "what entered and did not leave is there"
    assert sum(row["enqueued"] for row in flows) == sum(e.type == "enqueued" for e in events)
    (total,) = undisturbed.merged("waits", (), f"count, sum_ms, max_ms, {metrics.percentiles()}")
    exact = sorted(row["wait_ms"] for row in undisturbed.attempts)
    assert (total["count"], total["sum_ms"], total["max_ms"]) == (len(exact), sum(exact), exact[-1])
    for p in metrics.PERCENTILES:
        rank = sum(value <= total[f"p{round(p * 100)}_ms"] for value in exact) / len(exact)
        assert p - 0.02 <= rank, (p, rank)


def test_stocks_at_the_hours_end(events: list[Event], undisturbed: Told) -> None:
    end = events[-1].time_ms
    waits: list[tuple[tuple[str, str], tuple[int, int], int]] = []
    since: dict[tuple[str, str, str], tuple[int, int]] = {}
    for e in events:
        if e.job_id is None:
            continue
        job = (e.tenant, e.queue, e.job_id)
        if job in since:
            waits.append(((e.tenant, e.queue), since.pop(job), e.time_ms))
        if e.state == "waiting" and e.at_ms is not None:
            since[job] = (e.at_ms, max(e.at_ms, e.time_ms))
    waits += [((job[0], job[1]), visible, end) for job, visible in since.items()]
    told: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for name, (visible, start), until in waits:
        for hour in range(-(-start // HOUR), -(-until // HOUR)):
            told[*name, hour - 1].append(visible)
    rows = undisturbed.merged("ready")
    found = {(r["tenant"], r["queue"], _ms(r["hour"]) // HOUR): (r["ready"], _ms(r["oldest"])) for r in rows}
    assert found == {key: (len(all_of_them), min(all_of_them)) for key, all_of_them in told.items()}


def test_the_slo_counts_every_life_once(events: list[Event], undisturbed: Told) -> None:
    end = events[-1].time_ms
    met: Counter[int] = Counter()
    missed: Counter[int] = Counter()
    for row in undisturbed.lives:
        visible, claimed, ended = (_ms(row[name]) for name in ("first_visible_at", "first_claimed_at", "ended_at"))
        due = visible + SLO * 1000
        if claimed is not None and claimed <= due:
            met[visible // HOUR] += 1
        elif (claimed or ended or end + 1) > due and due < end:
            missed[visible // HOUR] += 1
    rows = undisturbed.merged("slo", ("hour",))
    found = {_ms(row["hour"]) // HOUR: (row["met"], row["missed"]) for row in rows}
    assert found == {hour: (met[hour], missed[hour]) for hour in {*met, *missed}}
    assert sum(met.values()) > 10
    assert sum(missed.values()) > 10


ERRORS = {
    "MailboxFull: ada@example.org": "MailboxFull",
    "Timeout: no answer after 31 s": "Timeout",
    "lease 01a3185c500078ca984bc1a3fa2380c4 lost after 31.5 s": "lease # lost after # s",
    "could not open '/tmp/x'": "could not open …",
    "no route to https://example.org/x?y=1 today": "no route to … today",
    "Traceback (most recent call last):\n  File x, line 3\nValueError: bad": "ValueError",
    "psycopg.errors.UniqueViolation\nDETAIL: Key 17": "psycopg.errors.UniqueViolation",
    "the lease expired (worker w1 (eu))": "the lease expired",
    "": "(no error given)",
    None: "(no error given)",
    ": odd": ": odd",
}


def test_causes_are_classes_of_errors(engine: Engine) -> None:
    rows = given(engine, [{"e": error} for error in ERRORS], "e STRING")
    found = engine.rows(f"SELECT e, {causes.cause('e')} AS cause FROM {{rows}}", rows=rows)
    assert {row["e"]: row["cause"] for row in found} == ERRORS


def test_the_top_causes_and_all_others(engine: Engine) -> None:
    rows = [(f"cause {n:03d}", n, 0) for n in range(1, 61)]
    counted = given(engine, rows, "cause STRING, died INT, retried INT")
    by_cause = {row["cause"]: row["died"] for row in engine.rows(causes.top("{rows}", "died"), rows=counted)}
    assert len(by_cause) == 51
    assert by_cause["(other)"] == sum(range(1, 11))
    assert by_cause["cause 060"] == 60


def _ms(moment: datetime | None) -> Any:
    return None if moment is None else round(moment.replace(tzinfo=UTC).timestamp() * 1000)
