"""OpenTelemetry, if the program uses it: a job's headers carry the producer's context to the handler's span.

Nothing is imported for it: a program that traces has loaded the library itself; otherwise there is no span.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tenure.protocol.tracing import tracing

if TYPE_CHECKING:
    from tenure.worker.context import CurrentJob

_NOTHING: AbstractContextManager[object] = contextlib.nullcontext()


def inject(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return the headers with the current trace added; unchanged if there is none."""
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {**carrier, **headers} if headers and carrier else carrier or headers


def span(job: CurrentJob) -> AbstractContextManager[object]:
    """Return a span around the handler, with the producer's as its parent."""
    if not tracing():
        return _NOTHING
    from opentelemetry import propagate, trace

    return trace.get_tracer("tenure").start_as_current_span(
        f"task {job.task}",
        context=propagate.extract(job.headers),
        kind=trace.SpanKind.CONSUMER,
        attributes={
            "messaging.system": "tenure",
            "messaging.operation.type": "process",
            "messaging.destination.name": job.queue,
            "messaging.message.id": job.id,
            "tenure.task": job.task,
            "tenure.attempt": job.attempt,
        },
    )
