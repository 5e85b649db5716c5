"""Closing a store, or ending the interpreter, while threads work: their verbs finish, or raise StoreClosed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import tenure
from tenure.api.store import Store
from tenure.errors import StoreClosed
from tenure.testing.conformance.world import assert_sound

engines = pytest.mark.parametrize(
    ("engine", "durability"), [("rocksdb", "disk"), ("rocksdb", "os"), ("lmdb", "disk"), ("memory", "memory")]
)


class Busy:
    """Threads that enqueue and query until they get StoreClosed."""

    def __init__(self, store: Store) -> None:
        self._store, self._queue = store, store.queue("work")
        self.made: list[str] = []
        self.ended: list[type[BaseException]] = []
        self._begun = threading.Barrier(9)
        targets = (self._produce,) * 6 + (self._look,) * 2
        self._threads = [threading.Thread(target=self._run, args=(target,), daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()
        self._begun.wait()

    def _run(self, target: Callable[[], None]) -> None:
        self._begun.wait()
        try:
            while True:
                target()
        except BaseException as error:
            self.ended.append(type(error))

    def _produce(self) -> None:
        self.made.append(self._queue.enqueue(b"x" * 500).id)

    def _look(self) -> None:
        self._store.check()
        self._queue.list("ready", limit=1000)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "it still waits"


@engines
def test_verbs_under_way_end_and_later_ones_are_refused(tmp_path: Path, engine: str, durability: str) -> None:
    for number in range(4):
        url = "memory:" if engine == "memory" else f"{engine}:{tmp_path / str(number)}"
        store = tenure.open(url, durability=durability, sweep=0.001)  # type: ignore[arg-type]
        busy = Busy(store)
        threading.Event().wait(0.02 * (number + 1))
        store.close()
        busy.join()
        assert busy.ended == [StoreClosed] * 8
        if engine == "memory":
            continue
        with tenure.open(url, sweep=False) as again:
            assert_sound(again)
            for job_id in busy.made:
                assert again.queue("work").get(job_id) is not None, "acknowledged and lost"


CODE = """
import sys, threading, tenure
store = tenure.open(sys.argv[1], durability=sys.argv[2], sweep=0.001)
queue = store.queue("work")
queue.enqueue_many([b"x"] * 500)

def work():
    while True:
        queue.enqueue(b"x" * 100)
        queue.ack(queue.claim(lease=60)[0])

def look():
    while True:
        store.check()

for target in (work, work, work, look, look):
    threading.Thread(target=target, daemon=True).start()
threading.Event().wait(float(sys.argv[3]))
sys.exit(7)
"""


@pytest.mark.parametrize(("engine", "durability"), [("rocksdb", "disk"), ("rocksdb", "os"), ("lmdb", "disk")])
def test_the_interpreter_ends_while_threads_work(tmp_path: Path, engine: str, durability: str) -> None:
    """Daemon threads are stopped anywhere; inside a driver, that would abort the process."""
    for number in range(3):
        url = f"{engine}:{tmp_path / str(number)}"
        done = subprocess.run(
            [sys.executable, "-c", CODE, url, durability, str(0.1 + 0.05 * number)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 7, done.stderr[-2000:]
        assert "AttributeError" not in done.stderr
        with tenure.open(url, sweep=False) as store:
            assert_sound(store)
