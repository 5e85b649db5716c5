"""Spans by OpenTelemetry's own SDK: the client's, and the server's as its child."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import tenure
from tenure import KeyConflict
from tenure.protocol.tracing import client_span, server_span
from tests.server.running import running, token

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
    with client_span("enqueue", carried, {"tenure.queue": "emails"}), server_span("enqueue", dict(carried), {}):
        pass
    server, client = EXPORTER.get_finished_spans()
    assert (client.name, client.kind) == ("tenure enqueue", trace.SpanKind.CLIENT)
    assert (server.name, server.kind) == ("enqueue", trace.SpanKind.SERVER)
    assert server.parent is not None
    assert client.context is not None
    assert server.parent.span_id == client.context.span_id
    assert client.attributes == {"tenure.queue": "emails"}
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
        "import sys, tenure\n"
        "from tenure.protocol.tracing import client_span, server_span, tracing\n"
        "carried = {}\n"
        "with client_span('a', carried, {}) as one, server_span('b', {}, {}) as other: pass\n"
        "assert (one, other, carried, tracing()) == (None, None, {}, False)\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_request_through_a_server():
    """The client's span and the server's, in one trace, with what may be known and nothing else."""
    held = token("default", "produce consume")["Authorization"].removeprefix("Bearer ")
    with running() as served, tenure.open(served.url, token=held) as store:
        EXPORTER.clear()
        tracer = trace.get_tracer("a test")
        with tracer.start_as_current_span("work"):
            store.queue("emails").enqueue(b"PAYLOAD-7f3a", key="KEY-7f3a")
        with pytest.raises(tenure.Forbidden):
            store.queue("emails").pause()
    spans = {span.name: span for span in EXPORTER.get_finished_spans()}
    work, client, server = spans["work"], spans["tenure enqueue"], spans["enqueue"]
    assert work.context is not None
    assert client.context is not None
    assert client.parent is not None
    assert server.parent is not None
    assert client.parent.span_id == work.context.span_id
    assert server.parent.span_id == client.context.span_id
    assert server.attributes is not None
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["tenure.tenant"] == "default"
    assert server.attributes["tenure.queue"] == "emails"
    assert len(str(server.attributes["tenure.request_id"])) == 32
    assert spans["tenure pause"].status.status_code is trace.StatusCode.ERROR
    assert spans["pause"].attributes is not None
    assert spans["pause"].attributes["tenure.error"] == "forbidden"
    for span in spans.values():
        for secret in ("7f3a", held, held.split(".")[2]):
            assert secret not in span.to_json()
