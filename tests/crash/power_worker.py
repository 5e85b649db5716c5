"""The process whose writes are recorded (`power_loss.record`): it works, logs acknowledged calls, and kills itself.

    python -m tests.crash.power_worker URL DURABILITY LOG SEED THREADS CALLS LOGS

LOG gets the lines of `worker.Log`, and after each call a line `["mark", <hex of DURABLE>]`: the file is mapped, so no
system call shows its contents. LOGS says who starts new logs of the database, which are small here: `driver` (RocksDB,
when a write buffer is full) or `own` (`log_rotation`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import tenure
from tenure.storage.engines.rocksdb import log_rotation, opening
from tests.crash.worker import Log, Shared, Worker

#: The approximate bytes of a log: a run writes one to three MB.
SMALL_LOG = 150_000


class Marked(Log):
    """Also logs the contents of DURABLE."""

    def __init__(self, path: str, durable: Path) -> None:
        super().__init__(path)
        self._durable = durable

    def say(self, *what: object) -> None:
        super().say(*what)
        if what[0] == "E":
            super().say("mark", self._durable.read_bytes().hex())


def small_logs(chosen: str) -> None:
    """Make logs short."""
    if chosen == "own":
        log_rotation.LOG_BYTES = dict.fromkeys(log_rotation.LOG_BYTES, SMALL_LOG)
        return
    driver: Any = opening
    real = driver.Rdict

    def with_small_buffers(path: str, whole: Any, families: dict[str, Any], *more: Any) -> Any:
        for options in (whole, *families.values()):
            options.set_write_buffer_size(64 * 1024)
        return real(path, whole, families, *more)

    driver.Rdict = with_small_buffers


def main(url: str, durability: str, path: str, seed: str, threads: str, calls: str, logs: str) -> None:
    small_logs(logs)
    log = Marked(path, Path(url.partition(":")[2]) / "DURABLE")
    store = tenure.open(url, durability=durability, sweep=False)  # type: ignore[arg-type]
    shared = Shared()
    workers = [Worker(store, log, f"w{n}", int(seed) + n, shared) for n in range(int(threads))]
    left = int(calls)

    def run(worker: Any) -> None:
        call = worker._call

        def counted(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                shared.stop.set()
            return call(*args)

        worker._call = counted
        try:
            worker.run()
        except BaseException as error:
            log.say("died", repr(error))

    running = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
