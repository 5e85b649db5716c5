"""A driver that drains the journal into Parquet, a folder a batch, and says so: for tests that kill it.

python bronze_driver.py URL FOLDER EVENTS_A_BATCH
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame

import tenure.spark


def main(url: str, folder: str, events: str) -> None:
    spark = tenure.spark.session("bronze", master="local[2]", conf={"spark.log.level": "OFF"})

    def write(batch: DataFrame, id: int) -> None:
        batch.write.mode("overwrite").parquet(str(Path(folder) / "bronze" / f"batch={id}"))
        print("batch", id, flush=True)

    (
        spark.readStream.format("tenure")
        .option("url", url)
        .option("table", "events")
        .option("maxEventsPerTrigger", events)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    print("drained", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
