"""What a claim takes: the first ready jobs of each priority that are whole, waiting and in time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from tenure.errors import Corrupt
from tenure.model.lease import ClaimRequest
from tenure.model.lifecycle import State
from tenure.queueing.leases import whole_payload
from tenure.queueing.ledger import Ledger
from tenure.queueing.registry import Registered
from tenure.storage import keyspace, records
from tenure.storage.engine import get_each
from tenure.storage.records import JobFields, JobRecord, StateFields, StateRecord

_WAITING = int(State.WAITING)
#: Ready rows that may be passed over (expired, orphaned, damaged) before a claim settles for what it has.
_PASSED_OVER = 10_000


class Taken:
    """Jobs picked by a claim, with what was read of them, and what was wrong on the way."""

    __slots__ = ("bytes", "damaged", "expired", "jobs", "keys", "orphans", "records", "states")

    def __init__(self) -> None:
        #: Side by side, of each job: its ready row, its id, its state, and what never changes about it.
        self.keys: list[bytes] = []
        self.jobs: list[bytes] = []
        self.states: list[StateFields] = []
        self.records: list[JobFields] = []
        self.bytes = 0
        self.expired: list[tuple[bytes, StateRecord]] = []
        self.orphans: list[bytes] = []
        self.damaged: list[Corrupt] = []


def pick(ledger: Ledger, queue: Registered, tiers: Sequence[bytes], request: ClaimRequest) -> Taken:
    taken = Taken()
    until = keyspace.commit(ledger.now + 1)
    limit = request.limit
    passed = 0
    for prefix in tiers:
        begin, end = prefix, prefix + until
        while len(taken.jobs) < limit:
            wanted = limit - len(taken.jobs)
            keys = ledger.tx.keys(keyspace.READY, begin, end, wanted)
            if not keys:
                break
            before = len(taken.jobs)
            if not _look(ledger, queue, request, keys, taken):
                return taken
            if len(keys) < wanted:
                break
            passed += len(keys) - (len(taken.jobs) - before)
            if passed > _PASSED_OVER and taken.jobs:
                return taken
            begin = keys[-1] + b"\0"
        if len(taken.jobs) >= limit:
            break
    return taken


def _look(ledger: Ledger, queue: Registered, request: ClaimRequest, keys: list[bytes], taken: Taken) -> bool:
    """Read the jobs these rows point at; take those that are good. False: `max_bytes` is reached."""
    tx, number, now, max_bytes = ledger.tx, queue.number, ledger.now, request.max_bytes
    jobs = [key[13:] for key in keys]
    rows = [queue.prefix + job for job in jobs]
    raw_states, raw_jobs = get_each(tx, keyspace.STATE, rows), get_each(tx, keyspace.JOBS, rows)
    if max_bytes is None and _take_all(number, keys, jobs, raw_states, raw_jobs, taken):
        return True
    states = records.decode_states(raw_states, jobs)
    found = records.decode_jobs(raw_jobs, jobs)
    pack_ready = keyspace.pack_ready
    for key, job, state, record in zip(keys, jobs, states, found, strict=True):
        if type(state) is not StateRecord or type(record) is not JobRecord:
            if state is None:
                taken.orphans.append(key)
            else:
                taken.damaged.append(state if isinstance(state, Corrupt) else record)  # type: ignore[arg-type]
            continue
        if state[1] != _WAITING or key != pack_ready(number, 9 - state[2], state[9], job):
            taken.orphans.append(key)
            continue
        if state.due_at_ms and state.due_at_ms <= now:
            taken.expired.append((job, state))
            continue
        if max_bytes is not None and taken.jobs and taken.bytes + record.payload_bytes > max_bytes:
            return False
        if record.parts:
            try:
                record = record._replace(payload=whole_payload(tx, number, job, record))
            except Corrupt as exc:
                taken.damaged.append(exc)
                continue
        taken.bytes += record.payload_bytes
        taken.keys.append(key)
        taken.jobs.append(job)
        taken.states.append(state)
        taken.records.append(record)
    return True


def _take_all(
    number: int,
    keys: list[bytes],
    jobs: list[bytes],
    raw_states: Sequence[bytes | Corrupt | None],
    raw_jobs: Sequence[bytes | Corrupt | None],
    taken: Taken,
) -> bool:
    """Take all of them, if there is nothing to pass over, to clear or to put together: the usual case."""
    states = records.state_rows(raw_states)
    found = None if states is None else records.job_rows(raw_jobs)
    if states is None or found is None:
        return False
    _, kinds, priorities, _, _, _, _, _, _, visible, _, due_at, _, _ = zip(*states, strict=True)
    _, parts, _, _, sizes, _ = zip(*found, strict=True)
    if kinds.count(_WAITING) != len(kinds) or any(due_at) or any(parts):
        return False
    if keys != list(map(keyspace.pack_ready, repeat(number), map((9).__sub__, priorities), visible, jobs)):
        return False
    taken.keys += keys
    taken.jobs += jobs
    taken.states += states
    taken.records += found
    taken.bytes += sum(sizes)
    return True
