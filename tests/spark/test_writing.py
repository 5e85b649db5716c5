"""DataFrames into queues: every column, every refusal, and each row once whatever fails."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import tenure
from tenure import InvalidArgument, Policy
from tenure.bulk import staging
from tenure.spark import job_writer
from tenure.storage.keyspace import LAST, SEGMENTS
from tenure.testing.harness import engine_of

#: `make test-crash` takes a million.
ROWS = int(os.environ.get("SPARK_ROWS", "20000"))
#: A task that fails takes its Python with it, and the next one starts anew.
PARTITIONS = 4 if ROWS > 20_000 else 2
PAYLOAD = StructType().add("payload", "binary")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"lmdb:{tmp_path / 'data'}"


def save(df: DataFrame, url: str, **options: str | int) -> None:
    writing = df.write.format("tenure").mode("append").option("url", url)
    for name, value in {"queue": "work", **options}.items():
        writing = writing.option(name, value)
    writing.save()


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("string").alias("payload"))


def payloads(url: str, queue: str = "work") -> list[bytes]:
    """The payloads of all ready jobs; every test ends with a check of the whole store."""
    found: list[bytes] = []
    with tenure.open(url, sweep=False) as store:
        while claim := store.queue(queue).claim(limit=10_000, lease=86_400):
            found += [delivery.payload for delivery in claim]
        assert store.check().clean
    return found


def test_rows_become_jobs(spark: SparkSession, url: str) -> None:
    save(numbers(spark, 2_345), url)
    assert sorted(map(int, payloads(url))) == list(range(2_345))
    assert not list(Path(staging.root_of(url)).iterdir()), "nothing is left behind"


def test_every_column(spark: SparkSession, url: str) -> None:
    row = {
        "payload": b"p", "queue": "mail", "tenant": "acme", "priority": 7, "key": "k", "max_attempts": 2,
        "headers": {"a": "b"}, "ttl": timedelta(days=1), "delay": None, "at": datetime(2020, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    schema = (
        "payload binary, queue string, tenant string, priority int, key string, max_attempts int, "
        "headers map<string,string>, ttl interval day to second, delay double, at timestamp"
    )
    plain = {"payload": b"q", "queue": None}
    names = [name.split()[0] for name in schema.split(", ")]
    rows = [tuple(which.get(name) for name in names) for which in (row, plain)]
    save(spark.createDataFrame(rows, schema), url)
    with tenure.open(url, sweep=False) as store:
        delivery = store.queue("mail", tenant="acme").claim()[0]
        assert (delivery.payload, delivery.priority, delivery.key, delivery.max_attempts) == (b"p", 7, "k", 2)
        assert delivery.headers == {"a": "b"}
        assert [d.payload for d in store.queue("work").claim(limit=9)] == [b"q"]


def test_a_struct_is_json_and_a_delay_delays(spark: SparkSession, url: str) -> None:
    df = spark.sql("select struct(1 as n, 'x' as t) as payload, 3600 as delay")
    save(df, url)
    with tenure.open(url, sweep=False) as store:
        job = store.queue("work").list("scheduled").jobs[0]
        assert job.payload == b'{"n":1,"t":"x"}'
        assert 3_500_000 < job.visible_at_ms - job.created_at_ms <= 3_600_000


def test_a_payload_is_the_text_that_to_json_gives(spark: SparkSession, url: str) -> None:
    """Structs with every kind of field, and variants, alone and within; in a session that is not in UTC."""
    struct = """named_struct('a', 1, 'gone', cast(null as int), 'inner', named_struct('z', cast(null as int)), 's', 'ü"x',
        't', timestamp_ltz'2026-07-01 00:00:00.123456 UTC', 'n', timestamp_ntz'2026-01-01 00:00:00', 'd', date'0987-01-02',
        'dec', cast(1.50 as decimal(10, 2)), 'big', cast(1E+3 as decimal(10, 0)), 'nan', double('NaN'),
        'inf', double('-Infinity'), 'one', double(1), 'f', float(0.1), 'b', x'0102ff', 'm', map('k', cast(null as int), 'l', 2),
        'arr', array(1, null), 'iv', interval '-1 02:03:04.5' day to second, 'v', parse_json('{"a": [1, null, "x"]}'),
        'yes', true, 'wide', parse_json('123456789012345678901234567890.5'), 'times', map(timestamp'2030-01-01 00:00:00', 1),
        'locals', map(timestamp_ntz'1969-01-01 00:00:00.000001', 1), 'dates', map(date'1960-01-01', 1))"""
    variants = ["""'{"a": [1, 2.5, null, "x"]}'""", "'7'", "'null'", """'"text"'"""]
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        df = spark.sql(f"select {struct} as payload, 0 as priority")
        save(df, url)
        wanted = [row.j for row in df.selectExpr("to_json(payload) as j").collect()]
        rows = " union all ".join(f"select parse_json({text}) as payload" for text in variants)
        save(spark.sql(rows).coalesce(1), url)
        wanted += [row.j for row in spark.sql(rows).selectExpr("to_json(payload) as j").collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = [payload.decode() for payload in payloads(url)]
    assert sorted(found) == sorted(wanted)


def test_null_fields_are_written_where_to_json_does(spark: SparkSession, url: str) -> None:
    df = spark.sql("select struct(cast(null as int) as n, struct(cast(null as string) as s) as inner) as payload")
    spark.conf.set("spark.sql.jsonGenerator.ignoreNullFields", "false")
    try:
        save(df, url)
        wanted = df.selectExpr("to_json(payload) as j").collect()[0].j
    finally:
        spark.conf.unset("spark.sql.jsonGenerator.ignoreNullFields")
    assert [payload.decode() for payload in payloads(url)] == [wanted]
    assert wanted == '{"n":null,"inner":{"s":null}}'


def test_a_local_time_is_in_the_session_s_zone(spark: SparkSession, url: str) -> None:
    """Summer, winter, the hour that happens twice and one that never does: as Spark's own cast reads them."""
    times = ["2030-07-01 12:00:00", "2030-01-01 12:00:00", "2030-10-27 02:30:00", "2030-03-31 02:30:00"]
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        rows = " union all ".join(f"select '{n}' as payload, timestamp_ntz'{t}' as at" for n, t in enumerate(times))
        df = spark.sql(rows)
        save(df, url)
        wanted = {
            row.payload: row.ms for row in df.selectExpr("payload", "unix_millis(cast(at as timestamp)) ms").collect()
        }
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    with tenure.open(url, sweep=False) as store:
        jobs = store.queue("work").list("scheduled").jobs
        drift = store._backend.clock_drift_ms() if hasattr(store._backend, "clock_drift_ms") else 0
    found = {job.payload.decode(): job.visible_at_ms + drift for job in jobs}
    assert found == pytest.approx(
        wanted, rel=0, abs=2
    )  # the store's clock and the calendar tick apart, by a millisecond


