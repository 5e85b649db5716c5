"""What time brings: leases that run out, jobs past their ttl or retention, keys and claims to forget.

Each kind is one range of `due`, read from its front up to now, so a sweep costs what is due, never what is stored.
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
from tenure.model.retry import after_expiry
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

#: How many rows of a kind one transaction of a sweep takes on.
BATCH = 200
#: An expired lease may hold thousands of jobs: past this many, the transaction leaves the rest to the next.
_JOBS = 2_000
#: Pages of rows that a sweep looks at because rows of the page before could not be read.
_PAGES = 500
#: A server's requests are forgotten as fast as they came, thousands a second, and forgetting reads nothing.
_REQUESTS = 1_000
#: How soon to look again at a key or claim that outlives its time because its job or lease does.
_LOOK_AGAIN_MS = 3_600_000


def sweep(core: Core) -> Swept:
    """One pass: at most one transaction a kind, each of at most `BATCH` rows."""
    now = core.time.now_ms()
    # Turns are brought back by the claims that they are for.
    kinds = core.read(lambda reader: [kind for kind in Due if kind != Due.TURN and _due(reader, kind, now, 1)])
    done: dict[str, int] = {}
    more = False
    for kind in kinds:
        more = _sweep_pages(core, kind, done) or more
    trimmed, left = trim(core)
    return Swept(**done, events_trimmed=trimmed, more=more or left)


def _sweep_pages(core: Core, kind: Due, done: dict[str, int]) -> bool:
    """Sweep a kind, stepping past rows that cannot be read; says whether it is worth coming back at once.

    A row that cannot be read stays where it is, for `check` to find. It must not keep the rows behind it from being swept.
    """
    after, unreadable, more = b"", 0, False
    for _ in range(_PAGES):
        page = core.write(lambda unit, after=after: _sweep_kind(core, unit, kind, after))  # type: ignore[misc]
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


def _due(reader: Reader, kind: Due, now_ms: int, limit: int, after: bytes = b"") -> list[DueKey]:
    """Rows that are due, behind `after`, earliest first."""
    begin = after + b"\0" if after else keyspace.due_prefix(kind)
    # A row that another process acts upon meanwhile is met again by what it refers to, which is read as well.
    keys = reader.keys(keyspace.DUE, begin, keyspace.due_until(kind, now_ms), limit, snapshot=True)
    return [keyspace.split_due(key) for key in keys]


class Page(NamedTuple):
    """What was done to some rows of a kind."""

    counted: dict[str, int]
    #: Whether it is worth coming back at once.
    more: bool
    #: Rows that could not be read, and are left where they are; and the last row looked at, if there may be others behind it.
    unreadable: int = 0
    last: bytes | None = None


def _sweep_kind(core: Core, unit: UnitOfWork, kind: Due, after: bytes) -> Page:
    if kind is Due.REQUEST:
        return Page(*_forget_requests(unit))
    if kind is Due.LEASE:
        return expire(core, unit, after)
    batch = unit.tx.at_most(BATCH)
    rows = _due(unit.tx, kind, unit.now, batch, after)
    name, handle = _HANDLERS[kind]
    counted_rows = handled = unreadable = 0
    seen: set[tuple[int, bytes]] = set()
    for row in rows:
        if (row.queue, row.reference) in seen:
            # A key that was taken anew has two rows; one of them has been acted upon.
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
    """A lease that has run out, as read before anything was written."""

    row: DueKey
    queue: RegisteredQueue
    record: LeaseRecord
    jobs: list[tuple[bytes, StateRecord]]
    damaged: int
    #: What its claim asked for, if it was made with an id.
    asked: bytes | None
    #: It holds more jobs than one transaction takes on: `jobs` are the first of them, and the lease stays.
    cut: bool


def expire(core: Core, unit: UnitOfWork, after: bytes = b"", limit: int = BATCH) -> Page:
    """Take over up to `limit` leases that have run out, behind `after`: their jobs go back, or die of their last attempt."""
    expired: list[_Expired] = []
    stale: list[DueKey] = []
    jobs = back = dead = unreadable = 0
    # All are read before any is written: a job that was released and claimed again is in the lists of two of them.
    rows = _due(unit.tx, Due.LEASE, unit.now - core.engine.traits.grace_ms, limit, after)
    last = keyspace.due(*rows[-1]) if len(rows) == limit else None
    most = unit.tx.at_most(_JOBS)
    for number, row in enumerate(rows):
        if jobs >= most:
            last = keyspace.due(*rows[number - 1])
            break
        if not unit.tx.may_take_over(keyspace.of_queue(row.queue, row.reference)):
            continue  # by this host's clock it has run out, and by the cluster's versions it has not
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


#: Jobs that one line of log names.
_NAMED = 100


def _log_expired(found: _Expired) -> None:
    """Which jobs a worker lost by not coming back in time. Logged within the transaction, which is rarely run again."""
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
    """None: the row is left over. Raises Corrupt if the lease cannot be read, or holds nothing but damaged jobs.

    `most`: of its jobs, no more than so many.
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
    asked = None if claim is None else records.decode_claim(claim).asked
    cut = most is not None and len(held) > most
    return _Expired(row, queue, record, held[:most], damaged, asked, cut)


