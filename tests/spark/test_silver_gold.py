"""Silver and gold against the same told in plain Python, and however a history is cut into runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tenure import Event
from tenure.spark.pipelines import gold, silver
from tenure.spark.pipelines.causes import cause, top_causes
from tenure.spark.pipelines.chains import chains
from tests.spark.made import a_store, all_events, small_plans, table

pytestmark = pytest.mark.timeout(400)  # a busy machine: the shared JVM may have to compile all of it first
SLO = 60.0
HOUR = 3_600_000


@pytest.fixture(scope="module")
def events() -> Iterator[list[Event]]:
    store, _ = a_store(rounds=150)
    with store:
        yield all_events(store)


@pytest.fixture(scope="module", autouse=True)
def _quick(spark: SparkSession) -> Iterator[None]:
    with small_plans(spark):
        yield


class Told:
    """The history of these events, run by run."""

    def __init__(self, spark: SparkSession, events: list[Event], cuts: list[int]) -> None:
        self.attempts: list[DataFrame] = []
        self.lives: list[DataFrame] = []
        self.gold: dict[str, list[DataFrame]] = defaultdict(list)
        carried: DataFrame | None = None
        start: datetime | None = None
        for first, last in zip([0, *cuts], [*cuts, len(events)], strict=True):
            part = events[first:last]
            span = gold.Span(start, datetime.fromtimestamp(part[-1].time_ms / 1000, UTC))
            chained = chains(table(spark, part), carried).cache()
            lived = silver.lives(chained).cache()
            tried = silver.attempts(chained).cache()
            self.attempts.append(tried.where("ended_at IS NOT NULL"))
            self.lives.append(silver.closed_lives(lived))
            for name, partial in {
                "flows": gold.flows(chained), "waits": gold.waits(tried), "runs": gold.runs(tried),
                "ends": gold.ends(silver.closed_lives(lived)), "ready": gold.ready(chained, span),
                "slo": gold.slo(lived, SLO, span), "causes": gold.causes(chained),
            }.items():  # fmt: skip
                self.gold[name].append(partial)
            self.open_attempts = tried.where("ended_at IS NULL")
            self.open_lives = silver.open_lives(lived)
            # Written and read back between runs: no plan grows with their number.
            carried = spark.createDataFrame(silver.carry(lived).collect(), silver.carry(lived).schema)
            start = span.end

    def whole(self, parts: list[DataFrame]) -> DataFrame:
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.unionByName(part)
        return whole

    def rows(self, frame: DataFrame) -> list[tuple[Any, ...]]:
        names = sorted(n for n in frame.columns if "sketch" not in n and n not in ("carried", "queue_number"))
        return sorted((tuple(row) for row in frame.select(*names).collect()), key=repr)

    def facts(self) -> dict[str, list[tuple[Any, ...]]]:
        found = {
            "attempts": self.rows(self.whole([*self.attempts, self.open_attempts])),
            "lives": self.rows(self.whole([*self.lives, self.open_lives])),
        }
        for name, parts in self.gold.items():
            found[name] = self.rows(gold.merged(name, self.whole(parts)))
        return found


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, events: list[Event]) -> Told:
    return Told(spark, events, [])


def test_cut_anywhere_it_is_the_same_history(spark: SparkSession, events: list[Event], undisturbed: Told) -> None:
    whole = undisturbed.facts()
    n = len(events)
    cut = Told(spark, events, [2 * n // 5])
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
    rows = undisturbed.whole([*undisturbed.attempts, undisturbed.open_attempts]).collect()
    found = {(r.tenant + "/" + r.queue, r.job_id, r.token): (r.wait_ms, r.outcome, r.run_ms, r.error) for r in rows}
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
    rows = undisturbed.whole([*undisturbed.lives, undisturbed.open_lives]).collect()
    found = {
        (r.tenant + "/" + r.queue, r.job_id, r.life): (
            _ms(r.opened_at), r.attempts, _ms(r.first_claimed_at), None if r.outcome is None else (_ms(r.ended_at), r.outcome),
        )
        for r in rows
    }  # fmt: skip
    assert found == told
    assert any(number > 0 for _, _, number in told), "some job was replayed"


def test_gold_is_silver_counted(events: list[Event], undisturbed: Told) -> None:
    flows = gold.merged("flows", undisturbed.whole(undisturbed.gold["flows"])).collect()
    counted = Counter((e.type, e.tenant, e.queue, e.time_ms // HOUR) for e in events if e.job_id is not None)
    for row in flows:
        for name in gold.TYPES:
            assert row[name] == counted[name, row.tenant, row.queue, _ms(row.hour) // HOUR]
        moved = sum(row[f"d_{state}"] for state in gold.STATES)
        assert row.entered - row.left == moved, "what entered and did not leave is there"
    assert sum(row.enqueued for row in flows) == sum(e.type == "enqueued" for e in events)
    waits = gold.merged("waits", undisturbed.whole(undisturbed.gold["waits"]), ())
    (total,) = waits.select("count", "sum_ms", "max_ms", *gold.percentiles()).collect()
    tried = undisturbed.whole([*undisturbed.attempts, undisturbed.open_attempts])
    exact = sorted(row.wait_ms for row in tried.select("wait_ms").collect())
    assert (total["count"], total.sum_ms, total.max_ms) == (len(exact), sum(exact), exact[-1])
    for p in gold.PERCENTILES:
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
    rows = gold.merged("ready", undisturbed.whole(undisturbed.gold["ready"])).collect()
    found = {(r.tenant, r.queue, _ms(r.hour) // HOUR): (r.ready, _ms(r.oldest)) for r in rows}
    assert found == {key: (len(all_of_them), min(all_of_them)) for key, all_of_them in told.items()}


def test_the_slo_counts_every_life_once(events: list[Event], undisturbed: Told) -> None:
    end = events[-1].time_ms
    met: Counter[int] = Counter()
    missed: Counter[int] = Counter()
    for row in undisturbed.whole([*undisturbed.lives, undisturbed.open_lives]).collect():
        visible, claimed, ended = _ms(row.first_visible_at), _ms(row.first_claimed_at), _ms(row.ended_at)
        due = visible + SLO * 1000
        if claimed is not None and claimed <= due:
            met[visible // HOUR] += 1
        elif (claimed or ended or end + 1) > due and due < end:
            missed[visible // HOUR] += 1
    rows = gold.merged("slo", undisturbed.whole(undisturbed.gold["slo"]), ("hour",)).collect()
    found = {_ms(row.hour) // HOUR: (row.met, row.missed) for row in rows}
    assert found == {hour: (met[hour], missed[hour]) for hour in {*met, *missed}}
    assert sum(met.values()) > 10
    assert sum(missed.values()) > 10


ERRORS = {
    "MailboxFull: ada@example.org": "MailboxFull",
    "Timeout: no answer after 31 s": "Timeout",
    "lease 01a3185c500078ca984bc1a3fa2380c4 lost after 31.5 s": "lease # lost after # s",
    "could not open '/tmp/x'": "could not open …",
    "could not open '/tmp/x'/y/z": "could not open …",
    "no route to https://example.org/x?y=1 today": "no route to … today",
    "Traceback (most recent call last):\n  File x, line 3\nValueError: bad": "ValueError",
    "psycopg.errors.UniqueViolation\nDETAIL: Key 17": "psycopg.errors.UniqueViolation",
    "the lease expired (worker w1 (eu))": "the lease expired",
    "": "(no error given)",
    None: "(no error given)",
    ": odd": ": odd",
}


def test_causes_are_classes_of_errors(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(error,) for error in ERRORS], "e STRING").select(
        "e", cause(F.col("e")).alias("cause")
    )
    assert {row.e: row.cause for row in rows.collect()} == ERRORS


def test_the_top_causes_and_all_others(spark: SparkSession) -> None:
    rows = [("q", f"cause {n:03d}", n) for n in range(1, 61)]
    found = top_causes(spark.createDataFrame(rows, "queue STRING, cause STRING, died INT"), ["queue"], "died").collect()
    by_cause = {row.cause: row.died for row in found}
    assert len(by_cause) == 51
    assert by_cause["(other)"] == sum(range(1, 11))
    assert by_cause["cause 060"] == 60


def _ms(moment: datetime | None) -> Any:
    return None if moment is None else round(moment.replace(tzinfo=UTC).timestamp() * 1000)
