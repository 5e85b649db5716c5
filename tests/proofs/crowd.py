"""Clients that work without a pause, whatever happens to the server, and record the answers they get.

Each enqueues its own jobs, without idempotency keys, and works on any job it gets. Leases outlast the test: a job that
is leased to no client stays leased, and the drain at the end finds it.
"""

from __future__ import annotations

import collections
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import tenure
from tenure import NewJob
from tenure.api.store import Store
from tenure.errors import OpenError

LEASE = 600.0
PATIENCE = 60.0


class Crowd:
    def __init__(self, open_store: Callable[[], Store], clients: int, seed: int) -> None:
        self._open = open_store
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._made = 0
        #: Acknowledged calls: enqueued payloads by job; payloads of acked jobs; and the retries and releases of each.
        self.added: dict[str, bytes] = {}
        self.done: list[bytes] = []
        self.failures: list[BaseException] = []
        self.calls = 0
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed * 1000 + number), number), daemon=True)
            for number in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, chance: random.Random, number: int) -> None:
        try:
            with self._open() as store:
                queue = store.queue("work")
                while not self._stop.is_set():
                    self._produce(queue, chance)
                    self._consume(queue, chance, number)
        except BaseException as exc:
            self.failures.append(exc)

    def _produce(self, queue: tenure.Queue, chance: random.Random) -> None:
        payloads = [self._payload() for _ in range(chance.choice((1, 1, 2, 5)))]
        # Jobs are nacked often, and none may run out of attempts.
        answers = queue.enqueue_many([NewJob(payload, max_attempts=1000) for payload in payloads])
        with self._lock:
            self.calls += 1
            self.added.update(zip([answer.id for answer in answers], payloads, strict=True))

    def _payload(self) -> bytes:
        with self._lock:
            self._made += 1
            return b"%d" % self._made

    def _consume(self, queue: tenure.Queue, chance: random.Random, number: int) -> None:
        wait = chance.choice((0, 0, 0.05, 0.3))
        claim = queue.claim(limit=chance.choice((1, 2, 4)), lease=LEASE, wait=wait, worker=f"w{number}")
        with self._lock:
            self.calls += 1
        for delivery in claim:
            verb = chance.choice(("ack", "ack", "ack", "ack", "nack", "release"))
            if verb == "ack":
                queue.ack(delivery)
                with self._lock:
                    self.done.append(delivery.payload)
            elif verb == "nack":
                queue.nack(delivery, "again", delay=0)
            else:
                queue.release(delivery)
            with self._lock:
                self.calls += 1
        if claim and chance.random() < 0.1:
            queue.get(claim[0].id)

    def check(self) -> None:
        """Raise the error that ended a client, if any."""
        if self.failures:
            raise AssertionError(f"{len(self.failures)} clients ended: {self.failures[0]!r}") from self.failures[0]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a client hangs"
        self.check()

    def judge(self, store: Store) -> str:
        """Work off the remaining jobs, then compare the clients' answers with the store."""
        queue = store.queue("work")
        while claim := queue.claim(limit=100, lease=LEASE):
            settled = queue.ack_many(claim)
            assert settled.lost == []
            self.done.extend(delivery.payload for delivery in claim)
        counts = queue.counts()
        assert counts.leased == 0, f"{counts.leased} jobs are leased to nobody"
        assert (counts.waiting, counts.dead) == (0, 0)
        twice = [payload for payload, times in collections.Counter(self.done).items() if times > 1]
        assert not twice, f"done twice: {twice[:5]}"
        assert len(set(self.added.values())) == len(self.added), "a job is there twice"
        lost = set(self.added.values()) - set(self.done)
        assert not lost, f"{len(lost)} acknowledged jobs were never done"
        extra = set(self.done) - set(self.added.values())
        assert not extra, f"{len(extra)} jobs were done whose enqueue was never acknowledged"
        assert counts.enqueued == len(self.added)
        report = store.check(specification=True)
        assert report.clean, report.findings
        return f"{len(self.added)} jobs by {self.calls} calls"


def opened(url: str, alive: Callable[[], bool] = lambda: True, timeout: float | None = 30.0) -> Store:
    """Open a client as soon as the server runs: `open` itself tries once. `timeout`: how long requests are retried, by a
    client that has this setting.
    """
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return tenure.open(url, sweep=False, **options)
        except OpenError:
            if time.monotonic() > until or not alive():
                raise
            time.sleep(0.02)


def wait_until(condition: Callable[[], bool], crowd: Crowd, seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not condition():
        crowd.check()
        assert time.monotonic() < until, "the condition did not become true in time"
        time.sleep(0.01)
