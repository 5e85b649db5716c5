"""Steps and signals: each belongs to a job whose state has the flag, can be read, and is counted."""

from __future__ import annotations

from itertools import groupby

from msgspec.structs import replace

from tenure.errors import Corrupt
from tenure.queueing.checking.rebuild import LastEvents, read_state
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.core import Core
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Row
from tenure.storage.keyspace import STEPS
from tenure.storage.records import StepRecord, StepsRecord


def check(survey: Survey) -> None:
    rows = (row for chunk in survey.rows(STEPS) for row in chunk)
    for at, of_job in groupby(rows, lambda row: row[0][:20]):
        _check_job(survey, at, list(of_job))


def _check_job(survey: Survey, at: bytes, rows: list[Row]) -> None:
    queue, job = keyspace.split_of_queue(at)
    if survey.excused(queue, job):
        return
    state = read_state(survey.reader, queue, job)
    if state is None:
        for key, _ in rows:
            survey.add(
                Fault("orphan", "a stray row in steps: there is no such job", "delete_row", queue, job, STEPS, key)
            )
        return
    if not state.flags & records.HAS_STEPS:
        survey.add(Fault("index", "it has rows in steps, and does not know of them", "note_links", queue, job))
    count = size = 0
    for key, value in rows:
        if key == at:
            continue
        try:
            size += len(records.decode_struct(StepRecord, value, "a step of it", job).value)
            count += 1
        except Corrupt as exc:
            survey.add(Fault("damaged", exc.detail, "delete_row", queue, job, STEPS, key))
    head = _head(dict(rows).get(at), job)
    if head is None or (head.count, head.size) != (count, size):
        detail = f"its steps are counted wrong: there are {count}, of {size} bytes"
        survey.add(Fault("index", detail, "recount_steps", queue, job, STEPS, at))


def _head(raw: bytes | None, job: bytes) -> StepsRecord | None:
    """The job's first row in `steps`; None: it is missing, or cannot be read."""
    try:
        return None if raw is None else records.decode_struct(StepsRecord, raw, "its steps", job)
    except Corrupt:
        return None


def recount_steps(core: Core, unit: UnitOfWork, fault: Fault, events: LastEvents) -> str:
    """Recount a job's steps. If the awaited signal's name is lost, the job becomes ready when its delay has passed."""
    tx, at = unit.tx, keyspace.of_queue(fault.queue, fault.job)
    if read_state(tx, fault.queue, fault.job) is None:
        return "nothing to do any more: the job is gone"
    count = size = 0
    begin, end = keyspace.job_range(fault.queue, fault.job)
    for _, value in tx.scan(STEPS, begin + b"\0", end, 1 << 16):
        try:
            size += len(records.decode_struct(StepRecord, value, "a step of it", fault.job).value)
            count += 1
        except Corrupt:
            continue  # a fault of its own
    head = _head(tx.get(STEPS, at), fault.job) or StepsRecord()
    tx.put(STEPS, at, records.encode_struct(replace(head, count=count, size=size)))
    return f"it has {count} steps, by a recount"
