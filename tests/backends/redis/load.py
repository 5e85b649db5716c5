"""Clients that enqueue, claim and ack until told to stop, and remember what they were told."""

from __future__ import annotations

import threading
from collections import Counter

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.errors import TenureError
from tenure.testing.conformance.world import assert_sound


class Load:
    def __init__(self, store: Store, threads: int = 3, queues: tuple[str, ...] = ("work",)) -> None:
        self._store = store
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._queues = [store.queue(name) for name in queues]
        #: Ids acknowledged by enqueue, and by ack; deliveries by (id, token).
        self.enqueued: set[str] = set()
        self.acked: set[str] = set()
        self.deliveries: Counter[tuple[str, int]] = Counter()
        #: Verbs whose answer never came: what they did is not known.
        self.unknown = 0
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        turn = number
        while not self._stop.is_set():
            queue = self._queues[turn % len(self._queues)]
            turn += 1
            try:
                self._life(queue, turn)
            except TenureError:
                with self._lock:
                    self.unknown += 1

    def _life(self, queue: Queue, turn: int) -> None:
        added = [e.id for e in queue.enqueue_many([b"%d" % n for n in range(1 + turn % 7)])]
        with self._lock:
            self.enqueued.update(added)
        claim = queue.claim(limit=1 + turn % 5, lease=300)
        with self._lock:
            self.deliveries.update((d.id, d.token) for d in claim)
        if turn % 4 == 0 and claim:
            queue.release(claim[0])
        done = queue.ack_many(claim).done
        with self._lock:
            self.acked.update(done)

    @property
    def total(self) -> int:
        return len(self.enqueued)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs"

    def there(self) -> set[str]:
        there: set[str] = set()
        for queue in self._queues:
            for state in ("ready", "scheduled", "leased", "done", "dead"):
                page = queue.list(state, limit=1000)
                there.update(job.id for job in page)
                while page.cursor is not None:
                    page = queue.list(state, limit=1000, cursor=page.cursor)
                    there.update(job.id for job in page)
        return there

    def assert_nothing_lost(self) -> None:
        """Every acknowledged job is there or was acked, no acked one is; no delivery was given twice."""
        there = self.there()
        assert not self.acked & there, "an acked job is there again"
        lost = self.enqueued - self.acked - there
        if not self.unknown:
            assert not lost, f"{len(lost)} acknowledged jobs are lost"
        else:  # an ack whose answer never came may have been done
            delivered = {job for job, _ in self.deliveries}
            assert lost <= delivered, "acknowledged jobs are lost that nobody was given"
        assert max(self.deliveries.values(), default=1) == 1, "a delivery was given twice"
        assert_sound(self._store)
