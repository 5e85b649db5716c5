"""`report`: a history as one HTML file. Gathers the facts; `tenure.spark.report` draws them."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as F

from tenure.errors import InvalidArgument
from tenure.spark.jobs.lake import Entry, Lake
from tenure.spark.jobs.sizing import sized
from tenure.spark.jobs.summary import Summary, Told, quietly
from tenure.spark.pipelines import gold, silver
from tenure.spark.pipelines.causes import top_causes
from tenure.spark.pipelines.chains import chains
from tenure.spark.report.facts import Facts, Row, Series, SlowJob, Step
from tenure.spark.report.formatting import DAY, HOUR, MINUTE, SECOND
from tenure.spark.report.page import page

#: Charts have at most about this many steps.
_STEPS = 96
_SIZES = (
    SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND, MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR,
    6 * HOUR, 12 * HOUR, DAY, 7 * DAY,
)  # fmt: skip
SLOWEST = 15
CAUSES = 12
Gold = Mapping[str, DataFrame]


def report(spark: SparkSession, root: str, path: str, *, title: str = "Tenure report", told: Told = quietly) -> Summary:
    """Write the report of the history at `root` to the file `path`."""
    began = time.monotonic()
    lake = Lake(root)
    entries = lake.entries()
    if not entries:
        raise InvalidArgument(f"there is no history at {lake.root}: run tenure spark history first")
    with sized(spark, sum(entry.rows["bronze"] for entry in entries)):
        facts = _Gathering(spark, lake, entries, told).facts(title)
    told("drawing")
    text = page(facts)
    target = Path(path).expanduser()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(target)  # a report that is being looked at is never half a page
    return Summary(
        job="report",
        read=facts.events,
        written=1,
        seconds=time.monotonic() - began,
        facts={"path": str(target.absolute()), "bytes": len(text.encode()), "runs": len(entries)},
    )


class _Gathering:
    def __init__(self, spark: SparkSession, lake: Lake, entries: Sequence[Entry], told: Told) -> None:
        self._spark, self._lake, self._entries, self._told = spark, lake, entries, told
        self._slo = entries[-1].slo
        self._end = entries[-1].end_ms
        bronze = self._read("bronze")
        (found,) = bronze.agg(F.min(F.unix_millis("time")).alias("begin"), F.count("*").alias("count")).collect()
        self._begin, self._events = found.begin, found["count"]
        self._step = next((size for size in _SIZES if (self._end - self._begin) / size <= _STEPS), _SIZES[-1])
        first, last = self._begin // self._step, self._end // self._step
        self._times = [number * self._step for number in range(first, last + 1)]
        self._at = {at: index for index, at in enumerate(self._times)}
        self._bronze = bronze

    def _read(self, table: str) -> DataFrame:
        found = self._lake.read(self._spark, table)
        assert found is not None, "there is at least one run"
        return found

    def facts(self, title: str) -> Facts:
        self._told("reading the numbers")
        steps = self._by_step()
        hours = {name: gold.merged(name, self._read(f"gold/{name}")).cache() for name in gold.TABLES}
        flows = self._collected(gold.merged("flows", steps["flows"], ("hour",)))
        tenants, queues = self._rows(hours, ("tenant",)), self._rows(hours, ("tenant", "queue"))
        (totals,) = self._rows(hours, ())
        lives = gold.merged("ends", hours["ends"].where("outcome = 'done'"), ()).select(
            "count", "attempts", *gold.percentiles()
        )
        (life,) = lives.collect()
        kept = hours["flows"].where(F.expr("entered - `left` <> d_waiting + d_leased + d_done + d_dead")).count()
        self._told("looking for the slowest jobs")
        return Facts(
            title=title,
            store=self._entries[-1].store,
            begin_ms=self._begin,
            end_ms=self._end,
            step_ms=self._step,
            runs=len(self._entries),
            events=self._events,
            totals=totals,
            attempts_per_done=life.attempts / life["count"] if life["count"] else None,
            life_p50=life.p50_ms,
            life_p95=life.p95_ms,
            oldest_ms=self._oldest(),
            slo_seconds=self._slo,
            times=self._times,
            flows=[
                self._series("enqueued", "blue", flows, lambda r: r.enqueued),
                self._series("done", "green", flows, lambda r: r.done),
                self._series("retried or lost", "amber", flows, lambda r: r.retried + r.expired),
                self._series("died", "red", flows, lambda r: r.died),
            ],
            stocks=self._stocks(flows),
            waits=self._percentiles(gold.merged("waits", steps["waits"], ("hour",))),
            run_times=self._percentiles(gold.merged("runs", steps["runs"].where("NOT expired"), ("hour",))),
            slo=self._in_time(steps["slo"]),
            heat=self._heat(steps["waits"], queues),
            causes=self._causes(hours["causes"]),
            tenants=tenants,
            queues=queues,
            slowest=self._slowest(),
            conserved=kept == 0,
        )

    def _by_step(self) -> Gold:
        """Gold by the report's own step: from the partials, unless it is shorter than an hour; then there is little to read."""
        if self._step >= HOUR:
            return {name: self._widened(name) for name in ("flows", "waits", "runs", "slo")}
        chained = chains(self._bronze).cache()
        attempts = silver.attempts(chained)
        span = gold.Span(None, _moment(self._end))
        return {
            "flows": gold.flows(chained, self._step),
            "waits": gold.waits(attempts, self._step),
            "runs": gold.runs(attempts, self._step),
            "slo": gold.slo(silver.lives(chained), self._slo, span, self._step),
        }

    def _widened(self, name: str) -> DataFrame:
        step = self._step
        hour = F.timestamp_millis(F.floor(F.unix_millis("hour") / step).cast("bigint") * step)
        return self._read(f"gold/{name}").withColumn("hour", hour)

    # ── over time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _collected(self, rows: DataFrame) -> dict[int, SparkRow]:
        """By the index of their step."""
        found = rows.withColumn("at", F.unix_millis("hour")).collect()
        return {self._at[row["at"]]: row for row in found if row["at"] in self._at}

    def _series(
        self, name: str, colour: str, rows: Mapping[int, SparkRow], value: Any, empty: float | None = 0
    ) -> Series:
        return Series(name, [value(rows[i]) if i in rows else empty for i in range(len(self._times))], colour)

    def _stocks(self, flows: Mapping[int, SparkRow]) -> list[Series]:
        found = []
        for name, colour in (("waiting", "blue"), ("leased", "teal"), ("dead", "red")):
            moved = [flows[i][f"d_{name}"] if i in flows else 0 for i in range(len(self._times))]
            stock, values = 0, []
            for change in moved:
                stock += change
                values.append(float(stock))
            # A history that begins in the middle of things sees jobs leave that it never saw come.
            below = min(0.0, *values)
            found.append(Series(name, [value - below for value in values], colour))
        return found

    def _percentiles(self, merged: DataFrame) -> list[Series]:
        rows = self._collected(merged.select("hour", *gold.percentiles()))
        return [
            self._series(f"p{p}", colour, rows, lambda r, p=p: r[f"p{p}_ms"], None)
            for p, colour in ((50, "green"), (95, "amber"), (99, "red"))
        ]

    def _in_time(self, partials: DataFrame) -> list[Series]:
        rows = self._collected(gold.merged("slo", partials, ("hour",)))
        return [
            self._series("in time", "green", rows, lambda r: r.met),
            self._series("too late", "red", rows, lambda r: r.missed),
        ]

    def _heat(self, waits: DataFrame, queues: Sequence[Row]) -> list[tuple[str, list[float | None]]]:
        merged = gold.merged("waits", waits).select("hour", "tenant", "queue", *gold.percentiles())
        cells: dict[str, list[float | None]] = defaultdict(lambda: [None] * len(self._times))
        for row in merged.withColumn("at", F.unix_millis("hour")).collect():
            if row["at"] in self._at:
                cells[f"{row.tenant}/{row.queue}"][self._at[row["at"]]] = row.p95_ms
        busiest = [row.name for row in sorted(queues, key=lambda row: -row.enqueued)][:16]
        return [(name, cells[name]) for name in busiest if name in cells]

    # ── over all ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rows(self, hours: Gold, by: tuple[str, ...]) -> list[Row]:
        """One row a group, the busiest first."""

        def grouped(rows: DataFrame, *columns: Any) -> dict[tuple[str, ...], SparkRow]:
            return {tuple(row[name] for name in by): row for row in rows.select(*by, *columns).collect()}

        flows = grouped(gold.merged("flows", hours["flows"], by), "enqueued", "restored", "done", "died", "d_waiting")
        waits = grouped(gold.merged("waits", hours["waits"], by), *gold.percentiles())
        settled = grouped(gold.merged("runs", hours["runs"].where("NOT expired"), by), *gold.percentiles())
        spent = grouped(
            hours["runs"].groupBy(*by).agg(
                F.sum("sum_ms").alias("lease_ms"), F.sum(F.when(F.col("outcome") != "done", F.col("sum_ms"))).alias("wasted_ms")
            ), "lease_ms", "wasted_ms",
        )  # fmt: skip
        slo = grouped(gold.merged("slo", hours["slo"], by), "met", "missed")
        paused = grouped(self._read("gold/paused").groupBy(*by).agg(F.sum("paused_ms").alias("paused_ms")), "paused_ms")
        found = []
        for key, flow in flows.items():
            wait, run, lease, met, pause = (part.get(key) for part in (waits, settled, spent, slo, paused))
            judged = 0 if met is None else (met.met or 0) + (met.missed or 0)
            found.append(
                Row(
                    name="/".join(key) or "all",
                    enqueued=(flow.enqueued or 0) + (flow.restored or 0),
                    done=flow.done or 0,
                    dead=flow.died or 0,
                    waiting=max(0, flow.d_waiting or 0),
                    wait_p50=wait.p50_ms if wait else None,
                    wait_p95=wait.p95_ms if wait else None,
                    run_p50=run.p50_ms if run else None,
                    run_p95=run.p95_ms if run else None,
                    slo=met.met / judged if met is not None and judged else None,
                    wasted_ms=(lease.wasted_ms if lease else 0) or 0,
                    lease_ms=(lease.lease_ms if lease else 0) or 0,
                    paused_ms=(pause.paused_ms if pause else 0) or 0,
                )
            )
        return sorted(found, key=lambda row: (-row.enqueued, row.name))

    def _oldest(self) -> int | None:
        ready = self._read("silver/carry").where(
            (F.col("state") == "waiting") & (F.col("visible_at") <= F.lit(_moment(self._end)))
        )
        (row,) = ready.agg(F.min(F.unix_millis("visible_at")).alias("since")).collect()
        return None if row.since is None else self._end - row.since

    def _causes(self, merged: DataFrame) -> list[tuple[str, int, int]]:
        counted = merged.groupBy("cause").agg(F.sum("died").alias("died"), F.sum("retried").alias("retried"))
        weighed = counted.withColumn("weight", F.col("died") * 1_000_000 + F.col("retried"))
        rows = top_causes(weighed.withColumn("of", F.lit(1)), ["of"], "weight", CAUSES).collect()
        ranked = sorted(rows, key=lambda row: (row.cause == "(other)", -row.died, -row.retried))
        return [(row.cause, row.died, row.retried) for row in ranked]

    # ── the slowest ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _slowest(self) -> list[SlowJob]:
        took = F.unix_millis("ended_at") - F.unix_millis("opened_at")
        lives = (
            self._read("silver/lives").where("outcome IN ('done', 'dead') AND opened_at IS NOT NULL")
            .select("tenant", "queue", "queue_number", "job_id", "life", "outcome", "attempts", "opened_at", "ended_at", took.alias("took"))
            .orderBy(F.desc("took")).limit(SLOWEST)
        ).collect()  # fmt: skip
        attempts = self._attempts_of(lives)
        found = []
        for life in lives:
            job = SlowJob(
                life.tenant,
                life.queue,
                life.job_id,
                _ms(life.opened_at),
                _ms(life.ended_at),
                life.outcome,
                life.attempts,
            )
            job.steps = list(_steps(job, attempts.get((life.queue_number, life.job_id, life.life), [])))
            found.append(job)
        return found

    def _attempts_of(self, lives: Sequence[SparkRow]) -> dict[tuple[int, str, int], list[SparkRow]]:
        ids = [life.job_id for life in lives]
        found: dict[tuple[int, str, int], list[SparkRow]] = defaultdict(list)
        if ids:
            rows = self._read("silver/attempts").where(F.col("job_id").isin(*ids)).orderBy("token").collect()
            for row in rows:
                found[row.queue_number, row.job_id, row.life].append(row)
        return found


def _steps(job: SlowJob, attempts: Iterable[SparkRow]) -> Iterable[Step]:
    at = job.opened_ms
    for row in attempts:
        claimed, ended = _ms(row.claimed_at), _ms(row.ended_at)
        if claimed > at:
            yield Step("waiting", at, claimed, f"waiting {(claimed - at) / 1000:g} s")
        kind = "expired" if row.expired else row.outcome
        said = f": {row.error}" if row.error else ""
        yield Step(
            kind, claimed, ended, f"attempt {row.attempt}, {kind} after {(ended - claimed) / 1000:g} s{said}"[:300]
        )
        at = ended
    if at < job.ended_ms:
        yield Step("waiting", at, job.ended_ms, f"waiting {(job.ended_ms - at) / 1000:g} s")


def _ms(moment: datetime) -> int:
    return round(moment.replace(tzinfo=UTC).timestamp() * 1000)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
