"""Metrics of queues, for Prometheus.

    tenure_queue_jobs{tenant,queue,state}           jobs, by state: blocked, waiting, leased, done, dead
    tenure_queue_oldest_age_seconds{tenant,queue}   how long the oldest ready job has been ready
    tenure_queues_omitted                           queues that are not shown

Users make thousands of queues: only the QUEUES busiest are shown, by waiting, leased and dead jobs. The values are the
store's own counters, read from a snapshot at most once in MAX_AGE_MS, however many scrapers ask.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tenure.backends.embedded import EmbeddedBackend
from tenure.clock import Clock, SystemClock
from tenure.contract.backend import Backend
from tenure.contract.queue_infos import all_queues
from tenure.errors import TenureError
from tenure.model.job import QueueDepth
from tenure.telemetry import MetricCollector, warn

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

QUEUES = 200
MAX_AGE_MS = 5_000


class QueueMetrics(MetricCollector):
    """The collector of this process, shared by all its servers (`QUEUE_METRICS`); each adds its backend while it
    serves.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._backends: list[Backend] = []
        self._reading = threading.Lock()
        self._read_ms: int | None = None
        self._depths: list[QueueDepth] = []
        self._omitted = 0

    def add(self, backend: Backend) -> None:
        self.register()
        with self._lock:
            self._backends.append(backend)
            self._read_ms = None

    def remove(self, backend: Backend) -> None:
        with self._lock:
            self._backends.remove(backend)
            self._read_ms = None

    def collect(self) -> Iterator[Metric]:
        jobs, ages, omitted = families = self._families()
        with self._reading:
            self._refresh()
            depths, left_out = self._depths, self._omitted
        for depth in depths:
            for state in ("blocked", "waiting", "leased", "done", "dead"):
                jobs.add_metric([depth.tenant, depth.queue, state], getattr(depth, state))
            if depth.oldest_age_ms is not None:
                ages.add_metric([depth.tenant, depth.queue], depth.oldest_age_ms / 1000)
        omitted.add_metric([], left_out)
        return iter(families)

    def _refresh(self) -> None:
        """Read the counters again if they are too old. Requires: `_reading` is held."""
        now = self._clock.steady_ms()
        if self._read_ms is not None and now - self._read_ms < MAX_AGE_MS:
            return
        self._read_ms = now
        self._depths, self._omitted = [], 0
        with self._lock:
            backends = list(self._backends)
        for backend in backends:
            try:
                depths, omitted = depths_of(backend, QUEUES)
            except TenureError as exc:  # the other metrics are still reported
                warn("queue_metrics_failed", code=exc.code)
                continue
            self._depths += depths
            self._omitted += omitted

    @staticmethod
    def _families() -> tuple[Any, Any, Any]:
        from prometheus_client.metrics_core import GaugeMetricFamily

        return (
            GaugeMetricFamily("tenure_queue_jobs", "Jobs of a queue, by state.", labels=["tenant", "queue", "state"]),
            GaugeMetricFamily(
                "tenure_queue_oldest_age_seconds",
                "How long the oldest ready job has been ready.",
                labels=["tenant", "queue"],
            ),
            GaugeMetricFamily("tenure_queues_omitted", "Queues that are not shown.", labels=[]),
        )


def depths_of(backend: Backend, limit: int) -> tuple[Sequence[QueueDepth], int]:
    """Return the busiest queues, and how many others there are. A backend of another process does not report ages."""
    if isinstance(backend, EmbeddedBackend):
        return backend.depths(limit)
    infos = sorted(
        all_queues(backend, None), key=lambda info: -(info.counts.waiting + info.counts.leased + info.counts.dead)
    )
    depths = [
        QueueDepth(
            tenant=info.tenant,
            queue=info.queue,
            blocked=info.counts.blocked,
            waiting=info.counts.waiting,
            leased=info.counts.leased,
            done=info.counts.done,
            dead=info.counts.dead,
            oldest_age_ms=None,
        )
        for info in infos[:limit]
    ]
    return depths, max(0, len(infos) - limit)


QUEUE_METRICS = QueueMetrics()
