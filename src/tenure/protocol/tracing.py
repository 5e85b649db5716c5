"""OpenTelemetry spans, if the program uses OpenTelemetry: one at the client for each request, a child at the server.

    client   span "tenure enqueue" (CLIENT) ──▶ header traceparent ──▶ span "enqueue" (SERVER)   server

A program that traces has imported OpenTelemetry, so this module looks for it among the loaded modules and imports
nothing: without it a span costs one lookup. A span carries operation, queue, tenant and outcome, never a payload, token
or receipt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tenure.errors import TenureError

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanKind

Attributes = Mapping[str, str | int | float | bool]


def tracing() -> bool:
    """Whether this program has loaded OpenTelemetry."""
    return "opentelemetry.trace" in sys.modules


@contextmanager
def client_span(operation: str, headers: MutableMapping[str, str], attributes: Attributes) -> Iterator[Span | None]:
    """Open a client span around a request; adds the trace context to `headers`."""
    if not tracing():
        yield None
        return
    from opentelemetry import propagate, trace

    with _span(f"tenure {operation}", trace.SpanKind.CLIENT, attributes) as span:
        propagate.inject(headers)
        yield span


@contextmanager
def server_span(
    operation: str, headers: Mapping[str, str], attributes: Attributes, *, ends: bool = True
) -> Iterator[Span | None]:
    """Open a server span around a request's work, as a child of the span in its headers.

    `ends=False`: the caller ends it.
    """
    if not tracing():
        yield None
        return
    from opentelemetry import propagate, trace

    with _span(operation, trace.SpanKind.SERVER, attributes, propagate.extract(headers), ends) as span:
        yield span


@contextmanager
def _span(name: str, kind: SpanKind, attributes: Attributes, context: Any = None, ends: bool = True) -> Iterator[Span]:
    from opentelemetry import trace

    tracer = trace.get_tracer("tenure")
    # Do not record the exception as an event: its message may quote what a caller sent.
    with tracer.start_as_current_span(
        name, context, kind, attributes, record_exception=False, set_status_on_exception=False, end_on_exit=ends
    ) as span:
        try:
            yield span
        except Exception as exc:
            code = exc.code if isinstance(exc, TenureError) else type(exc).__name__
            span.set_attribute("error.type", code)
            span.set_status(trace.Status(trace.StatusCode.ERROR, code))
            raise
