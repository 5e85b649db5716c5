"""A Spark Connect client and the server it starts for itself: reads a store's jobs, drains its journal, writes. For a test.

python connect_client.py URL FOLDER
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import tenure.spark
from tenure.spark.session import SHORT_LIVED_JAVA

#: For a server that answers a handful of queries over few rows: compiling what it runs would take most of its time.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def main(url: str, folder: str) -> None:
    builder = SparkSession.builder.remote("local[1]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    tenure.spark.register(spark)
    with tenure.spark.snapshot(url) as snap:
        jobs = spark.read.format("tenure").options(url=url, table="jobs", snapshot=snap.id).load()
        print("jobs", jobs.where("queue = 'emails'").count(), flush=True)
    events = spark.readStream.format("tenure").options(url=url, table="events", columns="commit, index").load()
    query = (
        events.writeStream.format("parquet")
        .option("path", f"{folder}/bronze")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .queryName("bronze")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("events", spark.read.parquet(f"{folder}/bronze").count(), flush=True)
    rows = spark.range(10).selectExpr("string(id) AS payload")
    rows.write.format("tenure").mode("append").options(url=url, queue="from_connect").save("/a/path")
    named = spark.read.format("tenure").options(url=url, table="JOBS", queue="from_connect").load()
    print("written", named.count(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