def _expire_one(unit: UnitOfWork, found: _Expired) -> int:
    """Returns how many of its jobs went back; the others died."""
    tx, row, queue, record = unit.tx, found.row, found.queue, found.record
    back = 0
    for job, state in found.jobs:
        if state.flags & records.HAS_GROUP:
            groups.let_go_of(unit, row.queue, job, state)
        roll = random.random()
        verdict = after_expiry(queue.policy, state.attempt, state.max_attempts, unit.now, roll)
        if verdict.retry_at_ms is None:
            error = f"the lease expired (worker {record.worker_name or 'unnamed'})"
            kill(unit, queue, job, state, Reason.MAX_ATTEMPTS, error, NO_ID)
        else:
            again = state._replace(visible_at_ms=verdict.retry_at_ms)
            give_back(unit, queue, job, again, Change.EXPIRED, NO_ID)
            back += 1
    if found.damaged or found.cut:
        close_jobs(tx, row.queue, row.reference, record, len(found.jobs))
    else:
        end_lease(tx, row.queue, row.reference, record)
    if found.asked is not None and found.jobs:
        at = keyspace.of_queue(row.queue, record.claim)
        tx.put(keyspace.CLAIMS, at, records.encode_claim(row.reference, found.asked, expired=True))
    unit.count(row.queue, Counter.LEASED, -len(found.jobs))
    unit.freed(queue, len(found.jobs))
    return back


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def retire_due(unit: UnitOfWork, limit: int) -> int:
    """Remove up to `limit` done jobs whose retention has passed: `cleanup`'s share of the sweep."""
    return sum([_retire(unit, row) for row in _due(unit.tx, Due.RETENTION, unit.now, limit)])


def pass_ttl(unit: UnitOfWork, rows: Sequence[DueKey]) -> int:
    """Remove jobs whose ttl has passed: a claim's share of the sweep."""
    return sum([_past_ttl(unit, row) for row in rows])


def _past_ttl(unit: UnitOfWork, row: DueKey) -> int:
    return _remove_if(unit, row, (State.WAITING, State.BLOCKED), Change.TTL_PASSED)


def _retire(unit: UnitOfWork, row: DueKey) -> int:
    return _remove_if(unit, row, (State.DONE,), Change.RETIRED)


def _remove_if(unit: UnitOfWork, row: DueKey, expected: tuple[State, ...], change: Change) -> int:
    """Remove the job if it is still what the row was written for; else the row is left over, and goes."""
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
    """A key's window has passed: forget it, unless its job has not ended, or another job has taken it since."""
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
    tx.delete(keyspace.CLAIMS, keyspace.of_queue(0, row.reference))  # which queue served it, if it was from any
    return 1


def _forget_requests(unit: UnitOfWork) -> tuple[dict[str, int], bool]:
    """Outcomes whose time has passed: told whole by their due rows, so nothing is read of them."""
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
