"""Gold: numbers by hour and queue, as partials of one run each, which merge into the whole.

    flows      how many events of each kind, in the hour they happened; what entered, left, and moved between states
    waits      from visible to claimed, in the hour of the claim
    runs       from claimed to settled, in the hour of the settling, by outcome; expired ones apart
    ends       lives that ended, in that hour, by outcome: time from opening to end, attempts, wasted lease time
    ready      jobs that could be claimed and were not, and since when, at the hour's end: stocks, not flows
    slo        lives first claimed in time, and those that were not, in the hour they became visible
    causes     what was failed of and died of, in the hour it happened

A run looks at the moments from the end of the run before to its own last event, so that runs, however they are cut,
add up to the same. Counts, sums, minima and maxima merge exactly; percentiles by KLL sketches, within their error.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tenure.spark.pipelines.causes import cause
from tenure.spark.pipelines.chains import NAMES, ms_between

HOUR = ("hour", *NAMES)
TYPES = (
    "enqueued", "claimed", "done", "retried", "died", "released", "expired", "cancelled", "replayed", "ttl_passed",
    "purged", "retired", "restored", "repaired",
)  # fmt: skip
STATES = ("waiting", "leased", "done", "dead")
PERCENTILES = (0.5, 0.9, 0.95, 0.99)
#: Rank error about 1.3 % (k = 200); a sketch is at most 3 kB however many values it saw.
K = 200


#: Partials are by the hour; a report of a short time asks for shorter steps.
STEP = 3_600_000


def _step(name: str, step_ms: int) -> Column:
    return F.timestamp_millis(F.floor(F.unix_millis(name) / step_ms).cast("bigint") * step_ms)


@dataclass(frozen=True)
class Span:
    """The moments a run looks at: from `start` (None: since ever) up to `end`, which is not one of them."""

    start: datetime | None
    end: datetime

    def holds(self, moment: Column) -> Column:
        before_end = moment < F.lit(self.end)
        return before_end if self.start is None else before_end & (moment >= F.lit(self.start))


def flows(chains: DataFrame, step_ms: int = STEP) -> DataFrame:
    counted = [F.sum(F.when(F.col("type") == name, 1).otherwise(0)).cast("bigint").alias(name) for name in TYPES]
    moved = [
        F.sum((F.col("state") == name).cast("bigint") - (F.col("prev_state") == name).cast("bigint")).alias(f"d_{name}")
        for name in STATES
    ]
    return (
        chains.where(~F.col("carried"))
        .withColumn("hour", _step("time", step_ms))
        .groupBy(*HOUR)
        .agg(
            *counted,
            *moved,
            F.sum((F.col("prev_state") == "gone").cast("bigint")).alias("entered"),
            F.sum((F.col("state") == "gone").cast("bigint")).alias("left"),
        )
    )


def waits(attempts: DataFrame, step_ms: int = STEP) -> DataFrame:
    """Of the claims made in this run."""
    made = attempts.where(~F.col("carried") & F.col("wait_ms").isNotNull())
    return made.withColumn("hour", _step("claimed_at", step_ms)).groupBy(*HOUR).agg(*_measured("wait_ms"))


def runs(attempts: DataFrame, step_ms: int = STEP) -> DataFrame:
    """Of the attempts that ended in this run."""
    ended = attempts.where(F.col("ended_at").isNotNull())
    return (
        ended.withColumn("hour", _step("ended_at", step_ms))
        .groupBy(*HOUR, "outcome", "expired")
        .agg(*_measured("run_ms"))
    )


def ends(closed: DataFrame, step_ms: int = STEP) -> DataFrame:
    """Of `silver.closed_lives`."""
    timed = closed.withColumns(
        {"hour": _step("ended_at", step_ms), "life_ms": ms_between(F.col("opened_at"), F.col("ended_at"))}
    )
    return timed.groupBy(*HOUR, "outcome").agg(
        *_measured("life_ms"),
        F.sum("attempts").alias("attempts"),
        F.sum("wasted_ms").alias("wasted_ms"),
        F.kll_sketch_agg_bigint("attempts", K).alias("attempts_sketch"),
    )


def ready(chains: DataFrame, span: Span, step_ms: int = STEP) -> DataFrame:
    """How many jobs were ready at each hour's end, and since when the oldest of them was."""
    waiting = chains.where((F.col("state") == "waiting") & F.col("visible_at").isNotNull())
    # A wait is counted at every hour's end it covers; first gathered by the hours it begins and ends in, which are few.
    # A released job has its old place, and so a `visible_at` from before it waited again.
    start = F.greatest("visible_at", "time")
    if span.start is not None:
        start = F.greatest(start, F.lit(span.start))
    end = F.least(F.coalesce(F.col("next_time"), F.lit(span.end)), F.lit(span.end))
    first = F.ceil(F.unix_millis(start) / step_ms).cast("bigint")
    last = F.ceil(F.unix_millis(end) / step_ms).cast("bigint") - 1
    gathered = (
        waiting.select(*NAMES, first.alias("first"), last.alias("last"), "visible_at")
        .where(F.col("first") <= F.col("last"))
        .groupBy(*NAMES, "first", "last")
        .agg(F.count("*").alias("ready"), F.min("visible_at").alias("oldest"))
    )
    at = gathered.withColumn("number", F.explode(F.sequence("first", "last")))
    return (
        at.withColumn("hour", F.timestamp_millis((F.col("number") - 1) * step_ms))
        .groupBy(*HOUR)
        .agg(F.sum("ready").alias("ready"), F.min("oldest").alias("oldest"))
    )


