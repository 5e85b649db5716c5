"""A pool of threads: the fastest way to run handlers that wait for networks, disks or databases."""

from __future__ import annotations

import functools
import threading
from time import monotonic

from tenure.worker import execution
from tenure.worker.held_claims import HeldJob
from tenure.worker.pools.contract import PoolHost, run_slot, start_job, whole_payload


class ThreadPool:
    def __init__(self, host: PoolHost) -> None:
        self._host = host
        count = host.concurrency
        # One entry for each thread, so that counting needs no lock.
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

    def end(self, job: HeldJob) -> None:
        if job.current is not None:
            job.current.mark_lost()

    def stop(self, timeout: float) -> bool:
        until = monotonic() + timeout
        for _ in self._threads:
            self._host.backlog.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def kill(self) -> None:
        """Do nothing: threads cannot be ended; as daemons, they end with the process."""

    def _run(self, index: int) -> None:
        run_slot(self._host, f"thread {index}", functools.partial(self._run_job, index))

    def _run_job(self, index: int, job: HeldJob) -> None:
        host = self._host
        try:
            current = start_job(host, job)
            outcome = execution.run(host.app, current, whole_payload(job))
        finally:
            self._busy[index] += job.stop_clock()
            self._counts[index] += 1
        host.job_ended(job, outcome)
        host.slot_freed()
