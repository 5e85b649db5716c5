"""A Spark Connect client and the server it starts for itself: reads a store's jobs and drains its journal. For a test.

python connect_client.py URL FOLDER
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import tenure.spark


def main(url: str, folder: str) -> None:
    spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    tenure.spark.register(spark)
    with tenure.spark.snapshot(url) as snap:
        jobs = spark.read.format("tenure").options(url=url, table="jobs", snapshot=snap.id).load()
        print("jobs", jobs.where("queue = 'emails'").count(), flush=True)
    events = spark.readStream.format("tenure").options(url=url, table="events", columns="commit, index").load()
    query = (
        events.writeStream.format("parquet")
        .option("path", f"{folder}/bronze")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("events", spark.read.parquet(f"{folder}/bronze").count(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
