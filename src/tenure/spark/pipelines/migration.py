"""Jobs on their way from one store to another: a checksum that does not care for their order, and who goes where."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tenure.model.job_checksum import HEX_DIGITS

SUM = "DECIMAL(38,0)"


def job_sum() -> Column:
    """`tenure.model.job_checksum.job_sum`, of a row of the table `jobs`."""
    state = F.when(F.col("state").isin("blocked", "done", "dead"), F.col("state")).otherwise("waiting")
    entries = F.array_sort(F.map_entries("headers"))
    headers = F.array_join(
        F.transform(
            entries,
            lambda e: F.concat(F.length(e["key"]), F.lit(":"), e["key"], F.length(e["value"]), F.lit(":"), e["value"]),
        ),
        "",
    )
    named = F.concat("tenant", F.lit("/"), "queue")
    group = F.coalesce("group", F.lit(""))
    head = F.concat_ws("|", named, "id", state, "priority", "attempt", "token", headers, group, F.lit(""))
    return _summed(F.concat(F.encode(head, "UTF-8"), F.col("payload")))


def _summed(text: Column) -> Column:
    return F.conv(F.substring(F.sha2(text, 256), 1, HEX_DIGITS), 16, 10).cast(SUM)


def steps_of_jobs(steps: DataFrame) -> DataFrame:
    """`tenure.model.job_checksum.step_sum` of each row of the table `steps`, for `checksum`."""
    named = F.concat("tenant", F.lit("/"), "queue")
    name = F.concat(F.length("name"), F.lit(":"), F.col("name"))
    head = F.concat_ws("|", named, "job_id", "number", "kind", name, F.lit(""))
    return _part(steps, F.concat(F.encode(head, "UTF-8"), F.col("value")))


def parents_of_jobs(parents: DataFrame) -> DataFrame:
    """`tenure.model.job_checksum.parent_sum` of each row of the table `parents` whose parent is there, for `checksum`."""
    head = F.concat_ws("|", F.concat("tenant", F.lit("/"), "queue"), "job_id", "parent_id")
    return _part(parents.where("parent_state <> 'gone'"), F.encode(head, "UTF-8"))


def _part(rows: DataFrame, text: Column) -> DataFrame:
    return rows.select(F.lit(0).cast("bigint").alias("jobs"), _summed(text).alias("sum"))


def checksum(jobs: DataFrame, *parts: DataFrame) -> DataFrame:
    """`count` of these jobs, and `total` of their sums and of those of `parts`."""
    sums = jobs.select(F.lit(1).cast("bigint").alias("jobs"), job_sum().alias("sum"))
    for part in parts:
        sums = sums.unionAll(part)
    count = F.coalesce(F.sum("jobs"), F.lit(0).cast("bigint")).alias("count")
    return sums.agg(count, F.coalesce(F.sum("sum"), F.lit(0)).cast(SUM).alias("total"))
