"""Quotas of a tenant over HTTP: 429 with Retry-After, and nothing is written."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import ManualClock, Quota, QuotaExceeded, RateLimited
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


# ── what is staged ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine", ["memory:", "rocksdb"])
def test_staged_pieces_and_manifests_count(engine: str, tmp_path: Path):
    """At e286b7d a produce-only token could stage as much as the disk holds."""
    url = engine if engine == "memory:" else f"{engine}:{tmp_path}/data"
    with tenure.open(url, sweep=False) as store:
        backend = store.backend
        store.set_quota("acme", Quota(max_bytes=300_000))
        for number in range(2):
            backend.put_piece("acme/w", "part", number, b"x" * 100_000)
        backend.put_piece("acme/w", "part", 1, b"y" * 100_000)  # again, and not twice
        with pytest.raises(QuotaExceeded):
            backend.put_piece("acme/w", "part", 3, b"x" * 100_001)
        backend.put_piece("globex/w", "part", 0, b"x" * 1_000_000)
        backend.drop_pieces("acme/w")
        backend.put_piece("acme/w", "part", 0, b"x" * 100_000)
        for number in range(4):
            backend.begin_write(f"acme/m{number}", b"m" * 1000, 60_000)
        with pytest.raises(QuotaExceeded):
            backend.begin_write("acme/one-more", b"m" * 1000, 60_000)
        with pytest.raises(QuotaExceeded):
            store.queue("work", tenant="acme").enqueue(b"x" * 50_000)
        assert store.check().clean
        for number in range(4):
            backend.finish_write(f"acme/m{number}")
        backend.finish_write("acme/m3", None)
        store.set_quota("acme", None)
        store.set_quota("acme", Quota(max_bytes=300_000))
        assert store.quotas("acme")[0].bytes == 4 * 65_536, "counted again from what is there"
        assert store.check().clean


def test_only_a_tenants_own_manifests_count_when_its_quota_is_set():
    """A manifest counts as 64 KiB."""
    with tenure.open("memory:", sweep=False) as store:
        backend = store.backend
        for write in ("globex/a", "globex/b", "globex/c", "acme/a"):
            backend.begin_write(write, b"m", 60_000)
        store.set_quota("acme", Quota(max_bytes=2 * 65_536 + 1_000))
        backend.begin_write("acme/b", b"m", 60_000)
        with pytest.raises(QuotaExceeded):
            backend.begin_write("acme/c", b"m", 60_000)
        assert store.check().clean


def test_manifests_that_are_forgotten_make_room():
    clock = ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        store.set_quota("acme", Quota(max_bytes=100_000))
        store.backend.begin_write("acme/a", b"m", 60_000)
        with pytest.raises(QuotaExceeded):
            store.backend.begin_write("acme/b", b"m", 60_000)
        clock.advance(61)
        store.sweep()
        store.backend.begin_write("acme/b", b"m", 60_000)
        assert store.check().clean


def test_an_older_stores_quota_is_counted_when_it_is_opened(tmp_path: Path):
    """Until e286b7d a counter held the bytes of waiting jobs only."""
    from tenure.storage import keyspace, records
    from tenure.storage.keyspace import Usage

    url = f"rocksdb:{tmp_path}/data"
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work", tenant="acme")
        queue.enqueue_many([b"x" * 100] * 3)
        queue.claim(limit=1, lease=600)
        store.set_quota("acme", Quota(max_bytes=1000))
        core: Any = store.backend._core  # type: ignore[attr-defined]
        with core.engine.snapshot((keyspace.QUEUES,)) as reader:
            meter = core.registry.all(reader, "acme")[0].meter

        def as_it_was(unit: Any) -> None:
            unit.tx.delete(keyspace.COUNTERS, keyspace.counter(meter, Usage.STORED))
            unit.tx.put(keyspace.COUNTERS, keyspace.counter(meter, Usage.BYTES), records.encode_count(200))

        core.write(as_it_was)
    with tenure.open(url, sweep=False) as store:
        assert store.quotas("acme")[0].bytes == 300
        assert store.check().clean
