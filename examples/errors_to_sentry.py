"""Sentry: failed tasks become events with their task, job and attempt; handlers' own decisions do not.

    python examples/errors_to_sentry.py              print the events that two failing jobs make
    tenure worker examples/errors_to_sentry.py       in production, with your DSN

The transport is a class in this file, so that the example sends nothing.
"""

from __future__ import annotations

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tenure import App, Backoff, Dead
from tenure.integrations.sentry import SentryMiddleware


class Printed(Transport):
    """Stands in for Sentry's server."""

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            job = event["contexts"]["tenure"]
            error = event["exception"]["values"][-1]
            print(f"{event['tags']['tenure.task']} attempt {job['attempt']}: {error['type']}: {error['value']}")


sentry_sdk.init("https://key@sentry.invalid/1", transport=Printed, default_integrations=False)
app = App("memory:" if __name__ == "__main__" else "rocksdb:./data", middleware=[SentryMiddleware()])


@app.task(max_attempts=2, backoff=Backoff.fixed(0))
def charge(order: int) -> None:
    if order == 13:
        raise Dead("no such order")  # a decision, not an error
    raise ConnectionError(f"order {order}: the bank is away")


def main() -> None:
    with app, app.worker(concurrency=1):
        for order in (17, 13):
            handle = charge.delay(order)
            handle.queue.wait_for(handle.id, timeout=30)


if __name__ == "__main__":
    main()
