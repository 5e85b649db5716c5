"""Steps and signals of a job: named values, each stored once.

    record_step   called by the holder of the live lease. A later delivery finds the value, and skips the step
    signal        called by any program. A delivery that waits for it (`release` with `until_signal`) releases its lease

                  release, no signal yet           signal
       leased ──────────────────────▶ waiting ─────────────▶ ready now      (else ready when its delay has passed)

Both read the same row in their transactions, so no signal is missed. The rows are deleted with the job.
"""

from __future__ import annotations

from tenure.errors import LeaseLost, NotFound
from tenure.model.lease import Proof
from tenure.model.lifecycle import Change, State
from tenure.model.names import QueueName
from tenure.model.step import MAX_STEPS, Step, StepKind
from tenure.queueing import groups
from tenure.queueing.core import Core
from tenure.queueing.outcomes import YES_OR_NO, Answer
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.settle import held_state
from tenure.queueing.step_rows import note_steps, put_row, read_row
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import STEPS, StepRow
from tenure.storage.records import HAS_STEPS, StateRecord, StepRecord

_VALUE = Answer[bytes](bytes)
_KINDS: dict[StepRow, StepKind] = {StepRow.STEP: "step", StepRow.SIGNAL: "signal"}


def record_step(core: Core, name: QueueName, proof: Proof, step: str, value: bytes) -> bytes:
    """Store a step's value unless it has one; returns the stored value. Raises LeaseLost, TooLarge."""

    def run(unit: UnitOfWork) -> bytes:
        tx = unit.tx
        queue = core.registry.find(tx, name)
        if queue is None:
            raise LeaseLost(proof.job.hex(), proof.token)
        state = held_state(unit, queue, proof)
        before = read_row(tx, queue.number, proof.job, StepRow.STEP, step)
        if before is not None:
            return before.value
        put_row(unit, queue.number, proof.job, StepRow.STEP, step, value)
        note_steps(unit, queue.number, proof.job, state)
        return value

    return core.write(run, answer=_VALUE)


def signal(core: Core, name: QueueName, job: bytes, signal: str, payload: bytes) -> bool:
    """Store a signal of a job; False if it has one of that name. A job that waits for it becomes ready.

    Raises NotFound (there is no such job, or it is done), TooLarge.
    """

    def run(unit: UnitOfWork) -> bool:
        tx = unit.tx
        queue = core.registry.find(tx, name)
        raw = None if queue is None else tx.get(keyspace.STATE, keyspace.of_queue(queue.number, job))
        state = None if raw is None else records.decode_state(raw, job)
        if queue is None or state is None or state.state == State.DONE:
            raise NotFound("there is no such job, or it is done")
        if read_row(tx, queue.number, job, StepRow.SIGNAL, signal) is not None:
            return False
        head = put_row(unit, queue.number, job, StepRow.SIGNAL, signal, payload)
        waits = head.waits_for == keyspace.digest(signal.encode()) and head.token == state.token
        if waits and state.state == State.WAITING and state.visible_at_ms > unit.now:
            _wake(unit, queue, job, state._replace(flags=state.flags | HAS_STEPS))
        else:
            note_steps(unit, queue.number, job, state)
        return True

    return core.write(run, answer=YES_OR_NO)


def _wake(unit: UnitOfWork, queue: RegisteredQueue, job: bytes, state: StateRecord) -> None:
    """Make a scheduled job ready now."""
    tx, number, grouped = unit.tx, queue.number, state.flags & records.HAS_GROUP
    tx.delete(keyspace.READY, keyspace.ready(number, state.priority, state.visible_at_ms, job, grouped))
    if grouped and (name := groups.name_of(unit, number, job)):
        groups.wait_no_more(unit, number, job, state, name)
    state = state._replace(visible_at_ms=unit.now)
    ref = unit.event(Change.SIGNALLED, number, job, state, at_ms=unit.now, previous=state.last_event)
    tx.put(keyspace.STATE, keyspace.of_queue(number, job), records.encode_state(state._replace(last_event=ref)))
    tx.put(keyspace.READY, keyspace.ready(number, state.priority, unit.now, job, grouped), b"")
    if grouped:
        groups.wait_again(unit, queue, job, state)
    unit.ready(queue, state.priority, unit.now)


def steps(core: Core, name: QueueName, job: bytes) -> list[Step]:
    """The steps and signals of a job, in the order in which they were stored."""

    def run(reader: Reader) -> list[Step]:
        queue = core.registry.find(reader, name)
        return [] if queue is None else read_steps(reader, queue.number, job)

    return core.read(run)


def read_steps(reader: Reader, queue: int, job: bytes) -> list[Step]:
    """As `steps`. Raises Corrupt."""
    begin, end = keyspace.job_range(queue, job)
    found: dict[int, Step] = {}
    for key, value in reader.scan(STEPS, begin + b"\0", end, MAX_STEPS + 1):
        record = records.decode_struct(StepRecord, value, "a step of it", job)
        kind = keyspace.step_kind(key)
        assert kind is not None
        found[record.place] = Step(
            name=record.name, kind=_KINDS[kind], value=record.value, stored_at_ms=record.stored_at_ms
        )
    return [found[place] for place in sorted(found)]
