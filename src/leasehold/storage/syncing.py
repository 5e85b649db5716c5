"""Durability for many at once: one sync serves every commit that was applied before it began.

At `disk`, a committer waits for a sync that covers it: the first to arrive leads one, those who come meanwhile wait
for the next, which one of them leads. At `os`, nobody waits, and a background thread syncs every interval.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from leasehold.errors import LeaseholdError, Unavailable


class Syncer:
    def __init__(self, sync: Callable[[], None], *, grouped: bool, interval: float) -> None:
        self.grouped = grouped
        self.syncs = 0
        self._sync = sync
        #: The newest commit that was written; set under the writer's lock.
        self.applied_to = 0
        self._durable = 0
        self._leading = False
        self._failed: LeaseholdError | None = None
        self._done = threading.Condition()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if not grouped:
            self._thread = threading.Thread(target=self._run, args=(interval,), name="leasehold-sync", daemon=True)
            self._thread.start()

    def applied(self, version: int) -> int:
        """Called under the writer's lock for each commit, in order; returns what to wait for (0: nothing)."""
        self.applied_to = version
        return version if self.grouped else 0

    def wait(self, version: int) -> None:
        """Return once that commit is durable."""
        with self._done:
            while self._durable < version:
                if self._failed is not None:
                    raise Unavailable(f"the commit is not known to be durable: {self._failed}")
                if not self._leading:
                    self._leading = True
                    break
                self._done.wait()
            else:
                return
        self._lead()

    def _lead(self) -> None:
        target = self.applied_to  # everything up to here was written before this sync begins
        failed: LeaseholdError | None = None
        try:
            self._sync()
        except LeaseholdError as exc:
            failed = exc
            raise
        finally:
            with self._done:
                self._leading = False
                self.syncs += 1
                if failed is None:
                    self._durable = target
                else:
                    self._failed = failed
                self._done.notify_all()

    def _run(self, interval: float) -> None:
        synced = 0
        while not self._stopping.wait(interval):
            target = self.applied_to
            if target == synced:
                continue
            try:
                self._sync()
            except LeaseholdError:
                return  # the engine has stopped, and tells every caller
            self.syncs += 1
            synced = target

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
