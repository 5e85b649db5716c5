"""Failures of tasks as Sentry's events. The client is this test's own, and ends with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tenure import App, Backoff, Dead, Retry
from tenure.integrations.sentry import SentryMiddleware


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []

    class Kept(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            event = envelope.get_event()
            if event is not None:
                found.append(dict(event))

    before = sentry_sdk.get_client()
    sentry_sdk.init("https://key@sentry.invalid/1", transport=Kept, default_integrations=False)
    yield found
    sentry_sdk.get_global_scope().set_client(before)


def run(app: App, task: Any, *args: Any) -> None:
    handle = task.delay(*args)
    handle.queue.wait_for(handle.id, timeout=60)


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_each_failure_is_an_event_with_its_job(events: list[dict[str, Any]], pool: Any):
    app = App("memory:", middleware=[SentryMiddleware()])

    @app.task(name="charge", queue="bank", max_attempts=2, backoff=Backoff.fixed(0))
    async def charge(order: int) -> None:
        sentry_sdk.set_tag("order", order)
        if order != 1:
            raise ValueError(f"order {order}")

    with app, app.worker(pool=pool, concurrency=1):
        for order in (1, 2):
            run(app, charge, order)
    assert [event["contexts"]["tenure"]["attempt"] for event in events] == [1, 2]
    for event in events:
        assert event["tags"] == {
            "tenure.task": "charge",
            "tenure.queue": "bank",
            "tenure.tenant": "default",
            "order": 2,
        }
        assert event["transaction"] == "charge"
        assert event["exception"]["values"][-1]["value"] == "order 2"
    sentry_sdk.capture_message("outside")
    assert "order" not in events[-1].get("tags", {})


def test_only_the_last_failure_if_asked_for_and_no_decisions(events: list[dict[str, Any]]):
    app = App("memory:", middleware=[SentryMiddleware(last_attempt_only=True)])

    @app.task(max_attempts=3, backoff=Backoff.fixed(0))
    def fail(how: str) -> None:
        raise {"error": ValueError(how), "dead": Dead(how), "retry": Retry(how, after=0)}[how]

    with app, app.worker(concurrency=1):
        for how in ("error", "dead", "retry"):
            run(app, fail, how)
    assert [
        (event["exception"]["values"][-1]["value"], event["contexts"]["tenure"]["attempt"]) for event in events
    ] == [("error", 3)]