def test_the_same_write_id_writes_once(spark: SparkSession, url: str) -> None:
    for _ in range(2):
        save(numbers(spark, 1_500), url, writeId="nightly")
    save(numbers(spark, 10), url, writeId="another")
    assert len(payloads(url)) == 1_510


def test_bad_rows_fail_the_write(spark: SparkSession, url: str) -> None:
    df = numbers(spark, 100).withColumn("priority", F.when(F.col("payload") == "77", 12).otherwise(1))
    with pytest.raises(Exception, match="priority=12 must be a whole number from 0 to 9"):
        save(df.coalesce(1), url)
    assert payloads(url) == []


def test_options_that_spark_adds_are_passed_over(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """`save("/path")` and `load("/path")` add a path, `queryName` and pipelines their names; values in any case."""
    writing = numbers(spark, 10).write.format("tenure").mode("append").option("URL", url).option("Queue", "work")
    writing.option("mode", "Ordinary").option("onInvalid", "FAIL").option("token", "ignored by a folder").save(
        "/a/path"
    )
    assert spark.read.format("tenure").option("url", url).option("table", "JOBS").load("/a/path").count() == 10
    df = source(spark, tmp_path / "in", 100, 1)
    named = df.writeStream.format("tenure").option("url", url).option("queue", "work").queryName("into_work")
    query = named.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start("/a/path")
    assert query.name == "into_work"
    assert query.awaitTermination(300)
    events = spark.readStream.format("tenure").option("url", url).option("table", "events").load("/a/path")
    query = events.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert spark.sql("select * from seen where type = 'enqueued'").count() == 110
    assert len(payloads(url)) == 110


def test_a_stream_takes_no_write_id(url: str) -> None:
    """Two queries, or a new checkpoint, under one id: the second one's batches were dropped as repeats of the first's."""
    with pytest.raises(InvalidArgument, match="query's id"):
        job_writer.stream_writer({"url": url, "queue": "work", "writeId": "w"}, PAYLOAD, False)
    job_writer.stream_writer({"url": url, "queue": "work", "queryName": "x"}, PAYLOAD, False)


@pytest.mark.parametrize("mode", ["ordinary", "bulk"])
def test_a_repeated_write_sets_nothing_aside_twice(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    url = f"rocksdb:{tmp_path / 'data'}"
    df = numbers(spark, 100).withColumn("priority", F.when(F.col("payload") == "77", 12).otherwise(1))
    for _ in range(2):
        save(df, url, quarantinePath=str(tmp_path / "bad"), writeId="nightly", mode=mode)
    assert spark.read.parquet(str(tmp_path / "bad")).count() == 1
    assert len(payloads(url)) == 99


@pytest.mark.parametrize("mode", ["auto", "ordinary", "bulk"])
def test_all_rows_may_be_bad_and_there_may_be_none(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    url = f"rocksdb:{tmp_path / 'data'}"
    bad = numbers(spark, 10).withColumn("priority", F.lit(12))
    for _ in range(2):
        save(bad, url, quarantinePath=str(tmp_path / "bad"), writeId="bad", mode=mode)
    assert spark.read.parquet(str(tmp_path / "bad")).count() == 10
    for _ in range(2):
        save(numbers(spark, 0), url, writeId="none", mode=mode)
    save(numbers(spark, 3), url, mode=mode)
    assert len(payloads(url)) == 3


@pytest.mark.parametrize(
    "columns",
    [
        "interval '5' hour as delay, null as max_attempts",
        "cast(5.25 as decimal(10, 2)) as delay, map('a', 'b') as headers, null as `group`",
        "100 as delay, cast(3 as smallint) as max_attempts, cast(null as string) as queue",
        "timestamp'2099-01-01 00:00:00' as at",
    ],
)
def test_what_was_set_aside_can_be_mended_and_written(
    spark: SparkSession, url: str, tmp_path: Path, columns: str
) -> None:
    """Rows that are not valid and rows whose key is taken are read as one table, in the types in which they were given."""
    with tenure.open(url, sweep=False) as store:
        store.queue("work").enqueue(b"other", key="k3")
    df = spark.sql(
        "select cast(id as string) as payload, concat('k', id) as key, if(id = 1, 12, 1) as priority, "
        f"{columns} from range(0, 6, 1, 1)"
    )
    save(df, url, quarantinePath=str(tmp_path / "bad"))
    bad = spark.read.parquet(str(tmp_path / "bad"))
    assert bad.count() == 2
    types = {name: kind for name, kind in df.dtypes if kind != "void"}
    assert {name: dict(bad.dtypes)[name] for name in types} == types
    again = bad.drop("reason").withColumn("priority", F.lit(1)).withColumn("key", F.concat("key", F.lit("-mended")))
    save(again, url)
    with tenure.open(url, sweep=False) as store:
        jobs = store.queue("work").list("scheduled").jobs
        assert {job.payload for job in jobs} == {b"0", b"1", b"2", b"3", b"4", b"5"}
        delays = {round((job.visible_at_ms - job.created_at_ms) / 1000, 2) for job in jobs}
        assert len(delays) == 1 or "at" in bad.columns
        assert {job.key for job in jobs} == {"k0", "k1-mended", "k2", "k3-mended", "k4", "k5"}


def test_bad_rows_go_to_the_quarantine(spark: SparkSession, url: str, tmp_path: Path) -> None:
    df = numbers(spark, 100).withColumn("priority", F.when(F.col("payload") == "77", 12).otherwise(1))
    save(df, url, onInvalid="quarantine", quarantinePath=str(tmp_path / "bad"))
    assert len(payloads(url)) == 99
    bad = [row for file in (tmp_path / "bad").iterdir() for row in pq.read_table(file).to_pylist()]
    assert [(row["payload"], row["priority"]) for row in bad] == [("77", 12)]
    assert "priority=12" in bad[0]["reason"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"colour": "red"}, "unknown option"),
        ({"mode": "quick"}, "ordinary or bulk"),
        ({"onInvalid": "quarantine"}, "go together"),
        ({"maxWaiting": "-1"}, "maxWaiting"),
        ({"queue": "No Such Name"}, "a name has"),
        ({"table": "events"}, "cannot be written"),
    ],
)
def test_options_are_checked(url: str, options: dict[str, str], error: str) -> None:
    """As Spark asks for a writer, but here: what is wrong is told before a row is read."""
    with pytest.raises(InvalidArgument, match=error):
        job_writer.writer({"url": url, "queue": "work", **options}, PAYLOAD, False)


