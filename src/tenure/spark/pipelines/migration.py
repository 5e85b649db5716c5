"""Jobs on their way from one store to another: a checksum that does not care for their order, and who goes where."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tenure.model.job_checksum import HEX_DIGITS

SUM = "DECIMAL(38,0)"


def job_sum() -> Column:
    """`tenure.model.job_checksum.job_sum`, of a row of the table `jobs`."""
    state = F.when(F.col("state").isin("done", "dead"), F.col("state")).otherwise("waiting")
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
    digest = F.sha2(F.concat(F.encode(head, "UTF-8"), F.col("payload")), 256)
    return F.conv(F.substring(digest, 1, HEX_DIGITS), 16, 10).cast(SUM)


def checksum(jobs: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """`count` and `total` of these jobs, or of each group of them."""
    sums = [F.count("*").alias("count"), F.coalesce(F.sum(job_sum()), F.lit(0).cast(SUM)).alias("total")]
    return jobs.groupBy(*by).agg(*sums) if by else jobs.agg(*sums)
