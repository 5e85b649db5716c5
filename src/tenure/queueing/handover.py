"""`ack(then=…)`: the jobs that a delivery hands over to, enqueued in the transaction that settles it.

The enqueue is the one of `queueing.enqueue`, once for each queue that the jobs name. Jobs of deliveries that are lost
are left out, so the plan is made once it is known which deliveries hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenure.errors import KeyConflict
from tenure.model.lease import Settle
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.queueing import enqueue
from tenure.queueing.core import Core
from tenure.queueing.unit_of_work import UnitOfWork


def put_follow_ups(core: Core, unit: UnitOfWork, name: QueueName, items: Iterable[Settle]) -> None:
    """Enqueue the jobs that these settled items, of the queue `name`, hand over to. Raises what `enqueue` raises."""
    jobs = [job for item in items for job in item.then or ()]
    if jobs:
        put_by_queue(core, unit, name, jobs)


def put_by_queue(core: Core, unit: UnitOfWork, name: QueueName, jobs: Sequence[JobRequest]) -> None:
    places: dict[QueueName, list[int]] = {}
    for place, job in enumerate(jobs):
        queue = name if job.flow is None or job.flow.queue is None else QueueName(name.tenant, job.flow.queue)
        places.setdefault(queue, []).append(place)
    for queue, of_queue in places.items():
        _, plan = enqueue.planned(core, queue, [jobs[place]._replace(flow=None) for place in of_queue])
        try:
            plan(unit)
        except KeyConflict as conflict:
            raise conflict.at(of_queue) from None
