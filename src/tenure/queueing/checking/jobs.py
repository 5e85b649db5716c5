"""Every job: its state can be read, and all rows that this state requires exist."""

from __future__ import annotations

from tenure.errors import Corrupt
from tenure.model.lifecycle import TERMINAL, State
from tenure.queueing import locations
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.groups import group_id
from tenure.queueing.removal import due_row, index_row
from tenure.storage import keyspace, records
from tenure.storage.engine import Space, get_each
from tenure.storage.records import JobRecord, StateRecord

Found = tuple[int, bytes, StateRecord]
"""Queue number, job, state."""


def check(survey: Survey) -> None:
    strangers: set[int] = set()
    for rows in survey.rows(keyspace.STATE):
        found: list[Found] = []
        for key, value in rows:
            queue, job = keyspace.split_of_queue(key)
            try:
                found.append((queue, job, records.decode_state(value, job)))
            except Corrupt as exc:
                survey.unknown.add((queue, job))
                survey.add(Fault("damaged", exc.detail, "rebuild_state", queue, job, keyspace.STATE, key))
        survey.jobs += len(rows)
        _check_bodies(survey, found)
        _check_notes(survey, found)
        _check_indexes(survey, found)
        _check_locations(survey, found)
        for queue, _, state in found:
            survey.recount[queue, state.state] += 1
            if state.state == State.LEASED:
                survey.held[queue, state.lease] += 1
            if queue not in survey.queues:
                strangers.add(queue)
        survey.say()
    for queue in sorted(strangers):
        survey.add(Fault("damaged", f"queue number {queue} has jobs, and no row", "queue_row", queue))


def _check_bodies(survey: Survey, found: list[Found]) -> None:
    keys = [keyspace.of_queue(queue, job) for queue, job, _ in found]
    keyed: list[tuple[int, bytes, JobRecord]] = []
    grouped: list[tuple[int, bytes, bytes]] = []
    for (queue, job, state), key, value in zip(found, keys, get_each(survey.reader, keyspace.JOBS, keys), strict=True):
        try:
            if value is None:
                raise Corrupt("its payload is missing")
            if isinstance(value, Corrupt):
                raise value
            record = records.decode_job(value, job)
            if bool(record.parts) != bool(state.flags & records.HAS_PARTS):
                raise Corrupt("its payload's parts do not fit its state")
            if record.parts:
                parts = [keyspace.payload_part(queue, job, part) for part in range(1, record.parts + 1)]
                values = survey.reader.get_many(keyspace.PAYLOAD, parts)
                records.join_parts(record.payload, values, record.payload_bytes, job)
                survey.expected[keyspace.PAYLOAD] += record.parts
            survey.expected[keyspace.JOBS] += 1
            survey.weight[queue] += record.payload_bytes
            if state.flags & records.HAS_GROUP:
                grouped += _group_rows(survey, queue, job, state, record)
            # Another job may have taken the key of a replayed job.
            if record.key and state.state not in TERMINAL and not state.replays:
                keyed.append((queue, job, record))
        except Corrupt as exc:
            survey.damaged.add((queue, job))
            survey.expected[keyspace.JOBS] += value is not None
            survey.add(Fault("damaged", exc.detail, "remove_job", queue, job, keyspace.JOBS, key))
    _check_keys(survey, keyed)
    _check_rows(survey, keyspace.GROUP_READY, grouped)


def _group_rows(
    survey: Survey, queue: int, job: bytes, state: StateRecord, record: JobRecord
) -> list[tuple[int, bytes, bytes]]:
    """The row of `group_ready` that a waiting job must have; counts a leased job for its group."""
    group = group_id(record.group)
    if state.state == State.LEASED:
        survey.group_leased[keyspace.of_queue(queue, group)] += 1
    if state.state != State.WAITING:
        return []
    return [(queue, job, keyspace.group_ready(queue, group, 9 - state.priority, state.visible_at_ms, job))]


