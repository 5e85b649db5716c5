"""The JSON objects of `--json`, field by field, documented in docs/command-line.md. Fields are added, never changed."""

from __future__ import annotations

import base64

import msgspec

from tenure.cli.times import iso
from tenure.model.event import Event
from tenure.model.explanation import Explanation
from tenure.model.group import GroupInfo
from tenure.model.job import Counts, Enqueued, Job, QueueInfo, Replayed, Swept
from tenure.model.lease import Delivery
from tenure.model.names import QueueName
from tenure.model.quota import QuotaInfo
from tenure.model.report import Finding, Report
from tenure.model.retry import Policy
from tenure.model.step import Step

Shape = dict[str, object]


def data(name: str, value: bytes | None) -> Shape:
    """Return bytes as text if they are UTF-8, else in base64; `<name>_encoding` says which."""
    if value is None:
        return {name: None, f"{name}_encoding": None}
    try:
        return {name: value.decode(), f"{name}_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {name: base64.b64encode(value).decode(), f"{name}_encoding": "base64"}


def times(name: str, ms: int | None) -> Shape:
    """Return a time as two fields: milliseconds since 1970, and ISO 8601."""
    return {f"{name}_ms": ms, name: iso(ms)}


def named(name: QueueName) -> Shape:
    return {"tenant": name.tenant, "queue": name.queue}


def explanation(found: Explanation) -> Shape:
    return {
        "id": found.job_id,
        "tenant": found.tenant,
        "queue": found.queue,
        "state": found.state,
        "where": found.where,
        "why": found.why,
        "happened": found.happened,
        "next": found.next,
        **times("next_at", found.next_at_ms),
    }


def enqueued(name: QueueName, answer: Enqueued) -> Shape:
    return {"id": answer.id, "duplicate": answer.duplicate, **named(name)}


def job(job: Job, cursor: str | None = None, *, with_cursor: bool = False) -> Shape:
    return {
        "id": job.id,
        "tenant": job.tenant,
        "queue": job.queue,
        "state": job.state,
        **data("payload", job.payload),
        "headers": job.headers,
        "group": job.group,
        "key": job.key,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "token": job.token,
        "replays": job.replays,
        **times("created_at", job.created_at_ms),
        **times("visible_at", job.visible_at_ms),
        **times("ended_at", job.ended_at_ms),
        "reason": job.reason,
        "error": job.error,
        **data("result", job.result),
        "progress": job.progress,
        "progress_note": job.progress_note,
        "lease_id": job.lease_id,
        **times("lease_until", job.lease_until_ms),
        "worker": job.worker,
        **({"cursor": cursor} if with_cursor else {}),
    }


def group(name: QueueName, group: GroupInfo, cursor: str | None) -> Shape:
    return {
        **named(name),
        "group": group.group,
        "waiting": group.waiting,
        "leased": group.leased,
        **times("oldest_at", group.oldest_at_ms),
        "at_limit": group.at_limit,
        "cursor": cursor,
    }


def step(step: Step) -> Shape:
    return {
        "name": step.name,
        "kind": step.kind,
        **data("value", step.value),
        **times("stored_at", step.stored_at_ms),
    }


def delivery(delivery: Delivery, until_ms: int) -> Shape:
    return {
        "id": delivery.id,
        "tenant": delivery.tenant,
        "queue": delivery.queue,
        "receipt": delivery.receipt,
        **data("payload", delivery.payload),
        "headers": delivery.headers,
        "key": delivery.key,
        "group": delivery.group,
        "priority": delivery.priority,
        "attempt": delivery.attempt,
        "max_attempts": delivery.max_attempts,
        "token": delivery.token,
        **times("created_at", delivery.created_at_ms),
        "lease_id": delivery.lease.hex(),
        **times("lease_until", until_ms),
    }


def event(event: Event, cursor: str | None = None, *, with_cursor: bool = False) -> Shape:
    return {
        "number": event.number,
        "commit": event.commit,
        "index": event.index,
        **times("time", event.time_ms),
        "type": event.type,
        "tenant": event.tenant,
        "queue": event.queue,
        "job_id": event.job_id,
        "state": event.state,
        "priority": event.priority,
        "attempt": event.attempt,
        "max_attempts": event.max_attempts,
        "token": event.token,
        "lease_id": event.lease_id,
        **times("at", event.at_ms),
        "reason": event.reason,
        "text": event.text,
        **({"cursor": cursor} if with_cursor else {}),
    }


def counts(counts: Counts) -> Shape:
    return {
        "ready": counts.ready,
        "scheduled": counts.scheduled,
        "waiting": counts.waiting,
        "leased": counts.leased,
        "done": counts.done,
        "dead": counts.dead,
        "enqueued": counts.enqueued,
        "removed": counts.removed,
        "blocked": counts.blocked,
        "at_least": counts.at_least,
    }


def policy(policy: Policy) -> Shape:
    built: Shape = msgspec.to_builtins(policy)
    return built


def queue(info: QueueInfo) -> Shape:
    return {
        "tenant": info.tenant,
        "queue": info.queue,
        "paused": info.paused,
        **counts(info.counts),
        "policy": msgspec.to_builtins(info.policy),
    }


def quota(info: QuotaInfo) -> Shape:
    built: Shape = msgspec.to_builtins(info)
    return built


def replayed(name: QueueName, answer: Replayed) -> Shape:
    return {
        **named(name),
        "count": answer.count,
        "ids": answer.ids,
        "skipped": answer.skipped,
        "dry_run": answer.dry_run,
        **times("last_visible_at", answer.last_visible_at_ms),
    }


def swept(answer: Swept) -> Shape:
    built: Shape = msgspec.to_builtins(answer)
    return built


def finding(finding: Finding) -> Shape:
    built: Shape = msgspec.to_builtins(finding)
    return built


def report(report: Report) -> Shape:
    return {
        "clean": report.clean,
        "ok": report.ok,
        "jobs": report.jobs,
        "events": report.events,
        "leases": report.leases,
        "queues": report.queues,
        "truncated": report.truncated,
        "findings": [finding(found) for found in report.findings],
    }
