"""What the façade tells: one measured span a verb, one line of log for what happened.

    with span("claim") as span:      tenure_verb_seconds{verb}            how long, as a histogram
        …                            tenure_errors_total{verb,code}       what it raised, by `errors.*.code`
        span.jobs(n)                 tenure_jobs_total{verb}              how many jobs it moved
    telemetry.retried("conflict")    tenure_transaction_retries_total{kind}, tenure_conflicts_total

No metric has a tenant or queue label: users make queues by the thousand, and a series for each verb of each would
cost a scraper more than it tells; `queue.counts()` answers for a single one.

A span wraps every verb, so it has to be nearly free. prometheus-client's own Histogram takes 1.4 µs an observation and
its Counter 0.4, the whole span here about 1.1; the meters are handed to prometheus-client when it collects. Like
the drivers, prometheus-client and structlog are loaded when they are first needed, which keeps `import tenure` quick.

Logs go to the standard library's logger "tenure", whose levels and handlers are the application's to choose: job lines
at DEBUG, the store's life and administration at INFO. Untouched, it shows warnings and nothing else.
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
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.clock import SystemClock
from tenure.errors import TenureError
from tenure.model.names import QueueName
from tenure.process import Layer, renewed_after_fork

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from structlog.stdlib import BoundLogger

#: Seconds, from 10 µs (a memory store's get) to 10 s (a claim that waits), in steps of 1, 2.5 and 5.
BOUNDS = (*(step * 10.0**power for power in range(-5, 1) for step in (1, 2.5, 5)), 10.0)

_clock = SystemClock()
_standard = logging.getLogger("tenure")
wanted = _standard.isEnabledFor


#: Runs that are noted before they are counted.
NOTED = 256


class Meter:
    """The numbers of one verb.

    No verb waits here: a run is noted in one step, without a lock, and whoever finds many notes counts them, unless
    another thread does so already. An exception that a tracing function raises can leave the lock locked; then numbers
    are late, and nothing else happens.
    """

    __slots__ = ("counts", "errors", "jobs", "lock", "noted", "seconds")

    def __init__(self) -> None:
        #: Reentrant: a signal handler may run a verb while this thread counts.
        self.lock = threading.RLock()
        #: (seconds, jobs, error's code) of runs.
        self.noted: deque[tuple[float, int, str | None]] = deque(maxlen=64 * NOTED)
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        self.jobs = 0
        self.errors: dict[str, int] = {}

    def did(self, began: float, jobs: int, error: str | None = None) -> None:
        """A run that began then (by `perf_counter`) moved so many jobs; `error` is the code of what ended it."""
        noted = self.noted
        noted.append((perf_counter() - began, jobs, error))
        if len(noted) >= NOTED:
            self.count()

    def failed(self, began: float, kind: type[BaseException]) -> None:
        """A run that began then was ended by this kind of exception."""
        self.did(began, 0, kind.code if issubclass(kind, TenureError) else "unexpected")

    def count(self, patience: float = 0) -> None:
        """Bring the numbers up to date; give up if another thread has the lock for longer than `patience`, seconds."""
        if not self.lock.acquire(timeout=patience):
            return
        try:
            self._count()
        finally:
            self.lock.release()

    def _count(self) -> None:
        counts, take = self.counts, self.noted.popleft
        with contextlib.suppress(IndexError):
            while True:
                seconds, jobs, error = take()
                counts[bisect_left(BOUNDS, seconds)] += 1
                self.seconds += seconds
                self.jobs += jobs
                if error is not None:
                    self.errors[error] = self.errors.get(error, 0) + 1


class Span:
    """One run of a verb: timed from `with` to its end, counted whether it succeeds or raises."""

    __slots__ = ("_jobs", "_meter", "_start")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._jobs = 0

    def jobs(self, count: int) -> None:
        """How many jobs the verb moved."""
        self._jobs = count

    def __enter__(self) -> Span:
        self._start = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._meter.did(self._start, self._jobs)
        else:
            self._meter.failed(self._start, kind)


class _ByVerb(dict[str, Meter]):
    """A verb's meter, made when it is first asked for."""

    def __missing__(self, verb: str) -> Meter:
        return self.setdefault(verb, Meter())


class Collected(ABC):
    """A collector of prometheus-client's: it has `_families`, empty, and fills them in `collect`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._registered = False

    def register(self) -> None:
        """With the registry every exporter serves by default; once."""
        if self._registered:
            return
        from prometheus_client import REGISTRY

        with self._lock:
            if not self._registered:
                REGISTRY.register(self)  # type: ignore[arg-type]  # its kinds have `collect`
                self._registered = True

    def describe(self) -> Iterator[Metric]:
        """The names, asked for at registration."""
        return iter(self._families())

    @staticmethod
    @abstractmethod
    def _families() -> tuple[Any, ...]:
        """The families, empty."""


class Meters(Collected):
    """The meters of this process. All its stores share one (`METERS`)."""

    def __init__(self) -> None:
        super().__init__()
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
        """A lock that another thread of the parent held would never be released in the child."""
        self._lock = threading.RLock()
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


METERS = Meters()
_by_verb = METERS.by_verb
renewed_after_fork(METERS, Layer.TELEMETRY)


def histogram_buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Counts by `BOUNDS` as prometheus-client takes them: each bound with all that is below it."""
    return list(zip([*(f"{bound:.6g}" for bound in BOUNDS), "+Inf"], accumulate(counts), strict=True))


