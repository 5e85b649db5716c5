"""The events of a job are a chain: each beside the one before it and the one after it.

    enqueued ── claimed ── retried ── claimed ── done          one row an event: `prev_*`, `next_*`, `life`
       wait        run       wait        run

A history is computed in runs. What a run leaves open goes on in the next as one `carried` row a job: its last event,
with what is known of the life it is in. So a chain that crosses runs looks like one that does not.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

#: Names a job. The number stands for tenant and queue, which go along for people.
JOB = ("queue_number", "job_id")
NAMES = ("tenant", "queue")
#: Events that open a wait: from `visible_at` on the job may be claimed.
OPENERS = ("enqueued", "replayed", "restored")
ENDS_A_LIFE = ("done", "died", "cancelled", "ttl_passed", "purged")

#: What is kept of an event.
EVENT = (
    "shard", "commit", "index", "time", "type", "state", "priority", "attempt", "max_attempts", "token", "lease_id",
    "visible_at", "lease_until", "reason", "worker", "error",
)  # fmt: skip
#: What is kept of a life that is open, beside its last event.
KNOWN = (
    "opened_by", "opened_at", "first_visible_at", "first_claimed_at", "attempts", "retried", "released", "expired",
    "run_ms", "wasted_ms", "waited_ms",
)  # fmt: skip

#: The state a job must have come from, where the event before is not known: it was before the history began.
_FROM = {
    "enqueued": "gone", "restored": "gone", "claimed": "waiting", "done": "leased", "retried": "leased",
    "died": "leased", "released": "leased", "expired": "leased", "cancelled": "waiting", "replayed": "dead",
    "ttl_passed": "waiting", "purged": "done", "retired": "done", "repaired": "gone",
}  # fmt: skip


def ms_between(start: Column, end: Column) -> Column:
    return F.unix_millis(end) - F.unix_millis(start)


def chains(events: DataFrame, carried: DataFrame | None = None) -> DataFrame:
    """Every job event of `events`, in its chain; `carried` is `silver.carry` of the run before."""
    names = [*JOB, *NAMES, *EVENT]
    rows = events.where(F.col("job_id").isNotNull()).select(
        *names,
        F.lit(False).alias("carried"),
        F.when(F.col("type") == "replayed", 1).otherwise(0).cast("bigint").alias("lives"),
        F.lit(None).cast("timestamp").alias("wait_from"),
        F.lit(None).cast("string").alias("prev_type"),
        F.lit(None).cast(_KNOWN_TYPE).alias("known"),
    )
    if carried is not None:
        rows = rows.unionByName(
            carried.select(
                *names,
                F.lit(True).alias("carried"),
                F.col("life").alias("lives"),
                "wait_from",
                "prev_type",
                F.struct(*KNOWN).cast(_KNOWN_TYPE).alias("known"),
            )
        )
    chain = Window.partitionBy(*JOB).orderBy("commit", "index")
    so_far = chain.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = {name: F.lag(name).over(chain) for name in ("type", "state", "time", "visible_at")}
    after = {name: F.lead(name).over(chain) for name in ("type", "time", "error", "reason")}
    return rows.select(
        *names,
        "carried",
        "known",
        F.sum("lives").over(so_far).alias("life"),
        F.coalesce(before["type"], F.col("prev_type")).alias("prev_type"),
        F.coalesce(before["state"], _came_from()).alias("prev_state"),
        before["time"].alias("prev_time"),
        # When the wait began that a claim ended; a claim that was carried has it with it.
        F.when(F.col("type") == "claimed", F.coalesce(F.col("wait_from"), before["visible_at"])).alias("wait_from"),
        *[column.alias(f"next_{name}") for name, column in after.items()],
    )


def _came_from() -> Column:
    pairs = [F.lit(text) for pair in _FROM.items() for text in pair]
    return F.coalesce(F.create_map(*pairs)[F.col("type")], F.lit("gone"))


_KNOWN_TYPE = (
    "struct<opened_by:string, opened_at:timestamp, first_visible_at:timestamp, first_claimed_at:timestamp,"
    " attempts:bigint, retried:bigint, released:bigint, expired:bigint, run_ms:bigint, wasted_ms:bigint,"
    " waited_ms:bigint>"
)


def by_expiry() -> Column:
    """Whether a lease that ran out ended this attempt; the last one a job may have ends it as `died`."""
    return (F.col("outcome") == "expired") | (
        (F.col("outcome") == "died") & F.coalesce(F.col("error").startswith("the lease expired"), F.lit(False))
    )
