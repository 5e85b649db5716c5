"""The rows of a job's steps and signals (`steps.py` has the verbs)."""

from __future__ import annotations

from tenure.model.lease import Settle
from tenure.model.step import too_many
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import STEPS, StepRow
from tenure.storage.records import HAS_STEPS, StateRecord, StepRecord, StepsRecord


def read_row(reader: Reader, queue: int, job: bytes, kind: StepRow, name: str) -> StepRecord | None:
    raw = reader.get(STEPS, keyspace.step(queue, job, kind, name))
    return None if raw is None else records.decode_struct(StepRecord, raw, "a step of it", job)


def read_head(reader: Reader, queue: int, job: bytes) -> StepsRecord:
    raw = reader.get(STEPS, keyspace.of_queue(queue, job))
    return StepsRecord() if raw is None else records.decode_struct(StepsRecord, raw, "its steps", job)


def put_row(unit: UnitOfWork, queue: int, job: bytes, kind: StepRow, name: str, value: bytes) -> StepsRecord:
    """Write a step's row and count it. Returns what the job had before. Raises TooLarge."""
    head = read_head(unit.tx, queue, job)
    count, size = head.count + 1, head.size + len(value)
    refused = too_many(count, size)
    if refused is not None:
        raise refused
    record = StepRecord(name, value, unit.now, head.count)
    unit.tx.put(STEPS, keyspace.step(queue, job, kind, name), records.encode_struct(record))
    counted = StepsRecord(count, size, head.waits_for, head.token)
    unit.tx.put(STEPS, keyspace.of_queue(queue, job), records.encode_struct(counted))
    return head


def note_steps(unit: UnitOfWork, queue: int, job: bytes, state: StateRecord) -> None:
    """Have the job's state say that it has steps."""
    if not state.flags & HAS_STEPS:
        row = records.encode_state(state._replace(flags=state.flags | HAS_STEPS))
        unit.tx.put(keyspace.STATE, keyspace.of_queue(queue, job), row)


def wait_for_signal(unit: UnitOfWork, queue: RegisteredQueue, item: Settle, state: StateRecord) -> StateRecord:
    """The state from which a delivery that waits for a signal is given back: as `item` says, or ready now if it has it."""
    job, signal = item.proof.job, item.until_signal or ""
    if read_row(unit.tx, queue.number, job, StepRow.SIGNAL, signal) is not None:
        return state._replace(visible_at_ms=unit.now)
    head = read_head(unit.tx, queue.number, job)
    waiting = StepsRecord(head.count, head.size, keyspace.digest(signal.encode()), state.token)
    unit.tx.put(STEPS, keyspace.of_queue(queue.number, job), records.encode_struct(waiting))
    return state._replace(visible_at_ms=unit.now + (item.delay_ms or 0), flags=state.flags | HAS_STEPS)
