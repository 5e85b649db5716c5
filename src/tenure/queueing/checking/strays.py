"""Finds stray rows: index rows and parts that belong to no job, lease or request in that state."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.model.lifecycle import State
from tenure.queueing.checking import requests
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.groups import group_id
from tenure.queueing.locations import is_foreign
from tenure.queueing.removal import due_row, index_row
from tenure.storage import keyspace, records
from tenure.storage.engine import Space, get_each
from tenure.storage.keyspace import Due
from tenure.storage.records import StateRecord

_CHECKED_DUE = (Due.LEASE, Due.TTL, Due.RETENTION, Due.REQUEST)
_INDEXES = (keyspace.READY, keyspace.DONE, keyspace.DEAD, keyspace.BLOCKED)


def check(survey: Survey) -> None:
    for space in (
        *_INDEXES,
        keyspace.JOBS,
        keyspace.NOTES,
        keyspace.PAYLOAD,
        keyspace.LEASE_JOBS,
        keyspace.DUE,
        keyspace.JOB_QUEUES,
        keyspace.GROUP_READY,
    ):
        count = 0
        for rows in survey.rows(space, 5000):
            count += sum([_is_checked(space, key) for key, _ in rows])
        if count != survey.expected[space]:
            _look(survey, space)


def _look(survey: Survey, space: Space) -> None:
    quiet = Survey(survey.reader)  # damage is in `survey` already
    for rows in quiet.rows(space):
        for key, _ in rows:
            if _is_checked(space, key):
                _CHECKS[space](survey, space, key)


def _is_checked(space: Space, key: bytes) -> bool:
    """Not due rows of keys and claims: those may be left over from an earlier use, and the sweeper removes them."""
    return space != keyspace.DUE or key[0] in _CHECKED_DUE


def _check_index(survey: Survey, space: Space, key: bytes) -> None:
    queue, job = int.from_bytes(key[:4], "big"), key[-16:]
    state = _state(survey, queue, job)
    if not survey.excused(queue, job) and (state is None or index_row(queue, job, state) != (space, key)):
        _stray(survey, "index", space, key, queue, job, "the job is not in that state")


def _check_group_row(survey: Survey, space: Space, key: bytes) -> None:
    queue, group, tier, visible_at_ms, job = keyspace.split_group_ready(key)
    state = _state(survey, queue, job)
    fits = (
        state is not None
        and state.state == State.WAITING
        and (9 - state.priority, state.visible_at_ms) == (tier, visible_at_ms)
        and _group_of(survey, queue, job) == group
    )
    if not survey.excused(queue, job) and not fits:
        _stray(survey, "index", space, key, queue, job, "no job of that group waits so")


def _group_of(survey: Survey, queue: int, job: bytes) -> bytes:
    raw = get_each(survey.reader, keyspace.JOBS, [keyspace.of_queue(queue, job)])[0]
    try:
        return group_id(records.decode_job(raw, job).group) if isinstance(raw, bytes) else b""
    except Corrupt:
        return b""


def _check_body(survey: Survey, space: Space, key: bytes) -> None:
    queue, job = keyspace.split_of_queue(key)
    if not survey.excused(queue, job) and _state(survey, queue, job) is None:
        survey.unknown.add((queue, job))
        detail = "it has a payload, and no state"
        survey.add(Fault("orphan", detail, "rebuild_state", queue, job, keyspace.STATE, key))


def _check_extra(survey: Survey, space: Space, key: bytes) -> None:
    """Check a row of `notes`, or a part of a payload or result."""
    queue, job = keyspace.split_of_queue(key[:20])
    if survey.excused(queue, job):
        return
    state = _state(survey, queue, job)
    if state is None:
        _stray(survey, "orphan", space, key, queue, job, "there is no such job")
    elif space == keyspace.NOTES and not state.flags & records.HAS_NOTES:
        _stray(survey, "orphan", space, key, queue, job, "its job does not know of it")
    elif space == keyspace.PAYLOAD and not _part_belongs(survey, queue, job, state, int.from_bytes(key[20:], "big")):
        _stray(survey, "orphan", space, key, queue, job, "its job does not have so many parts")


def _part_belongs(survey: Survey, queue: int, job: bytes, state: StateRecord, part: int) -> bool:
    at = keyspace.of_queue(queue, job)
    if part >= keyspace.RESULT_PARTS:
        raw = survey.reader.get(keyspace.NOTES, at)
        if raw is None or not state.flags & records.HAS_RESULT_PARTS:
            return False
        notes = records.decode_struct(records.Notes, raw, "what is noted of it", job)
        return part - keyspace.RESULT_PARTS < -(-notes.result_bytes // records.PART_BYTES) - 1
    raw = survey.reader.get(keyspace.JOBS, at)
    return raw is not None and 1 <= part <= records.decode_job(raw, job).parts


def _check_lease_jobs(survey: Survey, space: Space, key: bytes) -> None:
    queue, lease = keyspace.split_of_queue(key[:20])
    if get_each(survey.reader, keyspace.LEASES, [keyspace.of_queue(queue, lease)])[0] is None:
        _stray(survey, "orphan", space, key, queue, b"", f"lease {lease.hex()} is not there")


def _check_location(survey: Survey, space: Space, key: bytes) -> None:
    raw = get_each(survey.reader, space, [key])[0]
    try:
        queue = records.decode_number(raw) if isinstance(raw, bytes) else 0
    except Corrupt:
        queue = 0
    there = survey.reader.get(keyspace.STATE, keyspace.of_queue(queue, key)) is not None
    if not survey.excused(queue, key) and not (there and is_foreign(queue, key)):
        _stray(survey, "orphan", space, key, queue, b"", "no job needs it")


def _check_due(survey: Survey, space: Space, key: bytes) -> None:
    due = keyspace.split_due(key)
    if due.kind == Due.REQUEST:
        if not requests.fits(survey, due):
            why = f"request {due.reference.hex()} has no outcome to forget then"
            _stray(survey, "orphan", space, key, 0, b"", why)
        return
    if due.kind != Due.LEASE:
        state = _state(survey, due.queue, due.reference)
        known = not survey.excused(due.queue, due.reference)
        if known and (state is None or due_row(due.queue, due.reference, state) != key):
            _stray(survey, "orphan", space, key, due.queue, due.reference, "the job has nothing due then")
        return
    raw = get_each(survey.reader, keyspace.LEASES, [keyspace.of_queue(due.queue, due.reference)])[0]
    try:
        fits = isinstance(raw, Corrupt) or (
            raw is not None and records.decode_lease(raw, due.reference).expires_at_ms == due.time_ms
        )
    except Corrupt:
        fits = True  # the damaged lease is a fault already
    if not fits:
        _stray(survey, "orphan", space, key, due.queue, b"", f"lease {due.reference.hex()} does not end then")


_CHECKS = {
    keyspace.JOBS: _check_body,
    keyspace.NOTES: _check_extra,
    keyspace.PAYLOAD: _check_extra,
    keyspace.LEASE_JOBS: _check_lease_jobs,
    keyspace.DUE: _check_due,
    keyspace.JOB_QUEUES: _check_location,
    keyspace.GROUP_READY: _check_group_row,
    **dict.fromkeys(_INDEXES, _check_index),
}


def _stray(survey: Survey, rule: str, space: Space, key: bytes, queue: int, job: bytes, why: str) -> None:
    detail = f"a stray row in {keyspace.NAMES[space]}: {why}"
    survey.add(Fault(rule, detail, "delete_row", queue, job, space, key))


def _state(survey: Survey, queue: int, job: bytes) -> StateRecord | None:
    raw = get_each(survey.reader, keyspace.STATE, [keyspace.of_queue(queue, job)])[0]
    try:
        return records.decode_state(raw, job) if isinstance(raw, bytes) else None
    except Corrupt:
        return None
