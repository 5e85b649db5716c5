"""OpenTelemetry: one trace from the request that enqueues a task to its handler, and to the tasks that this enqueues.

    python examples/tracing.py                print the spans of one trace
    tenure worker examples/tracing.py         in production: a worker whose program sets up an exporter as this one does

Tenure needs no configuration for it. A program that has loaded OpenTelemetry gets a span around each handler, and the
job's headers carry the producer's context.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tenure import App

spans = InMemorySpanExporter()  # replace it with your program's OTLP exporter
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("shop")

app = App("memory:" if __name__ == "__main__" else "rocksdb:./data")


@app.task(queue="orders")
def charge(order: int) -> None:
    with tracer.start_as_current_span("card"):
        receipt.delay(order)


@app.task(queue="mail")
def receipt(order: int) -> str:
    return f"receipt for order {order}"


def main() -> None:
    with app, app.worker(concurrency=2):
        with tracer.start_as_current_span("POST /orders"):
            charge.delay(17).result(30)
        while not any(span.name == "task tracing.receipt" for span in spans.get_finished_spans()):
            pass
    found = {span.context.span_id: span for span in spans.get_finished_spans() if span.context is not None}
    names = {number: span.name for number, span in found.items()}
    for span in sorted(found.values(), key=lambda span: span.start_time or 0):
        print(f"{span.name}, below {names[span.parent.span_id] if span.parent else 'nothing'}")
    print(len({span.context.trace_id for span in found.values()}), "trace")


if __name__ == "__main__":
    main()
