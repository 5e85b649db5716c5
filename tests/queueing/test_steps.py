"""Damage to steps: `check` finds it, repair corrects it, and the job continues. And the cost of a step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tenure
from tenure import Store
from tenure.storage import keyspace, records
from tenure.storage.keyspace import STEPS, StepRow
from tenure.storage.transaction import Transaction
from tenure.testing.conformance.world import assert_sound
from tenure.testing.harness import engine_of


class Job:
    """A job that has a step and a signal, and waits for another signal."""

    def __init__(self, store: Store) -> None:
        self.queue = store.queue("work")
        self.queue.enqueue(b"job")
        (delivery,) = self.queue.claim()
        self.queue.record_step(delivery, "charge", b"receipt")
        self.queue.signal(delivery.id, "early", b"1")
        self.queue.snooze(delivery, 3600, until_signal="go")
        self.id = delivery.id
        self.job = bytes.fromhex(delivery.id)
        self.number = store.queues()[0].number
        self.at = keyspace.of_queue(self.number, self.job)
        self.step = keyspace.step(self.number, self.job, StepRow.STEP, "charge")


def _forget(job: Job, tx: Transaction) -> None:
    state = records.decode_state(tx.get(keyspace.STATE, job.at) or b"", job.job)
    tx.put(keyspace.STATE, job.at, records.encode_state(state._replace(flags=0)))


DAMAGE: dict[str, Callable[[Job, Transaction], None]] = {
    "count is missing": lambda job, tx: tx.delete(STEPS, job.at),
    "count cannot be read": lambda job, tx: tx.put(STEPS, job.at, b"\1nonsense"),
    "counts too many": lambda job, tx: tx.put(STEPS, job.at, records.encode_struct(records.StepsRecord(9, 9))),
    "step cannot be read": lambda job, tx: tx.put(STEPS, job.step, b"\1nonsense"),
    "step is missing": lambda job, tx: tx.delete(STEPS, job.step),
    "job does not know of them": _forget,
    "state cannot be read": lambda job, tx: tx.put(keyspace.STATE, job.at, b"\1nonsense"),
    "step of no job": lambda job, tx: tx.put(STEPS, keyspace.step(job.number, bytes(16), StepRow.STEP, "x"), b"\1no"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_mended(damage: str) -> None:
    with tenure.open("memory:", sweep=False) as store:
        job = Job(store)
        engine_of(store).transact(lambda tx: DAMAGE[damage](job, tx))
        assert not store.check().clean
        report = store.check(repair=True)
        assert report.ok, report.findings
        assert_sound(store)
        expected = ["early"] if "step" in damage and "no job" not in damage else ["charge", "early"]
        assert [step.name for step in job.queue.steps(job.id)] == expected
        job.queue.signal(job.id, "go")
        job.queue.cancel(job.id)
        assert_sound(store)
        with engine_of(store).snapshot() as reader:
            assert reader.scan(STEPS, b"", keyspace.LAST, 10) == []
