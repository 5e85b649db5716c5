"""`ack(then=…)`: the jobs that a delivery hands over to, enqueued in the transaction that settles it.

The enqueue is the one of `queueing.enqueue`. Jobs of deliveries that are lost are left out, so the plan is made once it
is known which deliveries hold.
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
    """Enqueue the jobs that these items, of the queue `name`, hand over to. Raises what `enqueue` raises.

    Returns the items with the states that their settling goes on from: a job may have become a parent by it.
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
