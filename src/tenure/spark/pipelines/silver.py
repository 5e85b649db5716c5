"""Silver: what happened, one row an attempt and one row a life.

An attempt is named by (job, token), since attempt numbers repeat after a release and a replay. A life by (job, life): it
begins with an enqueue, a replay or a restore and ends with the job done, dead or removed; a replay begins the next.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tenure.spark.pipelines.chains import ENDS_A_LIFE, EVENT, JOB, KNOWN, NAMES, OPENERS, by_expiry, ms_between


def attempts(chains: DataFrame) -> DataFrame:
    """One row a delivery; `outcome` is null while it is held."""
    claims = chains.where(F.col("type") == "claimed").select(
        *NAMES,
        *JOB,
        "token",
        "life",
        "attempt",
        "max_attempts",
        "priority",
        "lease_id",
        "worker",
        F.col("wait_from").alias("visible_at"),
        F.col("time").alias("claimed_at"),
        "lease_until",
        ms_between(F.col("wait_from"), F.col("time")).alias("wait_ms"),
        F.col("next_type").alias("outcome"),
        F.col("next_time").alias("ended_at"),
        ms_between(F.col("time"), F.col("next_time")).alias("run_ms"),
        F.col("next_reason").alias("reason"),
        F.col("next_error").alias("error"),
        F.coalesce(F.col("prev_type").isin(*OPENERS), F.lit(False)).alias("first"),
        "carried",
    )
    return claims.withColumn("expired", F.coalesce(by_expiry(), F.lit(False)))


def lives(chains: DataFrame) -> DataFrame:
    """One row a life that was open or began: `ended_at` is null while it is; `last` is its last event."""
    new = ~F.col("carried")
    held = F.col("prev_type") == "claimed"  # this event ended an attempt
    spent = F.when(new & held, ms_between(F.col("prev_time"), F.col("time")))
    opens = new & F.col("type").isin(*OPENERS)
    claims = new & (F.col("type") == "claimed")
    # What ends a job that is done or dead already (purged, retired) ends no life.
    ends = new & F.col("type").isin(*ENDS_A_LIFE) & F.col("prev_state").isin("waiting", "leased")
    known = {name: F.col("known")[name] for name in KNOWN}
    # The next life begins with a replay, and with nothing else.
    last = F.col("next_type").isNull() | (F.col("next_type") == "replayed")
    grouped = chains.groupBy(*JOB, "life").agg(
        F.max("tenant").alias("tenant"),
        F.max("queue").alias("queue"),
        F.max("priority").alias("priority"),
        F.max("max_attempts").alias("max_attempts"),
        F.max(F.coalesce(F.when(opens, F.col("type")), known["opened_by"])).alias("opened_by"),
        F.min(F.coalesce(F.when(opens, F.col("time")), known["opened_at"])).alias("opened_at"),
        F.min(F.coalesce(F.when(opens, F.col("visible_at")), known["first_visible_at"])).alias("first_visible_at"),
        F.min(F.coalesce(F.when(claims, F.col("time")), known["first_claimed_at"])).alias("first_claimed_at"),
        F.max(known["first_claimed_at"]).isNotNull().alias("claimed_before"),
        _count(claims, known["attempts"]).alias("attempts"),
        _count(new & held & (F.col("type") == "retried"), known["retried"]).alias("retried"),
        _count(new & held & (F.col("type") == "released"), known["released"]).alias("released"),
        _count(new & held & (F.col("type") == "expired"), known["expired"]).alias("expired"),
        _sum(spent, known["run_ms"]).alias("run_ms"),
        _sum(F.when(F.col("type") != "done", spent), known["wasted_ms"]).alias("wasted_ms"),
        _sum(F.when(claims, ms_between(F.col("wait_from"), F.col("time"))), known["waited_ms"]).alias("waited_ms"),
        # A life ends once; what comes after (a purge of the dead job) may be in this run or in a later one.
        F.max(F.when(ends, F.struct("time", "type", "reason", "error"))).alias("end"),
        # A job that was dead or done when this run began, or came so from elsewhere, has no life to tell of here.
        F.max((F.col("carried") & (F.col("state") == "dead")) | (F.col("type") == "restored") & ~_waits()).alias(
            "over"
        ),
        F.max(F.when(last, F.struct(*EVENT, "wait_from", "prev_type", "next_type"))).alias("last"),
    )
    # A row that only says a done job was removed tells of a life that ended before this run.
    told = F.col("opened_at").isNotNull() | F.col("first_claimed_at").isNotNull() | F.col("end").isNotNull()
    outcome = F.col("end.type")
    return grouped.where(told | F.col("last.state").isin("waiting", "leased", "dead")).withColumns(
        {
            "ended_at": F.col("end.time"),
            "outcome": F.when(outcome == "died", "dead").otherwise(outcome),
            "reason": F.col("end.reason"),
            "error": F.when(F.col("end").isNotNull(), F.col("end.error")).otherwise(F.col("last.error")),
        }
    )


def _waits() -> Column:
    return F.col("state").isin("waiting", "leased")


def _count(when: Column, known: Column) -> Column:
    return F.sum(F.when(when, 1).otherwise(F.coalesce(known, F.lit(0))).cast("bigint"))


def _sum(value: Column, known: Column) -> Column:
    return F.sum(F.coalesce(value, known, F.lit(0)).cast("bigint"))


_LIFE = (
    *NAMES, *JOB, "life", "priority", "max_attempts", *KNOWN, "ended_at", "outcome", "reason", "error",
)  # fmt: skip


def closed_lives(lives: DataFrame) -> DataFrame:
    """Lives that ended in this run."""
    return lives.where(F.col("ended_at").isNotNull() & ~F.col("over")).select(*_LIFE)


def open_lives(lives: DataFrame) -> DataFrame:
    """Lives that have not ended, as far as they are known."""
    still = F.col("ended_at").isNull() & ~F.col("over") & F.col("last.state").isin("waiting", "leased")
    return lives.where(still).select(*_LIFE)


def carry(lives: DataFrame) -> DataFrame:
    """One row a job that is not gone or done: where its chain goes on from in the next run."""
    # The last event of its newest life: after one of a life before it comes a replay.
    goes_on = F.col("last.state").isin("waiting", "leased", "dead") & F.col("last.next_type").isNull()
    last = [F.col(f"last.{name}").alias(name) for name in (*EVENT, "wait_from", "prev_type")]
    return lives.where(goes_on).select(*JOB, *NAMES, *last, "life", *KNOWN)
