"""OpenTelemetry: a call's trace continues in its handler, in every pool; without the library nothing is traced."""

from __future__ import annotations

import subprocess
import sys

import pytest

STORY = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tenure import App, Dead, TaskFailed

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("test")
app = App("memory:")

@app.task(name="sync")
def sync() -> str:
    return format(trace.get_current_span().get_span_context().trace_id, "032x")

@app.task(name="later")
async def later() -> str:
    return format(trace.get_current_span().get_span_context().trace_id, "032x")

@app.task(name="fails")
def fails() -> None:
    raise Dead("no")

for pool in ("thread", "async"):
    with app.worker(pool=pool):
        for task in (sync, later):
            spans.clear()
            with tracer.start_as_current_span("request") as request:
                handle = task.options(headers={"own": "kept"}).delay()
            assert handle.job().headers["own"] == "kept" and "traceparent" in handle.job().headers
            assert handle.result() == format(request.get_span_context().trace_id, "032x"), (pool, task)
            (span,) = [s for s in spans.get_finished_spans() if s.name == f"task {task.name}"]
            assert span.parent.span_id == request.get_span_context().span_id
            assert span.kind is trace.SpanKind.CONSUMER
            assert span.attributes["messaging.message.id"] == handle.id
        try:
            fails.delay().result()
        except TaskFailed:
            pass
        failed = [s for s in spans.get_finished_spans() if s.name == "task fails"][0]
        assert failed.status.status_code is trace.StatusCode.ERROR
handle = sync.delay()
assert handle.job().headers == {}  # nobody traced this call
print("ok")
"""

WITHOUT = """
import sys
from tenure import App
app = App("memory:")
@app.task
def nothing() -> None: ...
with app.worker():
    nothing.delay().result()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


@pytest.mark.parametrize(("story", "said"), [(STORY, "ok"), (WITHOUT, "[]")], ids=["traced", "not"])
def test_traces(story: str, said: str):
    """In a process of its own: a tracer provider is set once for ever."""
    ran = subprocess.run([sys.executable, "-c", story], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == said, ran.stderr
