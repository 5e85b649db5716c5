"""The worker's log lines: written through `telemetry`'s logger, and never the cause of another failure.

    info, warning, error       one line; an exception of the logging machinery itself (no file handle left, a full disk)
                               is swallowed, and the line is tried once more with the next one that can be written
    JobLogFilter               for programs with their own logging configuration: job and task on every record

Inside a handler, `task`, `job_id` and `attempt` are bound to structlog's context variables (`context.CurrentJobScope`),
so they are on the handler's own lines, through structlog or the standard library's logging.
"""

from __future__ import annotations

import logging
from collections import deque

from tenure import telemetry
from tenure.worker.context import running_job

_standard = logging.getLogger("tenure")
enabled = _standard.isEnabledFor

#: Lines that could not be written. A few are enough to tell what happened.
_unwritten: deque[tuple[int, str, dict[str, object]]] = deque(maxlen=20)


def load() -> None:
    """Import what a log line needs now: a process without a free file descriptor cannot import it later."""
    telemetry._logger()


def info(event: str, **facts: object) -> None:
    _write(logging.INFO, event, facts)


def warning(event: str, **facts: object) -> None:
    _write(logging.WARNING, event, facts)


def error(event: str, **facts: object) -> None:
    _write(logging.ERROR, event, facts)


def _write(level: int, event: str, facts: dict[str, object]) -> None:
    if not enabled(level):
        return
    try:
        telemetry._logger().log(level, event, **facts)
    except Exception:  # noqa: BLE001 - a failing log line must not end its thread
        _unwritten.append((level, event, facts))
        return
    while _unwritten:
        level, event, facts = _unwritten.popleft()
        try:
            telemetry._logger().log(level, event, **facts)
        except Exception:  # noqa: BLE001 - tried twice: dropped
            return


class JobLogFilter(logging.Filter):
    """Adds `task`, `job_id` and `attempt` to every record; `-` and 0 outside a job. For a handler or a logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        job = running_job()
        record.task, record.job_id, record.attempt = ("-", "-", 0) if job is None else (job.task, job.id, job.attempt)
        return True


def configure(level: str, form: str) -> None:
    """Log to stderr, as `tenure worker` and its child processes do: the worker's lines and the handlers' own.

    By default the root logger shows only warnings; unless the app's module set a level, it gets this one, too.
    """
    telemetry.configure_logging(level, form)
    root = logging.getLogger()
    if root.level == logging.WARNING:
        root.setLevel(level.upper())
