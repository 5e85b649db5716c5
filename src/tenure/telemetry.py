"""Metrics and log lines of the API: one timed span for each verb, one log line for each event.

    with span("claim") as span:      tenure_verb_seconds{verb}            duration, as a histogram
        …                            tenure_errors_total{verb,code}       exceptions raised, by `errors.*.code`
        span.jobs(n)                 tenure_jobs_total{verb}              jobs that the verb moved
    telemetry.retried("conflict")    tenure_transaction_retries_total{kind}, tenure_conflicts_total

No metric has a tenant or queue label: users make thousands of queues, and a series for each verb of each would overload
a scraper. `queue.counts()` has the numbers of one queue.

A span wraps every verb, so it must be cheap. prometheus-client's Histogram takes 1.4 µs an observation and its Counter
0.4 µs; a whole span here takes about 1.1 µs. prometheus-client reads the meters when it collects.

prometheus-client (30 ms) and structlog are imported when first needed. Only what serves metrics imports
prometheus-client: Tenure's own servers, or the user's program, whose import is noticed (`register_collectors`).

Log lines go to the standard library's logger "tenure"; the application chooses its levels and handlers. Events of jobs
are logged at DEBUG, opening, closing and administration at INFO. By default only warnings are shown.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import accumulate
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tenure.clock import SystemClock
from tenure.errors import TenureError
from tenure.model.names import QueueName
from tenure.process import Layer, renewed_after_fork

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from structlog.stdlib import BoundLogger

#: Bucket bounds in seconds, from 10 µs (`get` on a memory store) to 10 s (a claim that waits), in steps of 1, 2.5 and
#: 5.
BOUNDS = (*(step * 10.0**power for power in range(-5, 1) for step in (1, 2.5, 5)), 10.0)

_clock = SystemClock()
_standard = logging.getLogger("tenure")
wanted = _standard.isEnabledFor


#: Runs recorded before a thread adds them to the counts.
COUNT_EVERY = 256


class Meter:
    """The numbers of one verb.

    A verb never waits here: it appends its run to `pending` without a lock. The thread that finds many pending runs
    counts them, unless another thread is counting. An exception from a tracing function can leave the lock locked; then
    the numbers are late, and nothing else fails.
    """

    __slots__ = ("counts", "errors", "jobs", "lock", "pending", "seconds")

    def __init__(self) -> None:
        #: Reentrant: a signal handler may run a verb while this thread counts.
        self.lock = threading.RLock()
        #: (seconds, jobs, error code) of the runs not yet counted.
        self.pending: deque[tuple[float, int, str | None]] = deque(maxlen=64 * COUNT_EVERY)
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        self.jobs = 0
        self.errors: dict[str, int] = {}

    def record(self, began: float, jobs: int, error: str | None = None) -> None:
        """Record a run that began at `began` (by `perf_counter`) and moved `jobs` jobs; `error` is its error code, if
        it raised.
        """
        pending = self.pending
        pending.append((perf_counter() - began, jobs, error))
        if len(pending) >= COUNT_EVERY:
            self.count()

    def record_failure(self, began: float, kind: type[BaseException]) -> None:
        """Record a run that began at `began` and raised an exception of this type."""
        self.record(began, 0, kind.code if issubclass(kind, TenureError) else "unexpected")

    def count(self, patience: float = 0) -> None:
        """Count the pending runs. Give up if another thread holds the lock for longer than `patience` seconds."""
        if not self.lock.acquire(timeout=patience):
            return
        try:
            self._count()
        finally:
            self.lock.release()

    def _count(self) -> None:
        counts, take, total, moved = self.counts, self.pending.popleft, 0.0, 0
        try:
            while True:
                seconds, jobs, error = take()
                counts[bisect_left(BOUNDS, seconds)] += 1
                total += seconds
                moved += jobs
                if error is not None:
                    self.errors[error] = self.errors.get(error, 0) + 1
        except IndexError:
            pass  # all are counted
        finally:
            self.seconds += total
            self.jobs += moved


class Span:
    """One run of a verb, timed from `__enter__` to `__exit__`, and recorded whether it succeeds or raises."""

    __slots__ = ("_jobs", "_meter", "_start")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._jobs = 0

    def jobs(self, count: int) -> None:
        """Set how many jobs the verb moved."""
        self._jobs = count

    def __enter__(self) -> Span:
        self._start = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._meter.record(self._start, self._jobs)
        else:
            self._meter.record_failure(self._start, kind)


class _ByVerb(dict[str, Meter]):
    """Meters by verb, each created on first use."""

    def __missing__(self, verb: str) -> Meter:
        return self.setdefault(verb, Meter())


class MetricCollector(ABC):
    """A prometheus-client collector.

    A subclass returns empty metric families from `_families` and fills them in `collect`.
    """

    #: The collectors to register as soon as this process has imported prometheus-client.
    unregistered: ClassVar[list[MetricCollector]] = []

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known = False

    def register(self) -> None:
        """Register with prometheus-client's default registry, once: now, or when it is imported."""
        with self._lock:
            if not self._known:
                self._known = True
                self.unregistered.append(self)
        register_collectors()

    def describe(self) -> Iterator[Metric]:
        """Return the empty families, which name the metrics. prometheus-client calls it at registration."""
        return iter(self._families())

    @staticmethod
    @abstractmethod
    def _families() -> tuple[Any, ...]:
        """Return empty metric families."""