def _check_locations(survey: Survey, found: list[Found]) -> None:
    """A job whose id does not hold its queue has a row in `job_queues`. Two jobs with one id share the row."""
    foreign = [(queue, job) for queue, job, _ in found if locations.is_foreign(queue, job)]
    rows = get_each(survey.reader, keyspace.JOB_QUEUES, [job for _, job in foreign])
    for (queue, job), raw in zip(foreign, rows, strict=True):
        try:
            named = records.decode_number(raw) if isinstance(raw, bytes) else 0
        except Corrupt:
            named = 0
        if named == queue:
            survey.expected[keyspace.JOB_QUEUES] += 1
        elif survey.reader.get(keyspace.STATE, keyspace.of_queue(named, job)) is None:
            survey.expected[keyspace.JOB_QUEUES] += raw is not None
            survey.add(Fault("index", "nothing leads from its id to its queue", "note_queue", queue, job))


def _check_keys(survey: Survey, keyed: list[tuple[int, bytes, JobRecord]]) -> None:
    """A job that has not ended holds its idempotency key."""
    keys = [keyspace.of_queue(queue, keyspace.digest(record.key)) for queue, _, record in keyed]
    for (queue, job, _), key, value in zip(keyed, keys, get_each(survey.reader, keyspace.DEDUP, keys), strict=True):
        try:
            holds = isinstance(value, bytes) and records.decode_dedup(value).job == job
        except Corrupt:
            holds = False
        if not holds:
            detail = "it does not hold its idempotency key"
            survey.add(Fault("index", detail, "hold_key", queue, job, keyspace.DEDUP, key))


def _check_notes(survey: Survey, found: list[Found]) -> None:
    noted = [(queue, job, state) for queue, job, state in found if state.flags & records.HAS_NOTES]
    keys = [keyspace.of_queue(queue, job) for queue, job, _ in noted]
    for (queue, job, state), value in zip(noted, get_each(survey.reader, keyspace.NOTES, keys), strict=True):
        try:
            if value is None:
                raise Corrupt("what is noted of it is missing")
            if isinstance(value, Corrupt):
                raise value
            notes = records.decode_struct(records.Notes, value, "what is noted of it", job)
            survey.expected[keyspace.NOTES] += 1
            survey.weight[queue] += notes.result_bytes
            if state.flags & records.HAS_RESULT_PARTS:
                count = -(-notes.result_bytes // records.PART_BYTES) - 1
                first = keyspace.RESULT_PARTS
                parts = [keyspace.payload_part(queue, job, part) for part in range(first, first + count)]
                values = survey.reader.get_many(keyspace.PAYLOAD, parts)
                records.join_parts(notes.result or b"", values, notes.result_bytes, job, "result")
                survey.expected[keyspace.PAYLOAD] += count
        except Corrupt as exc:
            survey.damaged.add((queue, job))
            survey.expected[keyspace.NOTES] += value is not None
            survey.add(Fault("damaged", exc.detail, "drop_notes", queue, job, keyspace.NOTES))


def _check_indexes(survey: Survey, found: list[Found]) -> None:
    wanted: dict[Space, list[tuple[int, bytes, bytes]]] = {}
    for queue, job, state in found:
        index = index_row(queue, job, state)
        if index is not None:
            wanted.setdefault(index[0], []).append((queue, job, index[1]))
        due = due_row(queue, job, state)
        if due is not None:
            wanted.setdefault(keyspace.DUE, []).append((queue, job, due))
    for space, rows in wanted.items():
        _check_rows(survey, space, rows)


def _check_rows(survey: Survey, space: Space, rows: list[tuple[int, bytes, bytes]]) -> None:
    """Check that these index rows (queue, job, key) exist."""
    values = get_each(survey.reader, space, [key for _, _, key in rows])
    for (queue, job, key), value in zip(rows, values, strict=True):
        if isinstance(value, bytes):
            survey.expected[space] += 1
            continue
        detail = f"it has no row in {keyspace.NAMES[space]}" if value is None else value.detail
        rule = "damaged" if value is not None else "due" if space == keyspace.DUE else "index"
        survey.add(Fault(rule, detail, "put_row", queue, job, space, key))
