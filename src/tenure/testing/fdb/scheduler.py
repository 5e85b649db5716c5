"""A seeded scheduler: threads run one at a time, and switch where a client would wait for the network.

    scheduler = Scheduler(seed, cluster)
    scheduler.run([worker, worker, worker])      # the same seed, the same order, the same faults

A thread yields before each step of the cluster (`Cluster.on_step`), and nowhere else. The next thread is drawn from
those that have not ended. Code under test must not wait for another of these threads in any other way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random

from tenure.testing.fdb.cluster import Cluster


class Scheduler:
    def __init__(self, seed: int, cluster: Cluster) -> None:
        self._random = Random(seed)
        self._cluster = cluster
        self._turns: dict[int, threading.Semaphore] = {}
        self._current = 0
        self._errors: list[BaseException] = []
        self._ended = threading.Semaphore(0)
        #: The number of steps so far.
        self.steps = 0

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Run all threads to their end. Raises the first error of any of them."""
        self._turns = {number: threading.Semaphore(0) for number in range(len(works))}
        threads = [
            threading.Thread(target=self._one, args=(number, work), daemon=True) for number, work in enumerate(works)
        ]
        before, self._cluster.on_step = self._cluster.on_step, self._step
        try:
            for thread in threads:
                thread.start()
            self._next()
            self._ended.acquire()
        finally:
            self._cluster.on_step = before
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _one(self, number: int, work: Callable[[], None]) -> None:
        self._turns[number].acquire()
        try:
            work()
        except BaseException as error:  # `run` raises it in the test's thread
            self._errors.append(error)
        finally:
            del self._turns[number]
            if self._turns:
                self._next()
            else:
                self._ended.release()

    def _next(self) -> None:
        self._current = self._random.choice(sorted(self._turns))
        self._turns[self._current].release()

    def _step(self, step: str) -> None:
        own = self._current
        self.steps += 1
        self._current = self._random.choice(sorted(self._turns))
        if self._current != own:
            self._turns[self._current].release()
            self._turns[own].acquire()
