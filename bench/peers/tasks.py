"""Task queues of other projects, each with its own worker: enqueue n calls of a function that does nothing, and run
them.

    huey        SQLite, WAL with synchronous normal; its consumer with threads
    rq          Valkey, AOF everysec; SimpleWorker, which does not fork for every job: RQ at its best
    dramatiq    Valkey, likewise; its worker with threads
    celery      Valkey, likewise; its worker with a pool of threads, results ignored

All run in this process, so that the function can record when it ran, and none has a process of its own that another
lacks.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from bench.peers.server_process import module
from bench.peers.valkey import Valkey

_INSTALL = "pip install -r requirements/bench.txt"
#: When each call of `noop` ran.
STAMPS: list[float] = []


def noop(number: int) -> None:
    STAMPS.append(time.perf_counter())


class TaskPeer(Protocol):
    name: str
    note: str

    def enqueue(self, count: int) -> None: ...

    def work(self, count: int, threads: int) -> None:
        """Start a worker, and return once `count` calls have run and it has ended."""

    def close(self) -> None: ...


def until_run(count: int) -> None:
    while len(STAMPS) < count:
        time.sleep(0.005)


class HueyTasks:
    name = "Huey (SQLite)"
    note = "WAL, synchronous normal; no leases"

    def __init__(self, folder: Path) -> None:
        huey = module("huey", _INSTALL)
        storage = module("huey.storage", _INSTALL)

        class Storage(storage.SqliteStorage):  # type: ignore[name-defined,misc]
            def _create_connection(self) -> Any:
                made = super()._create_connection()
                made.execute("pragma synchronous = normal")
                return made

        folder.mkdir(parents=True, exist_ok=True)
        self._huey = huey.Huey("bench", storage_class=Storage, filename=str(folder / "huey.db"), results=False)
        self._task = self._huey.task()(noop)

    def enqueue(self, count: int) -> None:
        for number in range(count):
            self._task(number)

    def work(self, count: int, threads: int) -> None:
        consumer = self._huey.create_consumer(
            workers=threads, periodic=False, initial_delay=0.001, max_delay=0.01, check_worker_health=False
        )
        consumer.start()
        until_run(count)
        consumer.stop(graceful=True)

    def close(self) -> None:
        self._huey.storage.close()


class _OnValkey:
    def __init__(self, folder: Path) -> None:
        self._valkey = Valkey(folder, "os")
        self._client = self._valkey._connect()
        self._socket = self._valkey._socket

    def close(self) -> None:
        self._valkey.close()


class RqTasks(_OnValkey):
    name = "RQ (Valkey)"
    note = "SimpleWorker: one job at a time, no fork; AOF everysec"

    def __init__(self, folder: Path) -> None:
        self._rq = module("rq", _INSTALL)
        super().__init__(folder)
        self._queue = self._rq.Queue("bench", connection=self._client)

    def enqueue(self, count: int) -> None:
        for number in range(count):
            self._queue.enqueue(noop, number, result_ttl=0)

    def work(self, count: int, threads: int) -> None:
        with _own_signals():
            self._rq.SimpleWorker([self._queue], connection=self._client).work(burst=True, logging_level="ERROR")


class DramatiqTasks(_OnValkey):
    name = "Dramatiq (Valkey)"
    note = "its worker's threads; AOF everysec"

    def __init__(self, folder: Path) -> None:
        self._dramatiq = module("dramatiq", _INSTALL)
        broker = module("dramatiq.brokers.redis", _INSTALL)
        super().__init__(folder)
        self._broker = broker.RedisBroker(client=self._client, middleware=[])
        self._actor = self._dramatiq.actor(noop, broker=self._broker, actor_name="noop")

    def enqueue(self, count: int) -> None:
        for number in range(count):
            self._actor.send(number)

    def work(self, count: int, threads: int) -> None:
        worker = self._dramatiq.Worker(self._broker, worker_threads=threads, worker_timeout=100)
        worker.start()
        until_run(count)
        worker.stop()


class CeleryTasks(_OnValkey):
    name = "Celery (Valkey)"
    note = "a pool of threads, results ignored; AOF everysec"

    def __init__(self, folder: Path) -> None:
        celery = module("celery", _INSTALL)
        self._testing = module("celery.contrib.testing.worker", _INSTALL)
        super().__init__(folder)
        self._app = celery.Celery("bench", broker=f"redis+socket://{self._socket}")
        self._app.conf.update(
            task_ignore_result=True, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True
        )
        self._task = self._app.task(noop, name="noop")

    def enqueue(self, count: int) -> None:
        for number in range(count):
            self._task.delay(number)

    def work(self, count: int, threads: int) -> None:
        with self._testing.start_worker(
            self._app, concurrency=threads, pool="threads", perform_ping_check=False, loglevel="error",
        ):  # fmt: skip
            until_run(count)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._app.close()
        super().close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the signal handlers that a worker installs for itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    logging.getLogger("rq.worker").setLevel(logging.ERROR)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


PEERS: dict[str, Callable[[Path], TaskPeer]] = {
    "huey": HueyTasks,
    "rq": RqTasks,
    "dramatiq": DramatiqTasks,
    "celery": CeleryTasks,
}
