"""A driver that streams files into a queue until all are in: to be killed, and started again."""

from __future__ import annotations

import sys

import tenure.spark


def main(folder: str, url: str, checkpoint: str, scratch: str) -> None:
    spark = tenure.spark.session(
        "stream",
        master="local[2]",
        memory="512m",
        conf={"spark.local.dir": scratch, "spark.sql.warehouse.dir": scratch, "spark.log.level": "OFF"},
    )
    rows = spark.readStream.schema("payload string").option("maxFilesPerTrigger", 1).parquet(folder)
    writing = rows.writeStream.format("tenure").option("url", url).option("queue", "work")
    query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
