"""`load`: a file or a query into a queue, exactly once; rows that are not valid are set aside."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tenure.bulk.staging import Manifest
from tenure.errors import InvalidArgument
from tenure.model.write import WriteState
from tenure.spark.connections import opened
from tenure.spark.jobs.summary import Summary, Told, quietly
from tenure.spark.lineage import traced
from tenure.spark.pipelines.job_mapping import BAD, as_jobs
from tenure.storage.keyspace import digest

FORMATS = ("csv", "json", "parquet")


@traced(reads=("path",), writes=("url", "quarantine"))
def load(
    spark: SparkSession,
    url: str,
    queue: str,
    *,
    path: str | None = None,
    kind: str | None = None,
    sql: str | None = None,
    mapping: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    tenant: str = "default",
    quarantine: str | None = None,
    write_id: str | None = None,
    bulk: bool = False,
    told: Told = quietly,
) -> Summary:
    """Rows of `path`, or of the query `sql`, as jobs of `queue`. With the same `write_id` again, nothing is added
    twice.

    The summary comes from the store's record of the write, and not from the queue, which others may use: `written` jobs
    were added by this run, `read` and `rejected` are rows of the whole write, `duplicates` had a key that was there.
    With `path` and `sql` both, the query is over the file's rows, as the table `input`. Rows that cannot be read or are
    no valid jobs go to the folder `quarantine` with their reason; without one, the first ends the load with nothing
    added.
    """
    began = time.monotonic()
    write_id = write_id or f"load-{uuid.uuid4().hex}"
    told("reading")
    rows = _rows(spark, path, kind, sql, options or {})
    unread = 0
    if BAD in rows.columns:
        rows = rows.cache()
        bad = rows.where(rows[BAD].isNotNull())
        unread = bad.count()
        if unread and quarantine is None:
            first = bad.first()
            raise InvalidArgument(
                f"{unread:,} rows of {path} cannot be read, the first: {first and first[BAD]!r}. Name a quarantine for them"
            )
        if unread:
            # A folder for each write, replaced by a repeat.
            folder = Path(str(quarantine)) / "unreadable" / f"write={digest(write_id.encode()).hex()}"
            unreadable = bad.selectExpr("'the row cannot be read' AS reason", f"{BAD} AS row").coalesce(1)
            unreadable.write.mode("overwrite").json(str(folder))
        rows = rows.where(rows[BAD].isNull()).drop(BAD)
    jobs = as_jobs(rows, mapping or {})
    before = _state(url, write_id)
    told("writing")
    writer = (
        jobs.write.format("tenure").mode("append").option("url", url).option("queue", queue).option("tenant", tenant)
    )
    writer = writer.option("writeId", write_id)
    if bulk:
        writer = writer.option("mode", "bulk")
    if quarantine is not None:
        writer = writer.option("onInvalid", "quarantine").option("quarantinePath", str(Path(quarantine) / "rejected"))
    writer.save()
    done = _state(url, write_id)
    if done is None:
        raise InvalidArgument(f"write {write_id!r} was forgotten while it was being reported")
    parts = Manifest.decode(done.manifest).parts
    rejected = sum(part.rejected for part in parts) + done.refused + unread
    return Summary(
        job="load",
        read=sum(part.rows + part.rejected for part in parts) + unread,
        written=done.jobs - (0 if before is None else before.jobs),
        rejected=rejected,
        seconds=time.monotonic() - began,
        facts={
            "queue": f"{tenant}/{queue}",
            "write_id": write_id,
            "duplicates": done.duplicates,
            "repeated": before is not None and before.finished,
            "quarantine": quarantine if rejected else None,
        },
    )


def _rows(
    spark: SparkSession, path: str | None, kind: str | None, sql: str | None, options: Mapping[str, str]
) -> DataFrame:
    if path is None:
        if sql is None:
            raise InvalidArgument("say what to load: a file, or a query")
        return spark.sql(sql)
    kind = kind or Path(path.rstrip("/")).suffix.removeprefix(".").lower()
    if kind in ("jsonl", "ndjson"):
        kind = "json"
    if kind not in FORMATS:
        raise InvalidArgument(f"{path}: say its format, one of {', '.join(FORMATS)}")
    reader = spark.read
    if kind in ("csv", "json"):
        given = {"header": "true", "inferSchema": "true"} if kind == "csv" else {}
        given |= dict(options)
        whole = spark.read.options(**given).format(kind).load(path)
        schema = whole.schema.add(BAD, "string") if BAD not in whole.columns else whole.schema
        given |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
        rows = reader.options(**given).schema(schema).format(kind).load(path)
    else:
        rows = reader.options(**dict(options)).parquet(path)
    if sql is not None:
        rows.createOrReplaceTempView("input")
        return spark.sql(sql)
    return rows


def _state(url: str, write_id: str) -> WriteState | None:
    """How far the write is, as the store knows it; None before it is begun."""
    with opened(url) as store:
        return store.staged(write_id).state()
