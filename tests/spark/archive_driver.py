"""Archives a store's ended jobs again and again, and tells each step. A test runs two at once, and kills them.

python archive_driver.py URL ROOT SCRATCH        it ends when its input does, once there is nothing left to archive
"""

from __future__ import annotations

import select
import sys
import time
from datetime import UTC, datetime, timedelta

import tenure.spark
from tenure.spark.jobs.archive import ArchiveBusy, archive
from tenure.spark.session import SHORT_LIVED_JAVA


def main(url: str, root: str, scratch: str) -> None:
    conf = {
        "spark.local.dir": scratch,
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
    }
    spark = tenure.spark.session("archive", master="local[1]", memory="512m", conf=conf)
    say("ready")
    while True:
        try:
            done = archive(spark, url, root, datetime.now(UTC) + timedelta(days=1), told=say)
        except ArchiveBusy:
            time.sleep(0.05)
            continue
        say(f"archived {done.written}")
        if not done.written and select.select([sys.stdin], [], [], 1.0)[0]:
            return


def say(step: str) -> None:
    print(step, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
