"""Spans by OpenTelemetry's own SDK: the client's, and the server's as its child."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from leasehold import KeyConflict
from leasehold.stores.tracing import client_span, server_span

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider():
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(made)


@pytest.fixture(autouse=True)
def empty():
    EXPORTER.clear()


def test_the_context_travels():
    carried: dict[str, str] = {}
    with client_span("enqueue", carried, {"leasehold.queue": "emails"}), server_span("enqueue", dict(carried), {}):
        pass
    server, client = EXPORTER.get_finished_spans()
    assert (client.name, client.kind) == ("leasehold enqueue", trace.SpanKind.CLIENT)
    assert (server.name, server.kind) == ("enqueue", trace.SpanKind.SERVER)
    assert server.parent is not None
    assert client.context is not None
    assert server.parent.span_id == client.context.span_id
    assert client.attributes == {"leasehold.queue": "emails"}
    assert propagate.extract(carried)


def test_an_error_is_a_code_and_no_message():
    with pytest.raises(KeyConflict), client_span("enqueue", {}, {}):
        raise KeyConflict(0, "a secret key", "an id")
    (span,) = EXPORTER.get_finished_spans()
    assert span.attributes == {"error.type": "key_conflict"}
    assert span.status.status_code is trace.StatusCode.ERROR
    assert "secret" not in span.to_json()


def test_a_program_that_does_not_trace_loads_nothing():
    script = (
        "import sys, leasehold\n"
        "from leasehold.stores.tracing import client_span, server_span, tracing\n"
        "carried = {}\n"
        "with client_span('a', carried, {}) as one, server_span('b', {}, {}) as other: pass\n"
        "assert (one, other, carried, tracing()) == (None, None, {}, False)\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
