"""What a tenant may take, through the server: 429 with Retry-After, and nothing is done."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tenure
from tenure import QuotaExceeded, RateLimited
from tests.server.running import Answer, Running, running, token

JOBS = "/v1/queues/emails/jobs"


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running() as made:
        yield made


def limit(served: Running, tenant: str, **quota: Any) -> None:
    answer = served.ask("PUT", f"/v1/quotas/{tenant}", json.dumps(quota).encode(), token(None, "operator"))
    assert answer.status == 200, answer.body


def add(served: Running, tenant: str) -> Answer:
    return served.ask("POST", JOBS, b'{"text": "x"}', token(tenant, "produce"))


@pytest.mark.parametrize(
    ("quota", "code", "error"),
    [
        ({"max_waiting": 1}, "quota_exceeded", QuotaExceeded),
        ({"max_bytes": 1}, "quota_exceeded", QuotaExceeded),
        ({"rate": "1/h"}, "rate_limited", RateLimited),
    ],
    ids=["waiting", "bytes", "rate"],
)
def test_enqueues_beyond_are_refused(quota: dict[str, Any], code: str, error: type[Exception], served: Running):
    tenant = f"t-{next(iter(quota)).replace('_', '-')}"
    limit(served, tenant, **quota)
    assert add(served, tenant).status == 200
    refused = add(served, tenant)
    assert (refused.status, json.loads(refused.body)["code"]) == (429, code)
    assert int(refused.headers["retry-after"]) >= 1
    assert served.store.queue("emails", tenant).counts().enqueued == 1
    held = token(tenant, "produce")["Authorization"].removeprefix("Bearer ")
    with tenure.open(served.url, token=held) as store, pytest.raises(error):
        store.queue("emails").enqueue(b"x")
    assert add(served, "somebody-else").status == 200
    limit(served, tenant)
    assert add(served, tenant).status == 200


def test_requests_beyond_are_refused(served: Running):
    assert served.ask("GET", "/v1/queues", None, token("busy", "produce")).status == 200
    limit(served, "busy", requests="3/h")
    until = time.monotonic() + 60  # a new limit is noticed within seconds
    while (answer := served.ask("GET", "/v1/queues", None, token("busy", "produce"))).status == 200:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert (answer.status, json.loads(answer.body)["code"]) == (429, "rate_limited")
    assert int(answer.headers["retry-after"]) > 60
    assert served.ask("GET", "/v1/queues", None, {**token(None, "operator"), "Tenure-Tenant": "busy"}).status == 200
    limit(served, "busy")
    assert served.ask("GET", "/v1/queues", None, token("busy", "produce")).status == 200


def test_only_operators_set_them(served: Running):
    for scopes in ("produce", "admin"):
        for method, path, body in (("PUT", "/v1/quotas/acme", b"{}"), ("GET", "/v1/quotas", None)):
            assert served.ask(method, path, body, token("acme", scopes)).status == 403
