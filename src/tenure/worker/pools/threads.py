"""A pool of threads: the quickest way to run handlers that wait for others (networks, disks, databases)."""

from __future__ import annotations

import threading
from time import monotonic

from tenure.worker import execution
from tenure.worker.held_claims import Work
from tenure.worker.pools.contract import Site, begin


class ThreadPool:
    def __init__(self, site: Site) -> None:
        self._site = site
        count = site.concurrency
        # One place a thread, so that counting takes no lock.
        self._counts = [0] * count
        self._busy = [0] * count
        self._threads = [
            threading.Thread(target=self._run, args=(index,), name=f"tenure-slot-{index}", daemon=True)
            for index in range(count)
        ]

    @property
    def finished(self) -> tuple[int, int]:
        return sum(self._counts), sum(self._busy)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self, work: Work) -> None:
        if work.current is not None:
            work.current.tell_lost()

    def stop(self, timeout: float) -> bool:
        until = monotonic() + timeout
        for _ in self._threads:
            self._site.backlog.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def kill(self) -> None:
        """Threads cannot be ended; being daemons, they end with the process."""

    def _run(self, index: int) -> None:
        site = self._site
        take, app = site.backlog.get, site.app
        counts, busy = self._counts, self._busy
        while (work := take()) is not None:
            if not work.begin():
                continue
            current = begin(site, work)
            outcome = execution.run(app, current, work.delivery.payload)
            busy[index] += work.stop_clock()
            counts[index] += 1
            site.ended(work, outcome)
            site.freed()
