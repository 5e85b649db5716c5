"""A queue's settings: its policy, and whether it is paused."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tenure.model.lifecycle import Change
from tenure.model.names import QueueName
from tenure.model.retry import Policy
from tenure.queueing import groups
from tenure.queueing.core import Core
from tenure.queueing.outcomes import NOTHING
from tenure.queueing.queue_turns import Offer
from tenure.queueing.unit_of_work import ALL, UnitOfWork
from tenure.storage import keyspace
from tenure.storage.keyspace import Limit

_encode = msgspec.msgpack.Encoder().encode


def configure(core: Core, policies: Mapping[QueueName, Policy]) -> None:
    """Set the policies of queues in one transaction, and create queues that do not exist."""
    core.write(lambda unit: put(core, unit, policies), answer=NOTHING)


def put(core: Core, unit: UnitOfWork, policies: Mapping[QueueName, Policy]) -> None:
    """As `configure`, within a transaction."""
    found = {name: core.registry.find(unit.tx, name) for name in policies}
    missing = [name for name, queue in found.items() if queue is None]
    if missing:
        found.update(zip(missing, unit.make_queues(missing), strict=True))
    for name, policy in policies.items():
        queue = found[name]
        if queue is not None and queue.policy != policy:
            saved = unit.save_queue(queue.record(policy=policy))
            unit.event(Change.QUEUE_CONFIGURED, queue.number, text=_encode(policy))
            if queue.rate is not None and queue.rate != policy.rate:
                # The bucket's number depends on the old rate: the new one starts full.
                unit.tx.delete(keyspace.LIMITS, keyspace.limit(Limit.QUEUE_RATE, queue.number))
            if queue.grouped and (queue.policy.group, queue.policy.groups) != (policy.group, policy.groups):
                groups.policy_changed(unit, saved)
                unit.woken[name] = ALL
            if queue.limited:
                unit.woken[name] = ALL
                # Not by `lifted`: claims from any queue may have parked it until the old rate lets it go on.
                unit.offer(Offer(saved, unit.now, lifted=True, has_work=False))


def set_paused(core: Core, name: QueueName, paused: bool) -> None:
    def run(unit: UnitOfWork) -> None:
        queue = unit.queue(name)
        if queue.paused == paused:
            return
        unit.save_queue(queue.record(paused=paused))
        unit.event(Change.QUEUE_PAUSED if paused else Change.QUEUE_RESUMED, queue.number)
        if not paused:
            unit.woken[name] = ALL
            unit.lifted(queue)

    core.write(run, answer=NOTHING)


def policy(core: Core, name: QueueName) -> Policy:
    queue = core.read(lambda reader: core.registry.find(reader, name))
    return Policy() if queue is None else queue.policy
