"""A request for each operation, shown in the reference and the OpenAPI document. A test sends every one of them.

JOB, LEASE and RECEIPT stand for the reader's own values.
"""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import urlencode

from tenure.protocol.calls import Operation

JOB = "0190a1b2c3d47e5f8a6b7c8d9e0f1a2b"
LEASE = "0190a1b2c3d57e5f8a6b7c8d9e0f1a2c"
RECEIPT = f"{JOB}.{LEASE}.1"

#: Values for the named segments of the paths.
WORDS = {
    "queue": "emails", "job": JOB, "lease": LEASE, "tenant": "acme", "consumer": "exporter", "request": "5f0c9a7e",
    "write": "import-17", "chunk": "0", "part": "0", "piece": "0", "snapshot": "nightly", "table": "jobs",
    "schedule": "weekly",
}  # fmt: skip


class Example(NamedTuple):
    query: dict[str, str | int] | None = None
    body: object = None


_NONE = Example()

EXAMPLES: dict[str, Example] = {
    "enqueue": Example(body={"text": "to ada", "delay_ms": 500, "priority": 5, "key": "order-17"}),
    "list": Example(query={"state": "dead", "limit": 10}),
    "holder": Example(query={"key": "order-17"}),
    "wait_for": Example(query={"timeout_ms": 1000}),
    "claim": Example(body={"limit": 2, "lease_ms": 30000, "wait_ms": 5000, "worker": "w1"}),
    "claim_several": Example(body={"queues": ["emails", "images"], "lease_ms": 30000}),
    "claim_any": Example(body={"limit": 10, "lease_ms": 30000, "weights": {"acme": 2}}),
    "extend": Example(body={"lease_ms": 30000}),
    "settle": Example(body={"items": [{"verb": "ack", "receipt": RECEIPT, "result": "b2s="}]}),
    "progress": Example(body={"receipt": RECEIPT, "fraction": 0.4, "note": "resizing"}),
    "record_step": Example(body={"receipt": RECEIPT, "name": "charge", "value": "b2s="}),
    "signal": Example(body={"name": "approval", "payload": "eWVz"}),
    "add_schedule": Example(body={"queue": "polls", "payload": "bm93", "cron": "0 9 * * 1", "tz": "Europe/Berlin"}),
    "configure": Example(body={"max_attempts": 3, "lease": 60, "retention": 3600}),
    "replay": Example(body={"error": "Timeout", "spacing_ms": 100, "dry_run": True}),
    "purge": Example(body={"state": "dead"}),
    "restore": Example(
        body={
            "jobs": [
                {
                    "id": JOB,
                    "state": "waiting",
                    "payload": "aGVsbG8=",
                    "max_attempts": 5,
                    "created_at_ms": 1800000000000,
                    "visible_at_ms": 1800000000000,
                }
            ]
        }
    ),
    "discard": Example(body={"state": "dead", "tokens": {JOB: 1}}),
    "apply": Example(body={"emails": {"max_attempts": 3}, "images": {"max_leased": 10}}),
    "replace_queues": Example(body={"emails": {"max_attempts": 3}, "images": {"max_leased": 10}}),
    "delete_queue": Example(query={"force": "true"}),
    "set_quota": Example(body={"max_waiting": 100000, "requests": {"jobs": 100, "per": 1}}),
    "draw": Example(body={"requests": 1}),
    "begin_write": Example(body={"manifest": "e30=", "keep_ms": 86400000}),
    "publish": Example(body={"queue": "emails", "jobs": [{"text": "to ada"}, "aGVsbG8="]}),
    "finish_write": Example(body={}),
    "put_piece": Example(body={"data": "aGVsbG8="}),
    "take_snapshot": Example(body={"ttl_ms": 600000, "name": "nightly"}),
    "table_parts": Example(query={"rows": 100000}),
    "read_table": Example(query={"state": "dead", "columns": "id,error"}),
    "journal_slice": Example(query={"max_bytes": 65536}),
    "groups": Example(query={"limit": 10}),
    "list_all": Example(query={"state": "dead", "limit": 10}),
    "upcoming": Example(query={"limit": 10}),
    "events": Example(query={"limit": 100, "wait_ms": 1000}),
    "newest_events": Example(query={"limit": 10}),
    "cleanup": Example(body={"limit": 1000}),
    "check": Example(body={"repair": False}),
}


def example_of(operation: Operation) -> Example:
    return EXAMPLES.get(operation.name, _NONE)


def target_of(operation: Operation) -> str:
    """Return path and query of its example."""
    query = example_of(operation).query
    return operation.path.format(**WORDS) + ("?" + urlencode(query, safe=",") if query else "")


def curl(operation: Operation) -> str:
    """Return its example as a curl command."""
    body = example_of(operation).body
    parts = ["curl"]
    if operation.method not in ("GET", "POST") or (operation.method == "POST" and body is None):
        parts.append(f"-X {operation.method}")
    target = target_of(operation)
    address = f"localhost:8400{target}"
    parts.append(f"'{address}'" if "?" in target else address)
    if body is not None:
        parts.append(f"-d '{json.dumps(body)}'")
    return " ".join(parts)
