"""A small store with every kind of row, and the queries and verbs whose answers are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import tenure
from tenure import Backoff, NewJob, Policy, Where
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.testing.harness import backend_of

START_MS = 1_800_000_000_000
QUEUES = (("work", "default"), ("paused", "default"), ("work", "acme"), ("together", "default"))
Known = dict[str, Any]
"""What the asker knows beforehand: ids, keys, claim ids."""


def clock_at(phase: int) -> ManualClock:
    """The clock of the n-th opening: a minute after the last one, in the same boot of the machine."""
    clock = ManualClock(START_MS)
    clock.advance(60 * phase)
    return clock


# ── filling it ───────────────────────────────────────────────────────────────────────────────────────────────────────

PHASES = 3


def fill_small(store: Store, phase: int, known: Known) -> None:
    """As `fill`, with a few rows, so that each byte of the files can be damaged in turn."""
    name, tenant = QUEUES[0]
    known["queues"] = [QUEUES[0]]
    queue = store.queue(name, tenant=tenant)
    if not phase:
        queue.configure(Policy(max_attempts=2, backoff=Backoff.fixed(5), retention=86_400))
    key = f"key {phase}"
    jobs: list[NewJob | bytes] = [
        NewJob(b"keyed", key=key, headers={"n": "1"}),
        NewJob(b"later", delay=3600),
        b"plain",
        b"to fail",
        b"held",
    ]
    known.setdefault("keys", []).append([name, tenant, key])
    known.setdefault("ids", []).extend([name, tenant, queue.enqueue(job).id] for job in jobs)
    known.setdefault("requests", []).append([name, tenant, f"request {phase}"])
    _request(store, *known["requests"][-1])
    claim = queue.claim(limit=3, lease=7200, worker="w1", id=f"claim-{phase}")
    known.setdefault("claims", []).append([name, tenant, f"claim-{phase}"])
    queue.ack(claim[0], b"a result")
    queue.nack(claim[1], "it broke", delay=1000)


def fill(store: Store, phase: int, known: Known) -> None:
    """Fill the store in one phase; between phases it is closed and opened again."""
    known["queues"] = QUEUES
    ids: list[list[str]] = known.setdefault("ids", [])
    if phase == 0:
        store.apply(
            {
                "work": Policy(max_attempts=2, backoff=Backoff.fixed(5), retention=86_400),
                "paused": Policy(retention=10),
            }
        )
        store.queue("paused").pause()
    for name, tenant in QUEUES:
        queue = store.queue(name, tenant=tenant)
        if name == "together":
            ids.extend([name, tenant, answer.id] for answer in queue.enqueue_many(_alike(phase)))
            continue
        jobs = _jobs(name, tenant, phase)
        known.setdefault("keys", []).extend([name, tenant, job.key] for job in jobs if job.key is not None)
        ids.extend([name, tenant, answer.id] for answer in queue.enqueue_many(jobs))
        ids.extend([name, tenant, queue.enqueue(b"one by one %d" % n, priority=n).id] for n in range(3))
    for name, tenant in QUEUES:
        known.setdefault("requests", []).append([name, tenant, f"{tenant}/{name}/{phase}"])
        _request(store, *known["requests"][-1])
    _work(store, phase, known)


def _jobs(name: str, tenant: str, phase: int) -> list[NewJob]:
    tag = f"{tenant}/{name}/{phase}"
    count = 30 if name == "work" else 5
    groups = [None, "g1", "g2"] if tenant == "acme" else [None]
    jobs = [
        NewJob(f"{tag}/{n}".encode() * (1 + n % 7), priority=n % 10, group=groups[n % len(groups)])
        for n in range(count)
    ]
    jobs += [NewJob(b"later " * 5, delay=3600 * (n + 1)) for n in range(5)]
    jobs += [NewJob(tag.encode(), key=f"{tag}/{n}", headers={"trace": tag, "n": str(n)}) for n in range(6)]
    jobs += [NewJob(b"soon gone", ttl=7200), NewJob(b"", max_attempts=1)]
    if phase != 1 and name == "work":
        jobs.append(NewJob((tag.encode() + b"!") * 9_000, priority=4))  # in parts
    return jobs


def _alike(phase: int) -> list[bytes]:
    """Payloads of plain jobs, stored as one segment, of which claims take the first jobs."""
    return [b"alike %d/%d" % (phase, n) for n in range(40)]


def _work(store: Store, phase: int, known: Known) -> None:
    claims: list[list[str]] = known.setdefault("claims", [])
    for name, tenant in QUEUES:
        queue = store.queue(name, tenant=tenant)
        claim = queue.claim(limit=12, lease=7200, worker="w1", id=f"claim-{phase}")
        if not claim:
            continue
        claims.append([name, tenant, f"claim-{phase}"])
        deliveries = list(claim)
        queue.ack(deliveries[0], b"a result")
        queue.ack(deliveries[1], b"large " * 12_000 if phase == 0 and tenant == "acme" else None)
        queue.nack(deliveries[2], "it broke", delay=1000)
        queue.fail(deliveries[3], "it can never work")
        queue.fail(deliveries[4], "Timeout")
        queue.release(deliveries[5])
        queue.cancel(deliveries[6].id)
        queue.extend(claim, 9000)
        queue.progress(deliveries[7], 0.5, "half way")
        if name != "together":  # or else the rest would not be any longer
            queue.claim(limit=2, lease=3600, worker="w2")
        queue.replay(where=Where(error="Timeout"))
    store.events(limit=10, consumer="reader")


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────

Question = tuple[str, Callable[[], Any]]


def looks(store: Store, known: Known) -> list[Question]:
    """Queries, which change nothing."""
    asked: list[Question] = []
    for name, tenant in known["queues"]:
        queue = store.queue(name, tenant=tenant)
        asked.append((f"counts {tenant}/{name}", queue.counts))
        asked.append((f"policy {tenant}/{name}", queue.policy))
        asked.append((f"groups {tenant}/{name}", partial(queue.groups, 1000)))
        asked += [
            (f"list {state} {tenant}/{name}", partial(_listed, queue, state))
            for state in ("ready", "scheduled", "leased", "done", "dead")
        ]
    asked.append(("queues", lambda: [(q.tenant, q.queue, q.number, q.paused, q.counts) for q in store.queues()]))
    asked.append(("upcoming", lambda: [job.id for job in store.upcoming(limit=1000)]))
    asked.append(("events", lambda: _events(store)))
    for at, (name, tenant, job_id) in enumerate(known["ids"]):
        queue = store.queue(name, tenant=tenant)
        asked.append((f"get {job_id}", partial(queue.get, job_id)))
        if at % 5 == 0:
            asked.append((f"timeline {job_id}", partial(queue.timeline, job_id)))
    return asked


def verbs(store: Store, known: Known) -> list[Question]:
    """Verbs whose answers depend on the stored rows."""
    asked: list[Question] = []
    limit = 12 if len(known["queues"]) > 1 else 3
    for name, tenant, claim_id in known["claims"]:
        queue = store.queue(name, tenant=tenant)
        repeat = partial(_claim, queue, limit=limit, lease=7200, worker="w1", id=claim_id)
        asked.append((f"claim again {tenant}/{name} {claim_id}", repeat))
    for name, tenant, key in known["keys"]:
        queue = store.queue(name, tenant=tenant)
        # With another payload it must be refused: this checks the key without adding a job.
        asked.append((f"key {key}", partial(_conflict, queue, key)))
    for name, tenant, request in known["requests"]:
        asked.append((f"request {request}", partial(_request, store, name, tenant, request)))
    asked.append(("a new queue", lambda: _new_queue(store)))
    for name, tenant in known["queues"]:
        queue = store.queue(name, tenant=tenant)
        asked.append((f"claim all {tenant}/{name}", partial(_claim, queue, limit=1000, lease=60)))
    return asked


def answer(question: Callable[[], Any]) -> str:
    """A digest of the answer. Raises the question's error."""
    return hashlib.blake2b(repr(question()).encode(), digest_size=12).hexdigest()


def _listed(queue: Queue, state: str) -> list[object]:
    found: list[object] = []
    cursor = None
    while True:
        page = queue.list(state, limit=40, cursor=cursor)
        found += page.jobs
        cursor = page.cursor
        if cursor is None:
            return found


def _events(store: Store) -> list[object]:
    found: list[object] = []
    page = store.events(limit=400)
    while page.events:
        found += page.events
        page = store.events(after=page.cursor, limit=400)
    return found


def _claim(queue: Queue, **asked: Any) -> list[object]:
    claim = queue.claim(**asked)
    return [(d.id, d.token, d.attempt, d.payload, d.headers, d.key, d.priority) for d in claim]


def _conflict(queue: Queue, key: str) -> object:
    try:
        return queue.enqueue(b"another payload", key=key).duplicate
    except tenure.errors.KeyConflict as conflict:
        return conflict.existing


def _request(store: Store, name: str, tenant: str, request: str) -> object:
    """Repeat a request: it must not add a job."""
    return backend_of(store).once(request.encode()).enqueue(QueueName(tenant, name), [JobRequest(request.encode())])


def _new_queue(store: Store) -> object:
    store.queue("new").enqueue(b"first")
    return [(q.tenant, q.queue, q.number) for q in store.queues()]
