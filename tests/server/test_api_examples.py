"""Every operation has an example, and the server accepts it unchanged except for ids."""

from __future__ import annotations

import json
from pathlib import Path

import tenure
from tenure.protocol.messages import Nothing
from tenure.protocol.operations import OPERATIONS
from tenure.server.api_examples import EXAMPLES, JOB, LEASE, RECEIPT, WORDS, curl, example_of, target_of
from tests.server.running import running, token

PUBLIC = [operation for operation in OPERATIONS.values() if not operation.local]
#: What has no effect where there is nothing to act on: the caller's own waiting request, a consumer that never was.
NOT_THERE = {"call_off", "forget_consumer"}


def test_every_operation_that_asks_for_something_has_an_example():
    assert set(EXAMPLES) <= {operation.name for operation in PUBLIC}
    for operation in PUBLIC:
        assert curl(operation).startswith("curl ")
        if not operation.in_query and operation.asks is not Nothing:
            assert example_of(operation).body is not None, operation.name


def test_the_server_takes_every_example(tmp_path: Path):
    with running(url=f"rocksdb:{tmp_path / 'data'}") as server:
        who = {**token(None, "operator"), "Tenure-Tenant": "acme"}
        queue = server.store.queue(WORDS["queue"], tenant="acme")
        for operation in PUBLIC:
            # Each gets a job that is in hand, and one that is dead where the operation is for ended jobs.
            queue.resume()
            queue.purge("ready")
            job = queue.enqueue(b"x")
            claim = queue.claim(lease=60)
            if operation.name in ("wait_for", "discard"):
                queue.fail(claim[0], error="Timeout")
            swaps = {RECEIPT: claim[0].receipt, JOB: job.id, LEASE: claim[0].receipt.split(".")[1]}
            if operation.name == "restore":
                swaps[JOB] = tenure.open("memory:").queue("x").enqueue(b"x").id
            if "{snapshot}" in operation.path:
                made = server.ask("POST", "/v1/snapshots", b'{"ttl_ms": 60000}', who)
                swaps["snapshots/nightly"] = "snapshots/" + json.loads(made.body)["id"]
            if "/chunks/" in operation.path or operation.name in ("write_state", "finish_write"):
                server.ask("PUT", "/v1/writes/import-17", b'{"manifest": "e30=", "keep_ms": 60000}', who)
            if operation.name == "piece":
                server.ask("PUT", "/v1/writes/import-17/parts/0/0", b'{"data": "aGVsbG8="}', who)
            if "{schedule}" in operation.path and operation.name != "add_schedule":
                weekly = b'{"queue": "polls", "payload": "bm93", "cron": "@weekly", "replace": true}'
                server.ask("PUT", f"/v1/schedules/{WORDS['schedule']}", weekly, who)
            if operation.name == "delete_queue":  # which a job in hand forbids
                for held in queue.list("leased", limit=1000).jobs:
                    queue.cancel(held.id)
            target, body = target_of(operation), example_of(operation).body
            text = None if body is None else json.dumps(body)
            for mark, value in swaps.items():
                target, text = target.replace(mark, value), None if text is None else text.replace(mark, value)
            answer = server.ask(operation.method, target, None if text is None else text.encode(), who)
            assert answer.status == (404 if operation.name in NOT_THERE else 200), (operation.name, target, answer)