def test_what_cannot_be_written(spark: SparkSession, url: str) -> None:
    with pytest.raises(InvalidArgument, match="no column 'payload'"):
        job_writer.writer({"url": url, "queue": "work"}, StructType().add("id", "long"), False)
    with pytest.raises(InvalidArgument, match="no queue is named"):
        job_writer.writer({"url": url}, PAYLOAD, False)
    with pytest.raises(Exception, match="only ever added"):
        numbers(spark, 1).write.format("tenure").mode("overwrite").option("url", url).option("queue", "q").save()


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def failing_first(df: DataFrame, marks: Path) -> DataFrame:
    """The same rows, but the first attempt of every partition fails once it has handed out all of them."""
    folder = str(marks)

    def once(batches):
        yield from batches
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        try:
            os.close(os.open(f"{folder}/{context.partitionId()}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        raise RuntimeError("the first attempt of this partition fails")

    marks.mkdir(exist_ok=True)
    return df.mapInArrow(once, df.schema)


def disturbed(spark: SparkSession, url: str, tmp_path: Path, rows: int, limit: int, **options: str) -> None:
    """Every partition's first attempt fails after staging, the commit fails in its middle, and the whole job is run again."""
    with tenure.open(url, sweep=False) as store:
        store.queue("work").configure(Policy(max_waiting=limit))
    df = numbers(spark, rows, PARTITIONS)
    with pytest.raises(Exception, match="waiting jobs, and its limit is"):
        save(failing_first(df, tmp_path / "first"), url, writeId="nightly", **options)
    assert len(list((tmp_path / "first").iterdir())) == PARTITIONS
    with tenure.open(url, sweep=False) as store:
        assert store.queue("work").counts().enqueued <= limit
        store.queue("work").configure(Policy())
    for _ in range(2):
        save(failing_first(df, tmp_path / "second"), url, writeId="nightly", **options)
    with tenure.open(url, sweep=False) as store:
        assert store.queue("work").counts().enqueued == rows
    found = payloads(url)
    assert len(found) == rows
    assert len(set(found)) == rows
    print(
        f"{options.get('mode', 'ordinary')}: {rows:,} rows, tasks and a commit failed, the job run again: {len(found):,} jobs"
    )


@pytest.mark.crash
def test_each_row_once_whatever_fails(spark: SparkSession, url: str, tmp_path: Path) -> None:
    disturbed(spark, url, tmp_path, ROWS, ROWS // 2 + 500)


@pytest.mark.crash
def test_each_row_once_in_bulk_whatever_fails(spark: SparkSession, tmp_path: Path) -> None:
    disturbed(spark, f"rocksdb:{tmp_path / 'data'}", tmp_path, ROWS, ROWS // 2 + 500, mode="bulk")


def test_a_bulk_load(spark: SparkSession, tmp_path: Path) -> None:
    url = f"rocksdb:{tmp_path / 'data'}"
    df = spark.sql(
        "select cast(id as string) as payload, if(id % 2 = 0, 'even', null) as queue, cast(id % 10 as int) as priority, "
        "if(id = 5, 'k', null) as key, if(id = 6, -1, 0) as delay, if(id % 3 = 0, 'three', null) as `group` "
        "from range(0, 100, 1, 2)"
    )
    save(df, url, mode="bulk", quarantinePath=str(tmp_path / "bad"))
    with tenure.open(url, sweep=False) as store:
        assert store.check().clean
        waiting = [group.waiting for name in ("work", "even") for group in store.queue(name).groups()]
        assert waiting == [17, 16], "of 0, 3, 6, …, 99; the row of 6 is bad"
    assert len(payloads(url)) == 49
    assert len(payloads(url, "even")) == 49
    bad = [row for file in (tmp_path / "bad").iterdir() for row in pq.read_table(file).to_pylist()]
    assert sorted(row["payload"] for row in bad) == ["5", "6"]
    with pytest.raises(Exception, match="RocksDB"):
        save(numbers(spark, 1), f"lmdb:{tmp_path / 'other'}", mode="bulk")


def test_large_partitions_are_taken_in_as_files(spark: SparkSession, tmp_path: Path) -> None:
    """Once, and beside small ones in chunks; what is claimed is what `enqueue_many` would have added."""
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False, durability="os") as store:
        rows = numbers(spark, 21_000, 1).union(numbers(spark, 500, 1))
        for _ in range(2):
            save(rows, url, writeId="w")
        assert store.queue("work").counts().enqueued == 21_500
        kept = engine_of(store).inner.read(lambda reader: len(reader.keys(SEGMENTS, b"", LAST, 1_000)))
        assert kept >= 210
        assert not list(Path(staging.root_of(url)).iterdir()), "nothing is left behind"
    found = [int(payload) for payload in payloads(url)]
    assert (found[:21_000], found[21_000:]) == (list(range(21_000)), list(range(500)))


@pytest.mark.parametrize(
    ("engine", "columns", "options", "as_files"),
    [
        ("rocksdb", "payload binary, priority integer", {}, True),
        ("rocksdb", "payload binary", {"mode": "ordinary"}, False),
        ("rocksdb", "payload binary", {"maxWaiting": "5000"}, False),
        ("rocksdb", "payload binary", {"staging": "elsewhere"}, False),
        ("rocksdb", "payload binary, key string", {}, False),
        ("rocksdb", "payload binary, delay integer", {}, False),
        ("rocksdb", "payload binary, queue string", {}, False),
        ("rocksdb", "payload binary", {"queue": "bounded"}, False),
        ("lmdb", "payload binary", {}, False),
    ],
)
def test_which_writes_may_come_as_files(
    tmp_path: Path, engine: str, columns: str, options: dict[str, str], as_files: bool
) -> None:
    url = f"{engine}:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        store.queue("bounded").configure(Policy(max_waiting=10))
    if "staging" in options:
        options = {"staging": str(tmp_path / options["staging"])}
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema.add(name, kind)
    made = job_writer.writer({"url": url, "queue": "work", **options}, schema, False)
    assert isinstance(made, job_writer.JobsWriter)
    assert (made._plan.target is not None) == as_files


def test_the_driver_may_have_the_store_open(spark: SparkSession, tmp_path: Path) -> None:
    """Of a RocksDB store it is then the owner, and Spark's processes come in through it."""
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        for mode in ("ordinary", "bulk"):
            save(numbers(spark, 1_500), url, mode=mode)
        assert store.queue("work").counts().ready == 3_000
        assert store.check().clean


def test_the_writer_is_held_back(spark: SparkSession, url: str) -> None:
    with tenure.open(url, sweep=False) as store:
        queue, seen = store.queue("work"), []
        done = threading.Event()

        def drain() -> None:
            while not done.is_set() or queue.counts().waiting:
                seen.append(queue.counts().waiting)
                queue.ack_many(queue.claim(limit=1_000, wait=0.05))

        draining = threading.Thread(target=drain)
        draining.start()
        try:
            save(numbers(spark, 5_000), url, maxWaiting=1_500)
        finally:
            done.set()
            draining.join(60)
        assert queue.counts().removed == 5_000
        assert max(seen) <= 1_500


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def source(spark: SparkSession, folder: Path, rows: int, files: int) -> DataFrame:
    numbers(spark, rows, files).write.mode("append").parquet(str(folder))
    return spark.readStream.schema("payload string").option("maxFilesPerTrigger", 1).parquet(str(folder))


def stream(df: DataFrame, url: str, checkpoint: Path) -> None:
    writing = df.writeStream.format("tenure").option("url", url).option("queue", "work")
    query = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)


def test_a_stream_goes_in_batch_by_batch(spark: SparkSession, url: str, tmp_path: Path) -> None:
    df = source(spark, tmp_path / "in", 3_000, 3)
    stream(df, url, tmp_path / "checkpoint")
    # Spark forgets that it committed the last batch, and does it again: as after a kill just before its log.
    last = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))[-1]
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink()
    stream(df, url, tmp_path / "checkpoint")
    assert sorted(map(int, payloads(url))) == list(range(3_000))
    with tenure.open(url, sweep=False) as store:
        query = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
        kept = [number for number in range(4) if store.staged(f"{query}/{number}").state() is not None]
        assert kept == [int(last.name)], "only the last batch need be remembered"
