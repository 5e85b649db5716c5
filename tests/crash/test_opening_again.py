"""Several processes repeatedly open one store, work and close it: every opening succeeds, perhaps after a wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tenure.testing.conformance.world import assert_sound

ROUNDS = int(os.environ.get("OPENING_ROUNDS", "3"))
PROCESSES = 6
CODE = """
import sys, tenure
for number in range(int(sys.argv[2])):
    with tenure.open(sys.argv[1], durability="os", sweep=False) as store:
        queue = store.queue("work")
        queue.enqueue(b"x")
        for delivery in queue.claim(lease=60):
            queue.ack(delivery)
"""

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180 + 10 * ROUNDS)]


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_open_work_close(tmp_path: Path, engine: str) -> None:
    url = f"{engine}:{tmp_path / 'data'}"
    running = [
        subprocess.Popen([sys.executable, "-c", CODE, url, str(ROUNDS)], stderr=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    ends = [process.communicate(timeout=170 + 10 * ROUNDS)[1] for process in running]
    assert [process.returncode for process in running] == [0] * PROCESSES, "\n".join(ends)[-3000:]
    with tenure.open(url, sweep=False) as store:
        assert_sound(store)
        assert sum(event.type == "enqueued" for event in store.events(limit=10_000).events) == PROCESSES * ROUNDS