class Telemetry:
    """A store's own: its log lines carry its URL; its numbers go to the process's meters."""

    def __init__(self, url: str) -> None:
        self._url = url
        METERS.register()

    # ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def span(verb: str) -> Span:
        return Span(_by_verb[verb])

    @staticmethod
    def meter(verb: str) -> Meter:
        """For verbs so quick that a span would be felt: take the time, then tell `did` or `ended`."""
        return _by_verb[verb]

    def spans(self, name: QueueName) -> Callable[[str], Span]:
        """The spans of one queue's verbs: the same ones, since queues are no label; the queue is in the log lines."""
        return self.span

    @staticmethod
    def retried(kind: str) -> None:
        """A transaction runs again: `conflict`, or whatever the engine calls it.

        A hook for whoever builds the engine.
        """
        METERS.retried(kind)

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def debugging(self) -> bool:
        """Whether job lines are wanted: ask before gathering their facts."""
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
    """An event's facts: for structlog's and other structured formatters a dict, for plain ones a line of `key=value`."""

    def __str__(self) -> str:
        facts = "".join(f" {key}={value}" for key, value in self.items() if key not in ("event", "exc_info"))
        return f"{self.get('event')}{facts}"


def _to_standard(logger: Any, method: str, event: Any) -> tuple[tuple[_Line], dict[str, Any]]:
    """The last processor: hand the event to the standard library, marked as `ProcessorFormatter` expects it."""
    # An error is told twice: plain formatters look for it at the record, structlog's only among the facts.
    return (_Line(event),), {"exc_info": event.get("exc_info"), "extra": {"_logger": logger, "_name": method}}


_bound: BoundLogger | None = None


def _logger() -> BoundLogger:
    """The structlog logger, made when the first line is written and bound once: its lazy proxy costs 5 µs a call.

    The processors are given here, not taken from structlog's global configuration, which is the application's.
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
    """A warning of a part that has no store at hand, with the error's trace."""
    if _standard.isEnabledFor(logging.WARNING):
        if error is not None:
            facts["exc_info"] = error
        _logger().warning(event, **facts)


def inform(event: str, **facts: object) -> None:
    """Something worth knowing of a part that has no store at hand."""
    if _standard.isEnabledFor(logging.INFO):
        _logger().info(event, **facts)


_audit_log = logging.getLogger("tenure.audit")
_audit_log.setLevel(logging.INFO)  # whatever the level of the other lines is
_bound_audit: BoundLogger | None = None


def audit(event: str, **facts: object) -> None:
    """A line of the audit log (`protocol.audit`): the logger `tenure.audit`."""
    global _bound_audit
    if _bound_audit is None:
        _bound_audit = _structured(_audit_log)
    _bound_audit.info(event, **facts)


def inform_often(event: str, **facts: object) -> None:
    """The same, where there is a line for every request: it goes past the machinery if nobody else listens to it.

    A line through structlog and the standard library's logging takes as long as a request or longer, and a file that is
    written to while a store syncs may hold the request up: our own handler takes it in 2 µs, and writes it a moment
    later. Whoever has put a handler or a filter of theirs in the way gets their records.
    """
    if not _standard.isEnabledFor(logging.INFO):
        return
    straight = _straight
    root = logging.root
    if (
        straight is not None
        and root.handlers == [straight]
        and not (_standard.handlers or _standard.filters or straight.filters)
        and _standard.propagate
    ):
        straight.later(_clock.wall_ms(), {"event": event, **facts})
    else:
        _logger().info(event, **facts)


# ── for the command line ─────────────────────────────────────────────────────────────────────────────────────────────


class _Handler(logging.StreamHandler[Any]):
    """Ours, so that configuring again replaces it and leaves others alone."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._late: deque[tuple[int, dict[str, object]]] = deque()
        self._told = threading.Event()
        self._writer: threading.Thread | None = None

    def later(self, wall_ms: int, facts: dict[str, object]) -> None:
        """A line as JSON, written within a moment: many at once, by a thread beside."""
        self._late.append((wall_ms, facts))
        if not self._told.is_set():
            self._told.set()
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_late, name="tenure-log", daemon=True)
                self._writer.start()

    def _write_late(self) -> None:
        while self._told.wait():
            threading.Event().wait(_LATE_S)
            self._told.clear()
            self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self.flush()  # what came before it
        super().emit(record)

    def flush(self) -> None:
        """Also when the process ends. A log that cannot be written ends nothing."""
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError, ValueError):
            lines = []
            while self._late:
                wall_ms, facts = self._late.popleft()
                facts |= {"timestamp": _moment(wall_ms / 1000), "level": "info"}
                lines.append(msgspec.json.encode(facts).decode() + "\n")
            if lines:
                self.stream.write("".join(lines))
            super().flush()


#: How long lines of requests are gathered before they are written.
_LATE_S = 0.05
#: The handler, if it writes JSON and so can be written to directly.
_straight: _Handler | None = None


def configure_logging(level: str = "warning", format: str = "auto") -> None:  # noqa: A002 - the setting's name
    """Log to stderr: lines for people on a terminal, JSON otherwise.

    For programs that own the process; never called by the library.
    """
    import structlog

    for_people = format == "console" or (format == "auto" and sys.stderr.isatty())
    render: Any
    if for_people:
        render = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    else:
        render = structlog.processors.JSONRenderer(default=str)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    processors = [_stamped, remove_meta, render]
    if not for_people:
        processors.insert(2, structlog.processors.format_exc_info)
    global _straight
    handler = _Handler(sys.stderr)
    _straight = None if for_people else handler
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=processors,
            # Lines of the standard library's logging: what a worker has bound (job and task) is on them, too.
            foreign_pre_chain=[structlog.contextvars.merge_contextvars, structlog.stdlib.add_logger_name],
        )
    )
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    _standard.setLevel(level.upper())


def _stamped(logger: Any, method: str, event: Any) -> Any:
    record = event["_record"]
    event["timestamp"] = _moment(record.created)
    event["level"] = record.levelname.lower()
    return event


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
