"""What Spark says of its streams, to Prometheus and the log: rows, lag and how long batches take.

spark.streams.addListener(tenure.spark.StreamListener())
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from pyspark.sql.streaming.listener import StreamingQueryListener

_LABELS = ("query",)
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)


class StreamListener(StreamingQueryListener):
    """Streams by their name, or their id where they have none.

    `lag` is what a source says is left to read, where it does.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__()
        self._log = structlog.get_logger("tenure.spark")
        prefix = "tenure_stream"
        self._rows = Counter(f"{prefix}_rows", "Rows that streams have read", _LABELS, registry=registry)
        self._batches = Counter(f"{prefix}_batches", "Batches that streams have finished", _LABELS, registry=registry)
        self._seconds = Histogram(
            f"{prefix}_batch_seconds", "How long a batch took", _LABELS, buckets=_BUCKETS, registry=registry
        )
        self._lag = Gauge(f"{prefix}_lag", "Events or jobs that are left to read", _LABELS, registry=registry)
        self._rate = Gauge(f"{prefix}_rows_per_second", "Rows a second of the last batch", _LABELS, registry=registry)
        self._running = Gauge(f"{prefix}_running", "Streams that run now", registry=registry)
        self._failed = Counter(f"{prefix}_failures", "Streams that ended with an error", registry=registry)
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: Any) -> None:
        name = self._names[str(event.id)] = event.name or str(event.id)
        self._running.inc()
        self._log.info("stream_started", query=name, run=str(event.runId))

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        name = progress.name or str(progress.id)
        seconds = (progress.batchDuration or 0) / 1000
        self._rows.labels(name).inc(progress.numInputRows)
        self._batches.labels(name).inc()
        self._seconds.labels(name).observe(seconds)
        rate = progress.processedRowsPerSecond
        if rate == rate:  # NaN of an empty batch
            self._rate.labels(name).set(rate)
        lag = lag_of(progress.sources)
        if lag is not None:
            self._lag.labels(name).set(lag)
        self._log.info(
            "stream_batch", query=name, batch=progress.batchId, rows=progress.numInputRows, seconds=seconds, lag=lag
        )

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to do: what was said last still holds."""

    def onQueryTerminated(self, event: Any) -> None:
        name = self._names.pop(str(event.id), str(event.id))
        self._running.dec()
        if event.exception:
            self._failed.inc()
            self._log.error("stream_failed", query=name, error=str(event.exception)[:2_000])
        else:
            self._log.info("stream_ended", query=name)


def lag_of(sources: Any) -> int | None:
    """Events behind, over all sources whose offsets count them (`{shard: {commit, number}}`); None if none does."""
    lag: int | None = None
    for source in sources:
        with contextlib.suppress(TypeError, ValueError, AttributeError, KeyError):
            end, latest = json.loads(source.endOffset), json.loads(source.latestOffset)
            behind = sum(place["number"] - end[shard]["number"] for shard, place in latest.items())
            lag = max(behind, 0) + (lag or 0)
    return lag
