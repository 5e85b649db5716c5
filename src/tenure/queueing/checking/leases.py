"""Every lease holds the jobs that name it, has the correct counts, a row in `due`, and at least one job."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.leases import lost_jobs
from tenure.storage import keyspace, records
from tenure.storage.engine import get_each
from tenure.storage.keyspace import Due
from tenure.storage.records import LeaseRecord


def check(survey: Survey) -> None:
    known: set[tuple[int, bytes]] = set()
    for rows in survey.rows(keyspace.LEASES):
        survey.leases += len(rows)
        for key, value in rows:
            queue, lease = keyspace.split_of_queue(key)
            known.add((queue, lease))
            try:
                _check_one(survey, queue, lease, records.decode_lease(value, lease))
            except Corrupt as exc:
                survey.add(_broken("damaged", exc.detail, queue, lease))
    for (queue, lease), count in survey.held.items():
        if (queue, lease) not in known and keyspace.LEASES not in survey.unreadable:
            detail = f"{count} leased jobs name lease {lease.hex()}, which is not there"
            survey.add(_broken("lease", detail, queue, lease))


def _check_one(survey: Survey, queue: int, lease: bytes, record: LeaseRecord) -> None:
    """Raises Corrupt if the lease's jobs cannot be read."""
    held = survey.held[queue, lease]
    given, unknown = _given(survey, queue, lease)
    lost = len(lost_jobs(survey.reader, queue, lease))
    survey.expected[keyspace.LEASE_JOBS] += 1 + lost
    text = f"lease {lease.hex()}"
    if given != held:
        survey.add(_broken("lease", f"{text} was given {given} of the {held} jobs that name it", queue, lease))
    elif not held <= record.open <= held + unknown:
        rule = "lease" if held else "empty_lease"
        survey.add(_broken(rule, f"{text} says it holds {record.open} jobs, and holds {held}", queue, lease))
    elif lost != record.lost:
        detail = f"{text} says that {record.lost} of its jobs were cancelled, and names {lost}"
        survey.add(Fault("lease", detail, "lease_lost", queue, space=keyspace.LEASES, key=lease, number=lost))
    due = keyspace.due(Due.LEASE, record.expires_at_ms, queue, lease)
    if survey.reader.get(keyspace.DUE, due) is None:
        survey.add(Fault("due", f"{text} has no row in due", "put_row", queue, space=keyspace.DUE, key=due))
    else:
        survey.expected[keyspace.DUE] += 1


def _given(survey: Survey, queue: int, lease: bytes) -> tuple[int, int]:
    """How many of the lease's jobs name it, and how many jobs have an unreadable state."""
    raw = survey.reader.get(keyspace.LEASE_JOBS, keyspace.of_queue(queue, lease))
    if raw is None:
        raise Corrupt(f"the jobs of lease {lease.hex()} are missing")
    rows = records.decode_lease_jobs(raw, lease)
    states = get_each(survey.reader, keyspace.STATE, [keyspace.of_queue(queue, job) for job, _ in rows])
    given = unknown = 0
    for (job, token), value in zip(rows, states, strict=True):
        if not isinstance(value, bytes):
            unknown += _may_be_held(survey, queue, job, value)
            continue
        try:
            state = records.decode_state(value, job)
        except Corrupt:
            unknown += 1
            continue
        given += state.state == State.LEASED and state.lease == lease and state.token == token
    return given, unknown


def _may_be_held(survey: Survey, queue: int, job: bytes, value: Corrupt | None) -> bool:
    """Whether a job without a readable state may be held: its state is damaged, or lost while its payload exists."""
    if value is not None:
        return True
    found = get_each(survey.reader, keyspace.JOBS, [keyspace.of_queue(queue, job)])[0]
    return found is not None


def _broken(rule: str, detail: str, queue: int, lease: bytes) -> Fault:
    return Fault(rule, detail, "give_back", queue, space=keyspace.LEASES, key=lease)
