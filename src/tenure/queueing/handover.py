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


def put_follow_ups(core: Core, unit: UnitOfWork, name: QueueName, items: Sequence[Settle]) -> frozenset[bytes]:
    """Enqueue the jobs that these settled items, of the queue `name`, hand over to. Raises what `enqueue` raises.

    Returns those of the settled jobs that have become parents by it: their states have to say so.
    """
    jobs = [job for item in items for job in item.then or ()]
    if not jobs:
        return frozenset()
    settled = {item.proof.job: item.verb for item in items}
    _, plan = enqueue.planned(core, name, jobs, settled)
    plan(unit)
    return frozenset(settled).intersection(parent for job in jobs if job.flow is not None for parent in job.flow.after)
