"""The rows of a job's steps and signals (`steps.py` has the verbs)."""

from __future__ import annotations

from msgspec.structs import replace

from tenure.model.lease import Settle
from tenure.model.request import JobImage
from tenure.model.step import steps_limit_error
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
    refused = steps_limit_error(count, size)
    if refused is not None:
        raise refused
    record = StepRecord(name, value, unit.now, head.count)
    unit.tx.put(STEPS, keyspace.step(queue, job, kind, name), records.encode_struct(record))
    counted = replace(head, count=count, size=size)
    unit.tx.put(STEPS, keyspace.of_queue(queue, job), records.encode_struct(counted))
    return head


def put_head(unit: UnitOfWork, queue: int, job: bytes, count: int, size: int, signal: str | None, token: int) -> None:
    """Write a job's first row of `steps`. `signal`: what the delivery with this token waits for; None: nothing."""
    waits = StepsRecord(count, size) if signal is None else _waiting(count, size, signal, token)
    unit.tx.put(STEPS, keyspace.of_queue(queue, job), records.encode_struct(waits))


def _waiting(count: int, size: int, signal: str, token: int) -> StepsRecord:
    return StepsRecord(count, size, keyspace.digest(signal.encode()), token, signal)


def restore_steps(unit: UnitOfWork, queue: int, image: JobImage) -> int:
    """Write the steps and signals of a job that is put in, and what it waits for; returns the flags to set."""
    if not image.steps and image.waits_for is None:
        return 0
    for place, step in enumerate(image.steps):
        key = keyspace.step(queue, image.id, StepRow[step.kind.upper()], step.name)
        record = StepRecord(step.name, step.value, step.stored_at_ms, place)
        unit.tx.put(STEPS, key, records.encode_struct(record))
    size = sum([len(step.value) for step in image.steps])
    put_head(unit, queue, image.id, len(image.steps), size, image.waits_for, image.token)
    return HAS_STEPS


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
    put_head(unit, queue.number, job, head.count, head.size, signal, state.token)
    return state._replace(visible_at_ms=unit.now + (item.delay_ms or 0), flags=state.flags | HAS_STEPS)
