"""`USING tenure` in SQL: tables and views to read from, and to insert jobs into."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

import tenure


@pytest.fixture
def url(tmp_path):
    url = f"rocksdb:{tmp_path}/data"
    with tenure.open(url, sweep=False) as store:
        store.queue("work").enqueue_many([b"%d" % n for n in range(10)])
        store.queue("work").ack_many(store.queue("work").claim(limit=4))
    return url


def test_tables_and_views(spark, url):
    counted = "SELECT type, count(*) AS n FROM {} GROUP BY type"
    try:
        spark.sql(f"CREATE TABLE queue_events USING tenure OPTIONS (url '{url}', table 'events')")
        told = {row.type: row.n for row in spark.sql(counted.format("queue_events")).collect()}
        assert (told["enqueued"], told["claimed"], told["done"]) == (10, 4, 4)
        with pytest.raises(PySparkException, match="unknown option 'colour'"):
            spark.sql(f"CREATE TABLE wrong USING tenure OPTIONS (url '{url}', colour 'red')")
    finally:
        spark.sql("DROP TABLE IF EXISTS queue_events")
    spark.sql(
        f"CREATE TEMPORARY VIEW inbox (payload STRING, priority INT) USING tenure OPTIONS (url '{url}', queue 'mail')"
    )
    spark.sql("INSERT INTO inbox VALUES ('first', 7), ('second', 2)")
    spark.catalog.dropTempView("inbox")
    with tenure.open(url, sweep=False) as store:
        assert [job.payload for job in store.queue("mail").claim(limit=5)] == [b"first", b"second"]
