"""The worker's Prometheus metrics, by task.

    tenure_task_seconds{task}               how long handlers took, as a histogram
    tenure_tasks_total{task,outcome}        done, retried, dead, released, lost
    tenure_heartbeats_late_total            late heartbeats: a handler held the GIL, or the machine was suspended

Tasks are a label, unlike queues: a program has a limited number of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tenure.telemetry import BOUNDS, MetricCollector, histogram_buckets

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class TaskMeter:
    """The numbers of one task, written by the settler's thread."""

    __slots__ = ("counts", "outcomes", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        self.outcomes: dict[str, int] = {}


class TaskMeters(MetricCollector):
    """The meters of all tasks of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._by_task: dict[str, TaskMeter] = {}
        self.late = 0

    def record(self, task: str, outcome: str, seconds: float | None) -> None:
        with self._lock:
            meter = self._by_task.get(task)
            if meter is None:
                meter = self._by_task[task] = TaskMeter()
            meter.outcomes[outcome] = meter.outcomes.get(outcome, 0) + 1
            if seconds is not None:
                meter.counts[bisect_left(BOUNDS, seconds)] += 1
                meter.seconds += seconds

    def collect(self) -> Iterator[Metric]:
        seconds, outcomes, late = families = self._families()
        with self._lock:
            for task, meter in sorted(self._by_task.items()):
                seconds.add_metric([task], histogram_buckets(meter.counts), meter.seconds)
                for outcome, count in sorted(meter.outcomes.items()):
                    outcomes.add_metric([task, outcome], count)
            late.add_metric([], self.late)
        return iter(families)

    @staticmethod
    def _families() -> tuple[Any, Any, Any]:
        from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

        return (
            HistogramMetricFamily("tenure_task_seconds", "How long a task's handler took.", labels=["task"]),
            CounterMetricFamily("tenure_tasks", "Jobs of a task, by outcome.", labels=["task", "outcome"]),
            CounterMetricFamily("tenure_heartbeats_late", "Heartbeats that came late.", labels=[]),
        )


METERS = TaskMeters()
