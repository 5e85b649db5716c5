"""Kills on both sides of the outbox: the program that writes rows, its database, and the relay. Each row is one job.

`make test-crash` runs 10,000 rows and 20 kills on each database (OUTBOX_ROWS, OUTBOX_KILLS).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import outbox
from tests.outbox import writer
from tests.outbox.conftest import UserDatabase

ROWS = int(os.environ.get("OUTBOX_ROWS", "300"))
KILLS = int(os.environ.get("OUTBOX_KILLS", "4"))


class Process:
    """A child that is started again after it was killed."""

    def __init__(self, *command: str, log: Path) -> None:
        self._command = [sys.executable, *command]
        self._log = log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.child = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        self.start()

    def end(self) -> None:
        self.child.kill()
        self.child.wait()


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_kills_on_both_sides(database: UserDatabase, tmp_path: Path, request: pytest.FixtureRequest):
    url = f"rocksdb:{tmp_path / 'data'}"
    relay_command = [
        "-m",
        "tenure",
        "outbox",
        "run",
        database.address,
        "--store",
        url,
        "--poll",
        "0.01",
        "--batch",
        "7",
    ]
    producer = Process(writer.__file__, database.address, str(ROWS), log=tmp_path / "writer.log")
    relay = Process(*relay_command, log=tmp_path / "relay.log")
    victims: list[tuple[str, Callable[[], None]]] = [("writer", producer.kill), ("relay", relay.kill)]
    if database.address.startswith("postgresql"):
        server = request.getfixturevalue("postgres")
        victims.append(("database", lambda: (server.kill(), server.start())[0]))
    killed: Counter[str] = Counter()
    try:
        for number in range(KILLS):
            wait_until(lambda at=(number + 1) * ROWS // (KILLS + 1): written(database) >= at, producer, tmp_path)  # type: ignore[misc]  # a lambda's default
            time.sleep(random.random() * 0.05)  # anywhere in what they do
            name, kill = victims[number % len(victims)]
            kill()
            killed[name] += 1
        wait_until(lambda: written(database) == ROWS, producer, tmp_path)
        producer.child.wait()
    finally:
        producer.end()
        relay.end()
    once = subprocess.run([sys.executable, *relay_command, "--once"], capture_output=True, text=True, check=False)
    assert once.returncode == 0, once.stderr
    with closing(outbox.connect(database.address)) as table:
        assert table.waiting() == (0, 0, None)
    found: Counter[int] = Counter()
    with tenure.open(url) as store:
        cursor = None
        while True:
            page = store.queue("orders").list("ready", limit=1000, cursor=cursor)
            found.update(int(job.payload) for job in page.jobs)
            cursor = page.cursor
            if cursor is None:
                break
        assert store.check().clean
    print(f"{ROWS} rows, kills: {dict(killed)}; jobs: {found.total()}, lost: {ROWS - len(found)}")
    assert found == Counter(range(ROWS))


def written(database: UserDatabase) -> int:
    try:
        with closing(database.connect()) as connection:
            return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])
    except Exception as exc:  # PostgreSQL is recovering
        if not any("Operational" in kind.__name__ for kind in type(exc).__mro__):
            raise
        return -1


def wait_until(condition: Callable[[], bool], producer: Process, folder: Path) -> None:
    while not condition():
        code: Any = producer.child.poll()
        assert code in (None, 0), (folder / "writer.log").read_text()[-2000:]
        time.sleep(0.02)
