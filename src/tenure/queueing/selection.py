"""What a claim takes: the first ready jobs of each priority that are whole, waiting and in time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tenure.errors import Corrupt
from tenure.model.lease import ClaimRequest
from tenure.model.lifecycle import State
from tenure.queueing.leases import whole_payload
from tenure.queueing.registry import Registered
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage.engine import get_each
from tenure.storage.keyspace import JOBS, READY, READY_JOB, STATE, ready
from tenure.storage.records import JobRecord, StateRecord, decode_jobs, decode_states, new_tuple

_WAITING = int(State.WAITING)
#: Ready rows that may be passed over (expired, orphaned, damaged) before a claim settles for what it has.
_PASSED_OVER = 10_000


#: Rows that a claim reads at most to choose among, beyond those it takes.
_CHOICE = 2_048


class Selected(NamedTuple):
    """A job that a claim takes, as it was read."""

    key: bytes
    """Its ready row."""
    job: bytes
    state: StateRecord
    record: JobRecord


class Selection:
    """Jobs that a claim takes, and what was wrong on the way."""

    __slots__ = ("bytes", "damaged", "expired", "jobs", "orphans")

    def __init__(self) -> None:
        self.jobs: list[Selected] = []
        #: Of their payloads.
        self.bytes = 0
        #: Jobs past their ttl; ready rows without a job; damage.
        self.expired: list[tuple[bytes, StateRecord]] = []
        self.orphans: list[bytes] = []
        self.damaged: list[Corrupt] = []


def select(
    unit: UnitOfWork, queue: Registered, tiers: Sequence[bytes], until: bytes, request: ClaimRequest
) -> Selection:
    """Read ready rows from the highest priority down until `request.limit` jobs are found.

    Where the transaction says so (`spread`), the rows are chosen at random among the first ones, side by side.
    """
    spread = unit.tx.spread
    found = _select(unit, queue, tiers, until, request, spread)
    # What was chosen could not be taken, and there may be others before and behind it.
    return found if found.jobs or spread == 1 else _select(unit, queue, tiers, until, request, 1)


def _select(
    unit: UnitOfWork, queue: Registered, tiers: Sequence[bytes], until: bytes, request: ClaimRequest, spread: int
) -> Selection:
    found = Selection()
    jobs, limit, passed = found.jobs, request.limit, 0
    for tier in tiers:
        begin, end = tier, tier + until
        wanted = limit - len(jobs)
        while wanted > 0:
            # Without conflict: the jobs' own rows are read, and those conflict with whoever else takes them.
            keys = unit.tx.keys(READY, begin, end, min(wanted * spread, max(wanted, _CHOICE)), snapshot=True)
            if not keys:
                break
            if len(keys) > wanted:
                at = wanted * random.randrange(len(keys) // wanted)
                keys = keys[at : at + wanted]
            before = len(jobs)
            if not _read(unit, queue, request.max_bytes, keys, found):
                return found
            if len(keys) < wanted:
                break
            wanted = limit - len(jobs)
            passed += len(keys) - (len(jobs) - before)
            if passed > _PASSED_OVER and jobs:
                return found
            begin = keys[-1] + b"\0"
        if len(jobs) >= limit:
            break
    return found


def _read(unit: UnitOfWork, queue: Registered, max_bytes: int | None, keys: list[bytes], found: Selection) -> bool:
    """Read the jobs these rows point at, and take those that are good. False: `max_bytes` is reached."""
    tx, number, prefix, now = unit.tx, queue.number, queue.prefix, unit.now
    jobs = [key[READY_JOB] for key in keys]
    rows = [prefix + job for job in jobs]
    states = decode_states(get_each(tx, STATE, rows), jobs)
    bodies = decode_jobs(get_each(tx, JOBS, rows), jobs)
    for key, job, state, record in zip(keys, jobs, states, bodies, strict=True):
        if type(state) is not StateRecord or type(record) is not JobRecord:
            _pass_over(key, state, record, found)
            continue
        if state.state != _WAITING or key != ready(number, state.priority, state.visible_at_ms, job):
            found.orphans.append(key)
            continue
        if state.due_at_ms and state.due_at_ms <= now:
            found.expired.append((job, state))
            continue
        if max_bytes is not None and found.jobs and found.bytes + record.payload_bytes > max_bytes:
            return False
        if record.parts:
            try:
                record = record._replace(payload=whole_payload(tx, number, job, record))
            except Corrupt as exc:
                found.damaged.append(exc)
                continue
        found.bytes += record.payload_bytes
        found.jobs.append(new_tuple(Selected, (key, job, state, record)))
    return True


def _pass_over(key: bytes, state: StateRecord | Corrupt | None, record: JobRecord | Corrupt, found: Selection) -> None:
    """A row without a job is cleared; a damaged job stays where it is, for `check` to find."""
    if state is None:
        found.orphans.append(key)
    elif isinstance(state, Corrupt):
        found.damaged.append(state)
    elif isinstance(record, Corrupt):
        found.damaged.append(record)