class Meters(MetricCollector):
    """The meters of this process, shared by all its stores (`METERS`)."""

    def __init__(self) -> None:
        super().__init__()
        #: Held while collectors are registered.
        self.registering = threading.RLock()
        self.by_verb = _ByVerb()
        self._retries: dict[str, int] = {}

    def retried(self, kind: str) -> None:
        with self._lock:
            self._retries[kind] = self._retries.get(kind, 0) + 1

    def collect(self) -> Iterator[Metric]:
        seconds, jobs, errors, retries, conflicts = families = self._families()
        for verb, meter in sorted(self.by_verb.copy().items()):
            meter.count(patience=1)
            seconds.add_metric([verb], histogram_buckets(list(meter.counts)), meter.seconds)
            if meter.jobs:
                jobs.add_metric([verb], meter.jobs)
            for code, count in sorted(meter.errors.copy().items()):
                errors.add_metric([verb, code], count)
        with self._lock:
            retried = sorted(self._retries.items())
        for kind, count in retried:
            retries.add_metric([kind], count)
        conflicts.add_metric([], dict(retried).get("conflict", 0))
        return iter(families)

    def renew_after_fork(self) -> None:
        """Replace the locks: one that another thread of the parent held would never be released in the child."""
        self._lock = threading.RLock()
        self.registering = threading.RLock()
        for meter in self.by_verb.values():
            meter.lock = threading.RLock()

    @staticmethod
    def _families() -> tuple[Any, Any, Any, Any, Any]:
        from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

        return (
            HistogramMetricFamily("tenure_verb_seconds", "How long a verb took, waiting included.", labels=["verb"]),
            CounterMetricFamily("tenure_jobs", "Jobs a verb moved.", labels=["verb"]),
            CounterMetricFamily("tenure_errors", "Verbs that raised, by the error's code.", labels=["verb", "code"]),
            CounterMetricFamily("tenure_transaction_retries", "Transactions that ran again.", labels=["kind"]),
            CounterMetricFamily("tenure_conflicts", "Transactions that met another's write.", labels=[]),
        )


def register_collectors(load: bool = False) -> None:
    """Register what waits for prometheus-client, if it is imported. `load`: import it; whoever serves metrics does.

    Stores call this when they open and with each sweep, so a program that imports prometheus-client later has the
    metrics, all counted since its start, within a second.
    """
    waiting = MetricCollector.unregistered
    if waiting and (load or "prometheus_client" in sys.modules):
        from prometheus_client import REGISTRY

        with METERS.registering:
            while waiting:
                REGISTRY.register(waiting.pop(0))  # type: ignore[arg-type]  # subclasses have `collect`


