"""The sweep: expires leases, removes jobs past their ttl or retention, forgets keys, claims, writes and requests.

Each kind is one range of `due`, read from its front up to now. So a sweep's cost depends on what is due, not on the
store.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import NamedTuple

from tenure import telemetry
from tenure.errors import Corrupt
from tenure.model.ids import NO_ID
from tenure.model.job import Swept
from tenure.model.lifecycle import TERMINAL, Change, Reason, State
from tenure.model.retry import LEASE_EXPIRED, after_expiry
from tenure.queueing import groups, staged_writes
from tenure.queueing.core import Core
from tenure.queueing.flows import keep_for_children
from tenure.queueing.journal import trim
from tenure.queueing.leases import CLAIM_MEMORY_MS, close_jobs, end_lease, held_jobs, read_lease
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.removal import remove
from tenure.queueing.settle import give_back, kill
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import Counter, Due, DueKey
from tenure.storage.records import LeaseRecord, StateRecord

#: How many rows of a kind one transaction of a sweep handles.
BATCH = 200
#: How many jobs of expired leases one transaction handles; the next transaction handles the rest.
_JOBS = 2_000
#: The most pages that one sweep reads to get past unreadable rows.
_PAGES = 500
#: How many request outcomes one transaction deletes: a server makes thousands a second, and deleting needs no reads.
_REQUESTS = 1_000
#: When a key's window has passed but its job has not ended, the key is due again after this time.
_LOOK_AGAIN_MS = 3_600_000


def sweep(core: Core) -> Swept:
    """One pass: normally one transaction for each kind, each of at most `BATCH` rows."""
    now = core.time.now_ms()
    # Parked turns are handled by claims.
    kinds = core.read(lambda reader: [kind for kind in Due if kind != Due.TURN and _due(reader, kind, now, 1)])
    done: dict[str, int] = {}
    more = False
    for kind in kinds:
        more = _sweep_pages(core, kind, done) or more
    trimmed, left = trim(core)
    return Swept(**done, events_trimmed=trimmed, more=more or left)


def _sweep_pages(core: Core, kind: Due, done: dict[str, int]) -> bool:
    """Sweep a kind, skipping unreadable rows. Returns whether another sweep should follow at once.

    An unreadable row stays, for `check` to report. It must not keep the rows after it from being swept.
    """
    after, unreadable, more = b"", 0, False
    for _ in range(_PAGES):
        page = sweep_page(core, kind, after)
        for name, count in page.counted.items():
            done[name] = done.get(name, 0) + count
        unreadable += page.unreadable
        more = page.more
        if not page.unreadable or page.last is None:
            break
        after = page.last
    if unreadable != core.unreadable_due.get(kind, 0):
        core.unreadable_due[kind] = unreadable
        if unreadable:
            telemetry.warn("due_rows_unreadable", kind=kind.name.lower(), count=unreadable, advice="run a check")
    return more


def sweep_page(core: Core, kind: Due, after: bytes = b"") -> Page:
    """Sweep rows of a kind after this one, in one transaction, or each in its own.

    What a row's end means for other rows is read when the transaction ends: for the job's children, its counters. If one
    of those is damaged, nothing of the page is written, and only the row that needs it must stay.
    """
    try:
        return core.write(lambda unit: _sweep_kind(core, unit, kind, after, BATCH))
    except Corrupt:
        found = core.read(lambda reader: _due(reader, kind, core.time.now_ms(), BATCH, after))
    counted: dict[str, int] = {}
    unreadable = 0
    for row in found:
        try:
            page = core.write(lambda unit: _sweep_kind(core, unit, kind, after, 1))  # noqa: B023 - it is called at once
        except Corrupt:
            unreadable += 1
        else:
            unreadable += page.unreadable
            for name, count in page.counted.items():
                counted[name] = counted.get(name, 0) + count
        after = keyspace.due(*row)
    full = len(found) == BATCH
    return Page(counted, full and unreadable < BATCH, unreadable, after if full else None)


def _due(reader: Reader, kind: Due, now_ms: int, limit: int, after: bytes = b"") -> list[DueKey]:
    """The rows that are due, after `after`, earliest first."""
    begin = after + b"\0" if after else keyspace.due_prefix(kind)
    # Without a read conflict: the row that a due row refers to is read too, and conflicts with other processes.
    keys = reader.keys(keyspace.DUE, begin, keyspace.due_until(kind, now_ms), limit, snapshot=True)
    return [keyspace.split_due(key) for key in keys]


class Page(NamedTuple):
    """The result of one transaction on rows of a kind."""

    counted: dict[str, int]
    #: Whether another sweep should follow at once.
    more: bool
    #: The number of unreadable rows, which stay; and the last row that was read, if there may be more after it.
    unreadable: int = 0
    last: bytes | None = None


def _sweep_kind(core: Core, unit: UnitOfWork, kind: Due, after: bytes, most: int) -> Page:
    """Sweep up to `most` rows of a kind after this one."""
    if kind is Due.REQUEST:
        return Page(*_forget_requests(unit))
    if kind is Due.LEASE:
        return expire(core, unit, after, most)
    batch = unit.tx.at_most(most)
    rows = _due(unit.tx, kind, unit.now, batch, after)
    name, handle = _HANDLERS[kind]
    counted_rows = handled = unreadable = 0
    seen: set[tuple[int, bytes]] = set()
    for row in rows:
        if (row.queue, row.reference) in seen:
            # A key that was used again has two due rows; the first has been handled.
            unit.tx.delete(keyspace.DUE, keyspace.due(kind, row.time_ms, row.queue, row.reference))
            continue
        seen.add((row.queue, row.reference))
        try:
            counted_rows += handle(unit, row)
            handled += 1
        except Corrupt:
            unreadable += 1
    full = len(rows) == batch
    last = keyspace.due(*rows[-1]) if full else None
    return Page({name: counted_rows}, handled > 0 and full, unreadable, last)


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Expired(NamedTuple):
    """An expired lease, read before anything was written."""

    row: DueKey
    queue: RegisteredQueue
    record: LeaseRecord
    jobs: list[tuple[bytes, StateRecord]]
    damaged: int
    #: The digest of its claim's arguments, if the claim was made with an id.
    arguments: bytes | None
    #: It holds more jobs than one transaction handles: `jobs` are the first of them, and the lease stays.
    cut: bool


def expire(core: Core, unit: UnitOfWork, after: bytes = b"", limit: int = BATCH) -> Page:
    """Take over up to `limit` expired leases after `after`: their jobs wait again, or die after their last attempt."""
    expired: list[_Expired] = []
    stale: list[DueKey] = []
    jobs = back = dead = unreadable = 0
    # All leases are read before any write: a job that was released and claimed again is in the lists of two leases.
    rows = _due(unit.tx, Due.LEASE, unit.now - core.engine.traits.grace_ms, limit, after)
    last = keyspace.due(*rows[-1]) if len(rows) == limit else None
    most = unit.tx.at_most(_JOBS)
    for number, row in enumerate(rows):
        if jobs >= most:
            last = keyspace.due(*rows[number - 1])
            break
        if not unit.tx.may_take_over(keyspace.of_queue(row.queue, row.reference)):
            continue  # expired by this host's clock, but not by the cluster's versions
        try:
            found = _read_expired(core, unit, row, None if most == _JOBS else most - jobs)
        except Corrupt:
            unreadable += 1
            continue
        if found is None:
            stale.append(row)
        else:
            expired.append(found)
            jobs += len(found.jobs)
            if found.cut:
                last = keyspace.due(*rows[number - 1]) if number else after
                break
    for row in stale:
        unit.tx.delete(keyspace.DUE, keyspace.due(Due.LEASE, row.time_ms, row.queue, row.reference))
    for found in expired:
        given = _expire_one(unit, found)
        back += given
        dead += len(found.jobs) - given
        _log_expired(found)
    changed = len(stale) + len(expired)
    counted = {"leases": changed - sum([found.cut for found in expired]), "jobs_back": back, "jobs_dead": dead}
    return Page(counted, changed > 0 and last is not None, unreadable, last)


#: The most jobs that one log line names.
_NAMED = 100


def _log_expired(found: _Expired) -> None:
    """Log the jobs of an expired lease. Logged inside the transaction, which rarely runs twice."""
    if telemetry.wanted(logging.INFO):
        name, ids = found.queue.name, [job.hex() for job, _ in found.jobs]
        telemetry.inform(
            "lease_expired",
            tenant=name.tenant,
            queue=name.queue,
            lease=found.row.reference.hex(),
            worker=found.record.worker.rstrip(b"\0").decode("utf-8", "replace"),
            count=len(ids),
            jobs=ids[:_NAMED],
        )


def _read_expired(core: Core, unit: UnitOfWork, row: DueKey, most: int | None) -> _Expired | None:
    """The expired lease of a due row; None: the row is stale. Raises Corrupt if the lease or all its jobs are damaged.

    `most`: the most jobs to return.
    """
    tx, lease = unit.tx, row.reference
    queue = core.registry.by_number(tx, row.queue)
    record = None if queue is None else read_lease(tx, row.queue, lease)
    if queue is None or record is None or record.expires_at_ms != row.time_ms:
        return None
    held, damaged = held_jobs(tx, row.queue, lease)
    if damaged and not held:
        raise Corrupt(f"lease {lease.hex()} holds {damaged} damaged jobs")
    claim = tx.get(keyspace.CLAIMS, keyspace.of_queue(row.queue, record.claim)) if record.claim != NO_ID else None
    arguments = None if claim is None else records.decode_claim(claim).asked
    cut = most is not None and len(held) > most
    return _Expired(row, queue, record, held[:most], damaged, arguments, cut)


def _expire_one(unit: UnitOfWork, found: _Expired) -> int:
    """End an expired lease. Returns how many of its jobs wait again; the others died."""
    tx, row, queue, record = unit.tx, found.row, found.queue, found.record
    back = 0
    for job, state in found.jobs:
        if state.flags & records.HAS_GROUP:
            groups.let_go_of(unit, row.queue, job, queue)
        roll = random.random()
        verdict = after_expiry(queue.policy, state.attempt, state.max_attempts, unit.now, roll)
        if verdict.retry_at_ms is None:
            error = f"{LEASE_EXPIRED} (worker {record.worker_name or 'unnamed'})"
            kill(unit, queue, job, state, Reason.MAX_ATTEMPTS, error, NO_ID)
        else:
            again = state._replace(visible_at_ms=verdict.retry_at_ms)
            give_back(unit, queue, job, again, Change.EXPIRED, NO_ID)
            back += 1
    if found.damaged or found.cut:
        close_jobs(tx, row.queue, row.reference, record, len(found.jobs))
    else:
        end_lease(tx, row.queue, row.reference, record)
    if found.arguments is not None and found.jobs:
        at = keyspace.of_queue(row.queue, record.claim)
        tx.put(keyspace.CLAIMS, at, records.encode_claim(row.reference, found.arguments, expired=True))
    unit.count(row.queue, Counter.LEASED, -len(found.jobs))
    unit.freed(queue, len(found.jobs))
    return back


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def retire_due(unit: UnitOfWork, limit: int) -> int:
    """Remove up to `limit` done jobs past their retention. Called by `cleanup`."""
    return sum([_retire(unit, row) for row in _due(unit.tx, Due.RETENTION, unit.now, limit)])


def pass_ttl(unit: UnitOfWork, rows: Sequence[DueKey]) -> int:
    """Remove jobs past their ttl. Called by claims."""
    return sum([_past_ttl(unit, row) for row in rows])


def _past_ttl(unit: UnitOfWork, row: DueKey) -> int:
    return _remove_if(unit, row, (State.WAITING, State.BLOCKED), Change.TTL_PASSED)


def _retire(unit: UnitOfWork, row: DueKey) -> int:
    return _remove_if(unit, row, (State.DONE,), Change.RETIRED)


def _remove_if(unit: UnitOfWork, row: DueKey, expected: tuple[State, ...], change: Change) -> int:
    """Remove the job if the due row still belongs to it; else delete the stale row."""
    raw = unit.tx.get(keyspace.STATE, keyspace.of_queue(row.queue, row.reference))
    state = None if raw is None else records.decode_state(raw, row.reference)
    if state is None or state.state not in expected or state.due_at_ms != row.time_ms:
        unit.tx.delete(keyspace.DUE, keyspace.due(Due(row.kind), row.time_ms, row.queue, row.reference))
        return 0
    if state.state == State.DONE and state.flags & records.HAS_CHILDREN and keep_for_children(unit, row, state):
        return 0
    remove(unit, row.queue, row.reference, state, change)
    return 1


# ── keys and claims ──────────────────────────────────────────────────────────────────────────────────────────────────


def _forget_key(unit: UnitOfWork, row: DueKey) -> int:
    """Delete a key past its window, unless its job has not ended, or another job holds it by now."""
    tx, at = unit.tx, keyspace.of_queue(row.queue, row.reference)
    raw = tx.get(keyspace.DEDUP, at)
    record = None if raw is None else records.decode_dedup(raw)
    raw = None if record is None else tx.get(keyspace.STATE, keyspace.of_queue(row.queue, record.job))
    alive = record is not None and raw is not None and records.decode_state(raw, record.job).state not in TERMINAL
    tx.delete(keyspace.DUE, keyspace.due(Due.DEDUP, row.time_ms, row.queue, row.reference))
    if record is None or record.until_ms > unit.now:
        return 0
    if alive:
        later = unit.now + _LOOK_AGAIN_MS
        tx.put(keyspace.DUE, keyspace.due(Due.DEDUP, later, row.queue, row.reference), b"")
        return 0
    tx.delete(keyspace.DEDUP, at)
    return 1


def _forget_claim(unit: UnitOfWork, row: DueKey) -> int:
    tx, at = unit.tx, keyspace.of_queue(row.queue, row.reference)
    raw = tx.get(keyspace.CLAIMS, at)
    lease = None if raw is None else read_lease(tx, row.queue, records.decode_claim(raw).lease)
    tx.delete(keyspace.DUE, keyspace.due(Due.CLAIM, row.time_ms, row.queue, row.reference))
    if raw is None:
        return 0
    if lease is not None:
        again = lease.expires_at_ms + CLAIM_MEMORY_MS
        tx.put(keyspace.DUE, keyspace.due(Due.CLAIM, again, row.queue, row.reference), b"")
        return 0
    tx.delete(keyspace.CLAIMS, at)
    tx.delete(keyspace.CLAIMS, keyspace.of_queue(0, row.reference))  # the queue that served a `claim_any`
    return 1


def _forget_requests(unit: UnitOfWork) -> tuple[dict[str, int], bool]:
    """Delete request outcomes past their time. Their due rows hold the number of parts, so no outcome is read."""
    most = unit.tx.at_most(_REQUESTS)
    rows = _due(unit.tx, Due.REQUEST, unit.now, most)
    keys = [keyspace.request(row.reference, part) for row in rows for part in range(row.queue + 1)]
    unit.tx.delete_many(keyspace.REQUESTS, keys)
    unit.tx.delete_many(keyspace.DUE, [keyspace.due(*row) for row in rows])
    return {"requests_forgotten": len(rows)}, len(rows) == most


_HANDLERS = {
    Due.TTL: ("ttl_passed", _past_ttl),
    Due.RETENTION: ("retired", _retire),
    Due.DEDUP: ("keys_forgotten", _forget_key),
    Due.CLAIM: ("claims_forgotten", _forget_claim),
    Due.WRITE: ("writes_forgotten", staged_writes.forget_due),
}
