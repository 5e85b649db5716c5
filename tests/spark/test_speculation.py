"""Two attempts of one task at the same time, on a standalone master with two workers: what one stages counts once.

Only in `make test-crash`: a cluster of five processes takes half a minute to stand.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tests.spark.conftest import linked_home

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(int(os.environ.get("SPARK_ROWS", "0")) < 1_000_000, reason="in make test-crash only"),
]

DRIVER = """
import os, sys, time
import tenure.spark
master, url, marks, python, scratch = sys.argv[1:]
spark = tenure.spark.session("speculation", master=master, memory="512m", conf={
    "spark.speculation": "true", "spark.speculation.quantile": "0.5", "spark.speculation.multiplier": "1.1",
    "spark.speculation.interval": "100ms", "spark.speculation.minTaskRuntime": "100ms",
    "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""), "spark.pyspark.python": python,
    "spark.local.dir": scratch, "spark.sql.warehouse.dir": scratch, "spark.log.level": "OFF",
})

def slow(batches):
    from pyspark import TaskContext
    context = TaskContext.get()
    yield from batches
    if context.partitionId() == 3:
        open(f"{marks}/{context.taskAttemptId()}", "w").close()
        until = time.monotonic() + 300
        while context.attemptNumber() == 0 and len(os.listdir(marks)) < 2 and time.monotonic() < until:
            time.sleep(0.1)  # until Spark takes this one for slow, and starts another: then both go on at once

rows = spark.range(0, 8000, 1, 4).selectExpr("cast(id as string) as payload")
rows = rows.mapInArrow(slow, rows.schema)
rows.write.format("tenure").mode("append").option("url", url).option("queue", "work").option("writeId", "w").save()
spark.stop()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    home = linked_home(tmp_path / "home")
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, host: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.rstrip('12')}", *arguments]
        here = {**environment, "SPARK_LOCAL_IP": host}
        with log.open("wb") as out:
            started.append(
                subprocess.Popen([*command, "--host", host], env=here, stdout=out, stderr=out, start_new_session=True)
            )
        return log

    try:
        said = start("master.Master", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        for number in "12":
            # Two hosts to Spark: it does not start a second attempt where the first one runs.
            place = f"127.0.0.{number}"
            start(f"worker.Worker{number}", place, url, "--cores", "2", "--memory", "1g", "--webui-port", "0")
        until = time.monotonic() + 180
        while len(re.findall("Registering worker", said.read_text())) < 2:
            assert time.monotonic() < until, said.read_text()[-2_000:]
            time.sleep(0.2)
        yield url
    finally:
        for process in started:
            os.killpg(process.pid, 9)
            process.wait(30)


@pytest.mark.timeout(600)
def test_speculative_attempts_write_once(master: str, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    url = f"lmdb:{tmp_path / 'data'}"
    arguments = [master, url, str(tmp_path / "marks"), sys.executable, str(tmp_path / "scratch")]
    done = subprocess.run([sys.executable, "-c", DRIVER, *arguments], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert len(list((tmp_path / "marks").iterdir())) == 2, "two attempts of the slow task"
    with tenure.open(url, sweep=False) as store:
        assert store.queue("work").counts().ready == 8_000
        assert store.check().clean
    print("two attempts of one task at once, 8,000 rows: 8,000 jobs")
