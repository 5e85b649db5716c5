"""A heartbeat: extends the leases of a batch while it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tenure.api.claim import Claim
from tenure.api.queue import Queue
from tenure.errors import LeaseLost, TenureError


class Heartbeat:
    """One thread that extends the claims it holds, every third of the lease, until they are let go."""

    def __init__(self, queue: Queue, lease: float) -> None:
        self._queue, self._lease = queue, lease
        self._held: dict[str, str] = {}  # a receipt of each lease, by the lease
        self._lost: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tenure-heartbeat", daemon=True)
        self._thread.start()

    def hold(self, claim: Claim) -> None:
        if claim and claim.id is not None:
            with self._lock:
                self._held[claim.id] = claim[0].receipt

    def let_go(self, claim: Claim | None = None) -> None:
        """Of one claim, or of all."""
        with self._lock:
            if claim is None:
                self._held.clear()
            else:
                self._held.pop(claim.id or "", None)

    @contextmanager
    def holding(self, claim: Claim) -> Iterator[None]:
        self.hold(claim)
        try:
            yield
        finally:
            self.let_go(claim)

    def lost(self, claim: Claim) -> bool:
        """Whether the lease was found expired: another worker may have the claim's open jobs."""
        return claim.id in self._lost

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stopping.wait(self._lease / 3):
            with self._lock:
                held = dict(self._held)
            for lease, receipt in held.items():
                try:
                    self._queue.extend(receipt, self._lease)
                except LeaseLost:
                    with self._lock:
                        self._lost.add(lease)
                        self._held.pop(lease, None)
                except TenureError:
                    continue  # the store may be back by the next beat; if not, the lease expires, which `lost` reports