def slo(lives: DataFrame, seconds: float, span: Span, step_ms: int = STEP) -> DataFrame:
    """Lives first claimed within `seconds` of becoming visible, and those that were not; of `silver.lives`.

    In time counts when it is claimed, too late when the time is up: each once, whatever the run it is seen in.
    """
    due = F.timestamp_millis(F.unix_millis("first_visible_at") + round(seconds * 1000))
    claimed, ended = F.col("first_claimed_at"), F.col("ended_at")
    met = (claimed <= due) & ~F.col("claimed_before")
    late = F.when(claimed.isNotNull(), claimed > due).otherwise(ended.isNull() | (ended > due))
    told = lives.where(F.col("first_visible_at").isNotNull() & ~F.col("over"))
    judged = told.select(
        _step("first_visible_at", step_ms).alias("hour"),
        *NAMES,
        F.coalesce(met, F.lit(False)).cast("bigint").alias("met"),
        (late & span.holds(due)).cast("bigint").alias("missed"),
    )
    counted = judged.where((F.col("met") + F.col("missed")) > 0).groupBy(*HOUR)
    return counted.agg(F.sum("met").alias("met"), F.sum("missed").alias("missed"))


def causes(chains: DataFrame, step_ms: int = STEP) -> DataFrame:
    failed = chains.where(~F.col("carried") & F.col("type").isin("retried", "died"))
    return (
        failed.select(_step("time", step_ms).alias("hour"), *NAMES, cause(F.col("error")).alias("cause"), "type")
        .groupBy(*HOUR, "cause")
        .agg(
            F.sum((F.col("type") == "retried").cast("bigint")).alias("retried"),
            F.sum((F.col("type") == "died").cast("bigint")).alias("died"),
        )
    )


def _measured(name: str) -> list[Column]:
    return [
        F.count(name).alias("count"),
        F.sum(name).alias("sum_ms"),
        F.max(name).alias("max_ms"),
        F.kll_sketch_agg_bigint(name, K).alias("sketch"),
    ]


# ── merging ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_KEYS = {"runs": ("outcome", "expired"), "ends": ("outcome",), "causes": ("cause",)}
TABLES = ("flows", "waits", "runs", "ends", "ready", "slo", "causes")


def merged(table: str, partials: DataFrame, by: tuple[str, ...] | None = None) -> DataFrame:
    """The partials of any number of runs as one; `by` merges further: ("tenant", "queue") over all hours, say."""
    keys = (*HOUR, *_KEYS.get(table, ())) if by is None else by
    parts: list[Column] = []
    for name in partials.columns:
        if name in (*HOUR, *_KEYS.get(table, ())):
            continue
        if name.endswith("sketch"):
            parts.append(F.kll_merge_agg_bigint(name).alias(name))
        elif name == "max_ms":
            parts.append(F.max(name).alias(name))
        elif name == "oldest":
            parts.append(F.min(name).alias(name))
        else:
            parts.append(F.sum(name).alias(name))
    return partials.groupBy(*keys).agg(*parts) if keys else partials.agg(*parts)


def percentiles(sketch: str = "sketch") -> list[Column]:
    """p50_ms, p90_ms, p95_ms and p99_ms of a sketch of milliseconds; null of an empty one."""
    some = F.kll_sketch_get_n_bigint(sketch) > 0
    return [
        F.when(some, F.kll_sketch_get_quantile_bigint(sketch, F.lit(p))).alias(f"p{round(p * 100)}_ms")
        for p in PERCENTILES
    ]
