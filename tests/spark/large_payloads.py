"""Jobs of 7.5 MiB written, read, migrated, archived and restored; and, as a program, how much memory each step took.

python large_payloads.py FOLDER JOBS
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tenure
import tenure.spark
from tenure import Policy
from tenure.spark.jobs.archive import archive, restore
from tenure.spark.jobs.migrate import migrate

SIZE = 7_864_320


def life(
    spark: SparkSession, folder: Path, jobs: int, told: Callable[[str], None] = lambda step: None
) -> dict[str, int]:
    """How many jobs each step saw."""
    told("write")
    first, second = f"rocksdb:{folder / 'first'}", f"lmdb:{folder / 'second'}"
    with tenure.open(first, sweep=False) as store:
        store.queue("large").configure(Policy(retention=86_400))
    rows = spark.range(0, jobs, 1, 2 if jobs > 3 else 1).select(
        F.expr(f"repeat(char(65 + id % 26), {SIZE})").alias("payload")
    )
    writing = rows.write.format("tenure").mode("append").option("url", first).option("queue", "large")
    writing.option("writeId", "large").save()
    told("read")
    reading = spark.read.format("tenure").option("url", first).option("columns", "id, payload").load()
    sizes = reading.agg(F.count("id"), F.sum(F.length("payload"))).collect()[0]
    assert sizes[1] == jobs * SIZE
    told("migrate")
    moved = migrate(spark, first, second)
    assert moved.facts["verified"], moved
    told("work")
    with tenure.open(second, sweep=False) as store:
        queue = store.queue("large")
        while claim := queue.claim(limit=8):
            queue.ack_many(list(claim))
    told("archive")
    away = archive(spark, second, str(folder / "archive"), datetime.now(UTC) + timedelta(days=1))
    told("restore")
    back = restore(spark, second, str(folder / "archive"))
    with tenure.open(second, sweep=False) as store:
        done = store.queue("large").counts().done
    tenure.spark.release()
    return {
        "read": sizes[0],
        "migrated": moved.written,
        "archived": away.written,
        "restored": back.written,
        "done": done,
    }


class Watch:
    """The largest resident sizes of this process and of those below it, by step and by what they run.

    `own` is memory that belongs to the process; `mapped` are pages of files that the kernel may drop at any time: an LMDB
    store that is read shows there.
    """

    def __init__(self) -> None:
        self.peaks: dict[str, dict[str, dict[str, int]]] = {}
        self._step = "start"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self, name: str) -> None:
        print(f"{self._step}: {self.peaks.get(self._step)}", file=sys.stderr, flush=True)
        self._step = name

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            for pid in _below():
                try:
                    # Not `comm`: a child of Java has the name of a Java thread, and its memory, until it runs its program.
                    name = Path(f"/proc/{pid}/exe").readlink().name
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                sizes = {
                    line.split(":")[0]: int(line.split()[1]) // 1024 for line in status.splitlines() if "Rss" in line
                }
                if not sizes:
                    continue  # it ends
                seen = self.peaks.setdefault(self._step, {}).setdefault(
                    "java" if name == "java" else "python", {"own": 0, "mapped": 0}
                )
                seen["own"] = max(seen["own"], sizes["RssAnon"] + sizes["RssShmem"])
                seen["mapped"] = max(seen["mapped"], sizes["RssFile"])

    def stop(self) -> dict[str, dict[str, dict[str, int]]]:
        """step → python or java → MiB of the largest process."""
        self._stop.set()
        self._thread.join()
        return self.peaks


def _below() -> list[int]:
    """This process, and all that it started, and so on."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found += parents.get(pid, [])
    return found


def main(folder: str, jobs: str) -> None:
    conf = {"spark.local.dir": f"{folder}/scratch", "spark.log.level": "ERROR"}
    spark = tenure.spark.session("large", master="local[2]", memory="512m", conf=conf)
    watch = Watch()
    seen = life(spark, Path(folder), int(jobs), watch.step)
    print(json.dumps({"seen": seen, "peaks": watch.stop()}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
