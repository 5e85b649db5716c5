"""Limits of one response: its bytes, the rows that are read for it, and no jobs of other tenants."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import NewJob
from tests.server.running import running, token

MIB = 1024 * 1024


def test_upcoming_reads_nothing_of_other_tenants():
    """Another tenant's backlog, which comes earlier, neither hides a tenant's own jobs nor is read."""
    with running() as server:
        crowd = server.store.queue("crowd", tenant="globex")
        for _ in range(11):
            crowd.enqueue_many([NewJob(b"", delay=60)] * 10_000)
        server.store.queue("own", tenant="acme").enqueue(b"mine", delay=3600)
        answer = server.ask("GET", "/v1/upcoming?limit=10", None, token("acme", "consume"))
        assert [job["queue"] for job in json.loads(answer.body)["jobs"]] == ["own"]


def test_upcoming_of_a_token_for_some_queues():
    with running() as server:
        for name in ("one", "two"):
            server.store.queue(name, tenant="acme").enqueue(b"x", delay=60)
        answer = server.ask("GET", "/v1/upcoming", None, token("acme", "consume", ["two"]))
        assert [job["queue"] for job in json.loads(answer.body)["jobs"]] == ["two"]


def test_queues_come_in_pages_over_http():
    with running() as server:
        for n in range(5):
            server.store.queue(f"q{n}", tenant="acme").enqueue(b"x")
        server.store.queue("q9", tenant="other").enqueue(b"x")
        seen: list[str] = []
        page: dict[str, Any] = {}
        cursor = ""
        for _ in range(3):
            page = json.loads(server.ask("GET", f"/v1/queues?limit=2{cursor}", None, token("acme", "consume")).body)
            seen += [queue["queue"] for queue in page["queues"]]
            cursor = f"&cursor={page['cursor']}"
        assert page["cursor"] is None
        assert seen == [f"q{n}" for n in range(5)]
        assert server.ask("GET", "/v1/queues?cursor=other", None, token("acme", "consume")).status == 400
        others = server.ask("GET", "/v1/queues?cursor=other/q9", None, token("acme", "consume"))
        assert b"other" not in others.body
        few = json.loads(server.ask("GET", "/v1/queues?limit=1", None, token("acme", "consume", ["q1", "q3"])).body)
        assert [queue["queue"] for queue in few["queues"]] == ["q1", "q3"], "a token for some queues has one page"
        assert few["cursor"] is None, "a cursor would name a queue that the token may not know"


def test_a_list_does_not_wait_for_the_writer(tmp_path: Path):
    """It reads a snapshot: the writer's lock is free while jobs are read."""
    with tenure.open(f"rocksdb:{tmp_path}/data", durability="os", sweep=False) as store:
        queue = store.queue("work")
        queue.enqueue_many([NewJob(b"x", delay=60)] * 100)
        core: Any = store.backend._core  # type: ignore[attr-defined]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(core), "read", None)
            assert len(queue.list("scheduled").jobs) == 100
            assert len(store.upcoming(limit=10)) == 10


@pytest.mark.parametrize("limit", [1_000_000, 1])
def test_events_of_others_are_passed_over_within_bounds(limit: int, monkeypatch: pytest.MonkeyPatch):
    with running() as server:
        server.store.queue("crowd", tenant="globex").enqueue_many([b"x"] * 5000)
        asked: list[int] = []
        backend = server.store.backend
        events = backend.events

        def counting(after, most, wait_ms, consumer):
            asked.append(most)
            return events(after, most, wait_ms, consumer)

        monkeypatch.setattr(backend, "events", counting)
        answer = server.ask("GET", f"/v1/events?limit={limit}", None, token("acme", "consume"))
        assert json.loads(answer.body)["events"] == []
        assert sum(asked) <= 10_000
        assert len(asked) <= 10
        assert max(asked) <= 1000
        operator = server.ask("GET", f"/v1/events?limit={limit}", None, token(None, "operator"))
        assert len(json.loads(operator.body)["events"]) == min(limit, 5001) or limit == 1


def test_a_claim_of_large_payloads_is_bounded():
    with running() as server:
        queue = server.store.queue("large", tenant="acme")
        for n in range(8):
            queue.enqueue(bytes([n]) * (7 * MIB))
        body = b'{"limit": 100, "lease_ms": 60000}'
        answer = server.ask("POST", "/v1/queues/large/claims", body, token("acme", "consume"))
        jobs = json.loads(answer.body)["jobs"]
        assert 1 <= len(jobs) <= 5
        assert queue.counts().ready == 8 - len(jobs), "the rest waits"


def test_parts_without_rows_use_the_default(tmp_path: Path):
    from contextlib import closing

    from tenure.server.service import Bind, Service, listening
    from tenure.server_settings import Server
    from tests.server.running import Running

    bind = Bind("127.0.0.1", 0)
    with tenure.open(f"rocksdb:{tmp_path}/data", durability="os") as store, listening(bind) as sock:
        store.queue("work").enqueue(b"x")
        with (
            Service(store, bind, Server()).running(sock),
            closing(Running(store, sock.getsockname()[1])) as server,
        ):
            taken = json.loads(server.ask("POST", "/v1/snapshots", b'{"ttl_ms": 60000}', {}).body)
            answer = server.ask("GET", f"/v1/snapshots/{taken['id']}/jobs/parts", None, {})
            assert answer.status == 200, answer.body
            assert json.loads(answer.body)["parts"]


@pytest.mark.parametrize("keep_ms", [100 * 365 * 86_400_000, 367 * 86_400_000])
def test_a_write_is_not_kept_for_a_century(keep_ms: int):
    with running() as server:
        body = json.dumps({"manifest": "", "keep_ms": keep_ms}).encode()
        assert server.ask("PUT", "/v1/writes/w", body, token("acme", "produce")).status == 400


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
def test_events_behind_and_between_others_come_once_each(limit: int):
    with running() as server:
        crowd, own = server.store.queue("crowd", tenant="globex"), server.store.queue("own", tenant="acme")
        crowd.enqueue_many([b"x"] * 12_000)
        ids = []
        for _ in range(3):
            ids += [added.id for added in own.enqueue_many([b"mine"] * 3)]
            crowd.enqueue_many([b"x"] * 500)
        seen: list[str] = []
        after = ""
        for _ in range(60):
            path = f"/v1/events?limit={limit}&wait_ms=1" + (f"&after={after}" if after else "")
            page = json.loads(server.ask("GET", path, None, token("acme", "consume")).body)
            assert len(page["events"]) <= limit
            seen += [event["job_id"] for event in page["events"] if event["type"] == "enqueued"]
            if page["cursor"] == after:
                break
            after = page["cursor"]
        assert seen == ids


def test_a_stream_finds_events_behind_others():
    with running() as server:
        server.store.queue("crowd", tenant="globex").enqueue_many([b"x"] * 12_000)
        server.store.queue("own", tenant="acme").enqueue(b"mine")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("GET", "/v1/events", headers={**token("acme", "consume"), "Accept": "text/event-stream"})
        answer = connection.getresponse()
        heard = b""
        while b"event: enqueued" not in heard:
            heard += answer.read1(65536)
        connection.close()
