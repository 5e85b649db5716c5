"""The metrics of a server: queues, jobs moved, errors, waits."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import ManualClock
from tenure.server import metrics_listener, queue_metrics
from tenure.server.queue_metrics import QueueMetrics, depths_of
from tests.server.running import Running, running, token

pytestmark = pytest.mark.xdist_group("metrics")
OPERATOR = token(None, "operator")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(queue_metrics, "MAX_AGE_MS", 0)
    with running() as made:
        yield made


def samples(served: Running) -> dict[str, float]:
    answer = served.ask("GET", "/metrics", None, OPERATOR)
    assert answer.status == 200
    found = re.findall(r"^([a-z_]+(?:\{.*\})?) ([0-9.e+-]+)$", answer.body.decode(), re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_queues_by_state_and_the_age_of_the_oldest(served: Running):
    queue = served.store.queue("emails", tenant="auth0|12")
    queue.enqueue_many([b"x"] * 5)
    time.sleep(0.3)
    for delivery in queue.claim(limit=2):
        queue.fail(delivery, "no")
    held = queue.claim(limit=1, lease=60)
    queue.enqueue(tenure.NewJob(b"behind", after=[held[0].id]))
    found = samples(served)
    labels = 'tenant="auth0|12"'
    assert found[f'tenure_queue_jobs{{queue="emails",state="waiting",{labels}}}'] == 2
    assert found[f'tenure_queue_jobs{{queue="emails",state="blocked",{labels}}}'] == 1
    assert found[f'tenure_queue_jobs{{queue="emails",state="leased",{labels}}}'] == len(held)
    assert found[f'tenure_queue_jobs{{queue="emails",state="dead",{labels}}}'] == 2
    assert 0.3 <= found[f'tenure_queue_oldest_age_seconds{{queue="emails",{labels}}}'] < 60


@pytest.mark.parametrize("engine", ["memory:", "rocksdb", "lmdb"])
def test_the_busiest_queues_are_shown(engine: str, tmp_path: Path):
    url = engine if engine == "memory:" else f"{engine}:{tmp_path}/data"
    with tenure.open(url, sweep=False) as store:
        for number in range(12):
            store.queue(f"q{number}").enqueue_many([b"x"] * (number + 1))
        depths, omitted = depths_of(store.backend, 5)
        assert [depth.queue for depth in depths] == ["q11", "q10", "q9", "q8", "q7"]
        assert [depth.waiting for depth in depths] == [12, 11, 10, 9, 8]
        assert all(depth.oldest_age_ms is not None and depth.oldest_age_ms >= 0 for depth in depths)
        assert omitted == 7


def test_a_store_behind_another_server_has_no_ages(served: Running):
    served.store.queue("emails").enqueue(b"x")
    with tenure.open(served.url, token=OPERATOR["Authorization"].removeprefix("Bearer ")) as store:
        depths, _ = depths_of(store.backend, 5)
        assert [(depth.queue, depth.waiting, depth.oldest_age_ms) for depth in depths] == [("emails", 1, None)]


def test_many_scrapers_read_the_store_once():
    clock = ManualClock()
    with tenure.open("memory:") as store:
        found = QueueMetrics(clock)
        found._backends.append(store.backend)
        store.queue("a").enqueue(b"x")
        list(found.collect())
        store.queue("a").enqueue(b"x")
        assert [
            s.value for family in found.collect() for s in family.samples if s.labels.get("state") == "waiting"
        ] == [1]
        clock.advance(5)
        assert [
            s.value for family in found.collect() for s in family.samples if s.labels.get("state") == "waiting"
        ] == [2]


def test_jobs_errors_and_waits_of_the_servers_path(served: Running):
    before = samples(served)

    def grown(name: str) -> float:
        return samples(served).get(name, 0) - before.get(name, 0)

    worker = token("acme", "produce consume")
    served.ask("POST", "/v1/queues/counted/jobs", b'[{"text": "a"}, {"text": "b"}, {"text": "c"}]', worker)
    served.ask("POST", "/v1/queues/counted/claims", b'{"limit": 2, "lease_ms": 1000}', worker)
    served.ask("POST", "/v1/queues/none/claims", b'{"limit": 1, "lease_ms": 1000, "wait_ms": 600}', worker)
    served.ask("GET", f"/v1/queues/counted/jobs/{'0' * 32}", None, worker)
    assert grown('tenure_jobs_total{verb="enqueue"}') == 3
    assert grown('tenure_jobs_total{verb="claim"}') == 2
    assert grown('tenure_errors_total{code="not_found",verb="get"}') == 1
    assert grown('tenure_verb_seconds_count{verb="claim"}') == 2, "the waiting one, too"
    assert grown('tenure_verb_seconds_sum{verb="claim"}') >= 0.5


def test_metrics_at_an_address_of_their_own(monkeypatch):
    monkeypatch.setattr(metrics_listener, "_SECONDS", 1.0)
    with running(metrics=True) as served:
        port = served.metrics_port
        served.store.queue("emails").enqueue(b"x")

        def ask(path: str) -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", path)
            got = connection.getresponse()
            found = got.status, got.read()
            connection.close()
            return found

        status, body = ask("/metrics")
        assert status == 200
        assert b"tenure_queue_jobs{" in body
        assert ask("/v1/queues")[0] == 404
        assert served.ask("GET", "/metrics", None, {}).status == 401, "the other address still asks for a token"
        # One that sends nothing does not hold it up for long.
        with socket.create_connection(("127.0.0.1", port)):
            began = time.monotonic()
            assert ask("/metrics")[0] == 200
            assert time.monotonic() - began < 20
        # Nor does one that sends a byte now and then.
        with socket.create_connection(("127.0.0.1", port)) as slow, contextlib.suppress(ConnectionError):
            for _ in range(100):
                slow.sendall(b"G")
                time.sleep(0.1)
            pytest.fail("it still listens")
    assert not [thread for thread in threading.enumerate() if thread.name == "tenure-metrics"]