def metrics_page() -> tuple[str, bytes]:
    """The content type and the text of all metrics of this process, as Prometheus reads them."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    register_collectors(load=True)
    return CONTENT_TYPE_LATEST, generate_latest()


METERS = Meters()
_by_verb = METERS.by_verb
renewed_after_fork(METERS, Layer.TELEMETRY)


def histogram_buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Return the counts as prometheus-client expects them: each bound with the cumulative count up to it."""
    return list(zip([*(f"{bound:.6g}" for bound in BOUNDS), "+Inf"], accumulate(counts), strict=True))


class Telemetry:
    """The telemetry of one store: its log lines carry the store's URL, its numbers go to the process's meters."""

    def __init__(self, url: str) -> None:
        self._url = url
        METERS.register()

    # ── metrics ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def span(verb: str) -> Span:
        return Span(_by_verb[verb])

    @staticmethod
    def meter(verb: str) -> Meter:
        """Return the meter of a verb too fast for a span: the caller takes the time and calls `record` or
        `record_failure`.
        """
        return _by_verb[verb]

    def spans(self, name: QueueName) -> Callable[[str], Span]:
        """Return the spans for one queue's verbs: the same for every queue, because queues are no label."""
        return self.span

    @staticmethod
    def retried(kind: str) -> None:
        """Count a transaction that runs again; `kind` is `conflict` or the engine's own word.

        Passed to the engine as a callback.
        """
        METERS.retried(kind)

    # ── log lines ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def debugging(self) -> bool:
        """Whether DEBUG lines are logged: check it before gathering their facts."""
        return wanted(logging.DEBUG)

    def debug(self, event: str, **facts: object) -> None:
        if _standard.isEnabledFor(logging.DEBUG):
            _logger().debug(event, url=self._url, **facts)

    def info(self, event: str, **facts: object) -> None:
        if _standard.isEnabledFor(logging.INFO):
            _logger().info(event, url=self._url, **facts)

    def warning(self, event: str, **facts: object) -> None:
        if _standard.isEnabledFor(logging.WARNING):
            _logger().warning(event, url=self._url, **facts)


class _Line(dict[str, Any]):
    """An event's facts: a dict for structured formatters, a line of `key=value` for plain ones."""

    def __str__(self) -> str:
        facts = "".join(f" {key}={value}" for key, value in self.items() if key not in ("event", "exc_info"))
        return f"{self.get('event')}{facts}"


def _to_standard(logger: Any, method: str, event: Any) -> tuple[tuple[_Line], dict[str, Any]]:
    """Pass the event to the standard library, marked as `ProcessorFormatter` expects. The last structlog processor."""
    # The error is given twice: plain formatters read it from the record, structlog's from the facts.
    return (_Line(event),), {"exc_info": event.get("exc_info"), "extra": {"_logger": logger, "_name": method}}


_bound: BoundLogger | None = None


def _logger() -> BoundLogger:
    """Return the structlog logger, created with the first line and bound once: its lazy proxy costs 5 µs a call.

    The processors are given here: structlog's global configuration belongs to the application.
    """
    global _bound
    if _bound is None:
        _bound = _structured(_standard)
    return _bound


