"""Clients that work without a pause, whatever happens to the server, and remember what they were told.

Each puts in jobs of its own, with no idempotency key to lean on, and does whatever jobs it gets. Leases outlast the test:
a claim that is given to nobody stays given, and is found by the drain at the end.
"""

from __future__ import annotations

import collections
import random
import threading
import time
from collections.abc import Callable

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
        #: What was acknowledged: payloads put in, by job; payloads of jobs acked; and how often each was retried or given back.
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
        # Many are nacked often, and none shall die of it.
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
        """Raises what ended a client: nothing may."""
        if self.failures:
            raise AssertionError(f"{len(self.failures)} clients ended: {self.failures[0]!r}") from self.failures[0]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a client hangs"
        self.check()

    def judge(self, store: Store) -> str:
        """Do what is left, then compare what the clients were told with what is there."""
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
        assert not extra, f"{len(extra)} jobs were done that nobody was told of"
        assert counts.enqueued == len(self.added)
        report = store.check(specification=True)
        assert report.clean, report.findings
        return f"{len(self.added)} jobs by {self.calls} calls"


def opened(url: str, alive: Callable[[], bool] = lambda: True, timeout: float = 30.0) -> Store:
    """A client, as soon as the server is there: opening is tried once, and not for long. `timeout`: how long it asks again."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return tenure.open(url, sweep=False, timeout=timeout)
        except OpenError:
            if time.monotonic() > until or not alive():
                raise
            time.sleep(0.02)


def wait_until(condition: Callable[[], bool], crowd: Crowd, seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not condition():
        crowd.check()
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.01)
