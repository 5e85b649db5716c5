"""Limits of one response: its bytes, the rows that are read for it, and no jobs of other tenants."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import NewJob
from tenure.queueing import queries
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


@pytest.mark.parametrize("engine", ["memory:", "rocksdb", "lmdb"])
def test_a_list_of_large_payloads_comes_in_pages(engine: str, tmp_path: Path):
    url = engine if engine == "memory:" else f"{engine}:{tmp_path}/data"
    with tenure.open(url, durability=None if engine == "memory:" else "os", sweep=False) as store:
        queue = store.queue("large")
        ids = [queue.enqueue(bytes([n]) * (6 * MIB)).id for n in range(8)]
        seen: list[str] = []
        cursor = None
        while True:
            page = queue.list("ready", limit=100, cursor=cursor)
            assert sum(len(job.payload) for job in page.jobs) <= queries.ANSWER_BYTES + 8 * MIB
            seen += [job.id for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == ids


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