def _structured(standard: logging.Logger) -> BoundLogger:
    import structlog

    wrapped = structlog.wrap_logger(
        standard,
        processors=[structlog.contextvars.merge_contextvars, _to_standard],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    bound: BoundLogger = wrapped.bind()
    return bound


def warn(event: str, error: BaseException | None = None, **facts: object) -> None:
    """Log a warning without a store's URL, with the error's traceback."""
    if _standard.isEnabledFor(logging.WARNING):
        if error is not None:
            facts["exc_info"] = error
        _logger().warning(event, **facts)


def inform(event: str, **facts: object) -> None:
    """Log an INFO line without a store's URL."""
    if _standard.isEnabledFor(logging.INFO):
        _logger().info(event, **facts)


_audit_log = logging.getLogger("tenure.audit")
_audit_log.setLevel(logging.INFO)  # independent of the level of the logger "tenure"
_bound_audit: BoundLogger | None = None


def audit(event: str, **facts: object) -> None:
    """Write a line to the audit log (`protocol.audit`), which is the logger `tenure.audit`."""
    global _bound_audit
    if _bound_audit is None:
        _bound_audit = _structured(_audit_log)
    _bound_audit.info(event, **facts)


def inform_request(event: str, **facts: object) -> None:
    """Log an INFO line for a request, directly to our own handler if no other handler or filter is installed.

    Through structlog and `logging` a line takes as long as a request, and writing to a file while a store syncs may
    delay the request. Our handler takes a line in 2 µs and writes it later. If the application installed handlers or
    filters of its own, they get the record as usual.
    """
    if not _standard.isEnabledFor(logging.INFO):
        return
    handler = _json_handler
    root = logging.root
    if (
        handler is not None
        and root.handlers == [handler]
        and not (_standard.handlers or _standard.filters or handler.filters)
        and _standard.propagate
    ):
        handler.queue_line(_clock.wall_ms(), {"event": event, **facts})
    else:
        _logger().info(event, **facts)


# ── logging of the command line ──────────────────────────────────────────────────────────────────────────────────────


class _Handler(logging.StreamHandler[Any]):
    """The handler that `configure_logging` installs.

    Its own type lets a second call replace it and leave others alone.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._queued: deque[tuple[int, dict[str, object]]] = deque()
        self._has_lines = threading.Event()
        self._writer: threading.Thread | None = None

    def queue_line(self, wall_ms: int, facts: dict[str, object]) -> None:
        """Queue a line, which a background thread writes as JSON together with others within `_WRITE_DELAY_S`."""
        self._queued.append((wall_ms, facts))
        if not self._has_lines.is_set():
            self._has_lines.set()
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_queued, name="tenure-log", daemon=True)
                self._writer.start()

    def _write_queued(self) -> None:
        while self._has_lines.wait():
            threading.Event().wait(_WRITE_DELAY_S)
            self._has_lines.clear()
            self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self.flush()  # keep the order: queued lines come first
        super().emit(record)

    def flush(self) -> None:
        """Write the queued lines. Also called at exit.

        Errors of the stream are ignored: logging must not stop the program.
        """
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError, ValueError):
            lines = []
            while self._queued:
                wall_ms, facts = self._queued.popleft()
                facts |= {"timestamp": _iso_time(wall_ms / 1000), "level": "info"}
                lines.append(msgspec.json.encode(facts).decode() + "\n")
            if lines:
                self.stream.write("".join(lines))
            super().flush()


#: Seconds for which request lines are gathered before they are written.
_WRITE_DELAY_S = 0.05
#: The installed handler if it writes JSON, so that `inform_request` can bypass the logging machinery.
_json_handler: _Handler | None = None


def configure_logging(level: str = "warning", format: str = "auto") -> None:  # noqa: A002 - the setting's name
    """Log to stderr: lines for people on a terminal, JSON otherwise.

    For programs that own the process; never called by the library.
    """
    import structlog

    for_terminal = format == "console" or (format == "auto" and sys.stderr.isatty())
    render: Any
    if for_terminal:
        render = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    else:
        render = structlog.processors.JSONRenderer(default=str)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    processors = [_add_timestamp, remove_meta, render]
    if not for_terminal:
        processors.insert(2, structlog.processors.format_exc_info)
    global _json_handler
    handler = _Handler(sys.stderr)
    _json_handler = None if for_terminal else handler
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=processors,
            # Lines logged through the standard library also carry what a worker has bound (job and task).
            foreign_pre_chain=[structlog.contextvars.merge_contextvars, structlog.stdlib.add_logger_name],
        )
    )
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    _standard.setLevel(level.upper())


def _add_timestamp(logger: Any, method: str, event: Any) -> Any:
    record = event["_record"]
    event["timestamp"] = _iso_time(record.created)
    event["level"] = record.levelname.lower()
    return event


def _iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
