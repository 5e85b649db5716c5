"""`ack(then=…)`: enqueues follow-up jobs in the transaction that settles the delivery.

It uses the plan of `queueing.enqueue`, made after the proofs are checked: follow-up jobs of lost deliveries are left
out.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.model.lease import Settle
from tenure.model.names import QueueName
from tenure.queueing import enqueue
from tenure.queueing.core import Core
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage.records import HAS_CHILDREN, StateRecord


def put_follow_ups(
    core: Core, unit: UnitOfWork, name: QueueName, held: Sequence[tuple[Settle, StateRecord]]
) -> list[tuple[Settle, StateRecord]]:
    """Enqueue the follow-up jobs of these items of the queue `name`. Raises the errors of `enqueue`.

    Returns the items with updated states: a settled job may have become a parent of its follow-up job.
    """
    jobs = [job for item, _ in held for job in item.then or ()]
    settled = {item.proof.job: item.verb for item, _ in held}
    _, plan = enqueue.planned(core, name, jobs, settled)
    plan(unit)
    parents = settled.keys() & {parent for job in jobs if job.flow is not None for parent in job.flow.after}
    return [
        (item, state._replace(flags=state.flags | HAS_CHILDREN) if item.proof.job in parents else state)
        for item, state in held
    ]
