"""Selects a claim's jobs: the first ready jobs of each priority that are undamaged, waiting and within their ttl."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from tenure.errors import Corrupt
from tenure.model.lease import ClaimRequest
from tenure.model.lifecycle import State
from tenure.queueing.job_rows import read_ready
from tenure.queueing.leases import whole_payload
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage.keyspace import READY, pack_ready
from tenure.storage.records import HAS_GROUP, JobRecord, StateRecord

_WAITING = int(State.WAITING)


#: The most rows that a claim reads to choose from.
_CHOICE = 2_048


Selected = tuple[bytes, bytes, StateRecord, JobRecord]
"""A job that a claim takes: its ready row, its id, its state and its body. A plain tuple, which is unpacked faster."""


class Selection(msgspec.Struct):
    """The jobs that a claim takes, and the rows that it skipped."""

    jobs: list[Selected] = []
    payload_bytes: int = 0
    #: Jobs past their ttl; ready rows without a waiting job; damaged jobs.
    expired: list[tuple[bytes, StateRecord]] = []
    orphans: list[bytes] = []
    damaged: list[Corrupt] = []
    #: The last ready row that was read, if the limit of skipped rows was reached.
    stopped: bytes | None = None

    @property
    def passed_over(self) -> int:
        return len(self.expired) + len(self.orphans) + len(self.damaged)


def select(
    unit: UnitOfWork,
    queue: RegisteredQueue,
    tiers: Sequence[bytes],
    until: bytes,
    request: ClaimRequest,
    after: bytes,
    inspect: int,
    spread: int,
) -> Selection:
    """Read ready rows after `after`, from the highest priority down, until `request.limit` jobs are found.

    Ends early, with `stopped` set, when `inspect` rows were skipped: jobs past their ttl, rows without a job, damage.
    With `spread` > 1 it reads `spread` times as many rows as it needs, and takes neighbours at a random position.
    """
    found, reader, wanted = Selection(), unit.tx.reader, request.limit
    for tier in tiers:
        begin, end = after if after > tier else tier, tier + until
        while begin < end:
            # Without a read conflict: the jobs' own rows are read too, and those conflict with other claims of them.
            most = wanted if spread == 1 else max(wanted, min(wanted * spread, _CHOICE))
            keys = reader.keys(READY, begin, end, most, snapshot=True)
            if not keys:
                break
            if spread > 1 and len(keys) > wanted:
                at = wanted * random.randrange(len(keys) // wanted)
                keys = keys[at : at + wanted]
            if not read_rows(unit, queue, request.max_bytes, keys, found, inspect):
                return found
            left = request.limit - len(found.jobs)
            if not left:
                return found
            if len(keys) < wanted:
                wanted = left
                break
            begin, wanted = keys[-1] + b"\0", left
    return found


def read_rows(
    unit: UnitOfWork, queue: RegisteredQueue, max_bytes: int | None, keys: list[bytes], found: Selection, inspect: int
) -> bool:
    """Read the jobs of these rows, and take the valid ones. False: `max_bytes` or `inspect` is reached."""
    number, now, taken = queue.number, unit.now, found.jobs
    for key, job, state, record in read_ready(unit.tx.reader, queue.prefix, keys):
        if type(state) is StateRecord and type(record) is JobRecord:
            tier, payload_bytes = 9 - state.priority + (state.flags & HAS_GROUP), record.payload_bytes
            indexed = state.state == _WAITING and key == pack_ready(number, tier, state.visible_at_ms, job)
            if indexed and not 0 < state.due_at_ms <= now:
                if max_bytes is not None and taken and found.payload_bytes + payload_bytes > max_bytes:
                    return False
                whole = _joined(unit, number, job, record, found) if record.parts else record
                if whole is not None:
                    found.payload_bytes += payload_bytes
                    taken.append((key, job, state, whole))
                    continue
            else:
                _pass_over(number, key, job, state, record, found)
        else:
            _pass_over(number, key, job, state, record, found)
        if found.passed_over >= inspect:
            found.stopped = key
            return False
    return True


def _joined(unit: UnitOfWork, number: int, job: bytes, record: JobRecord, found: Selection) -> JobRecord | None:
    """The job with its whole payload; None if a part is damaged."""
    try:
        return record._replace(payload=whole_payload(unit.tx, number, job, record))
    except Corrupt as exc:
        found.damaged.append(exc)
        return None


def _pass_over(
    number: int,
    key: bytes,
    job: bytes,
    state: StateRecord | Corrupt | None,
    record: JobRecord | Corrupt,
    found: Selection,
) -> None:
    """Sort out a row that is skipped. The caller removes orphans and expired jobs; damaged jobs stay for `check`."""
    if state is None:
        found.orphans.append(key)
    elif isinstance(state, Corrupt):
        found.damaged.append(state)
    elif isinstance(record, Corrupt):
        found.damaged.append(record)
    elif state.state == _WAITING and key == pack_ready(
        number, 9 - state.priority + (state.flags & HAS_GROUP), state.visible_at_ms, job
    ):
        found.expired.append((job, state))
    else:
        found.orphans.append(key)
