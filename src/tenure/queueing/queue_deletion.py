"""Deletes queues, and replaces a tenant's whole set of queues.

A deleted queue's row stays and maps its number to its name: the journal still names it, and a new queue of the same
name gets the same number. Its counters stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenure.errors import QueueNotEmpty
from tenure.model.lifecycle import Change
from tenure.model.names import QueueName
from tenure.model.retry import Policy
from tenure.queueing import admin, groups, policies, turns
from tenure.queueing.core import Core
from tenure.queueing.outcomes import NOTHING, YES_OR_NO
from tenure.queueing.queue_turns import queue_sub
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.unit_of_work import ALL, UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import Counter, Limit

#: How often deletion is tried while other callers enqueue jobs.
_TRIES = 10


def delete_queue(core: Core, name: QueueName, force: bool) -> bool:
    """Delete a queue; False if there is none. Raises QueueNotEmpty for leased jobs and, without `force`, for others.

    First removes its jobs in chunks: done jobs always, others with `force`.
    """
    if core.read(lambda reader: core.registry.find(reader, name)) is None:
        return core.write(lambda unit: False, answer=YES_OR_NO, step=b"delete")
    for attempt in range(_TRIES):
        core.read(lambda reader: _refuse_held(core, reader, (name,), force))
        admin.purge(core.plain, name, "done")
        for state in ("blocked", "ready", "scheduled", "dead") if force else ():
            admin.purge(core.plain, name, state)
        try:
            return core.write(lambda unit: _delete(core, unit, (name,)), answer=YES_OR_NO, step=b"delete")
        except QueueNotEmpty:
            if attempt == _TRIES - 1 or not force:
                raise
    raise AssertionError("the last try returns or raises")


def replace_queues(core: Core, tenant: str, wanted: Mapping[str, Policy]) -> None:
    """Give the tenant exactly these queues, with these policies, in one transaction.

    Raises QueueNotEmpty if another queue of the tenant has jobs that are leased, wait or are dead.
    """
    named = {QueueName(tenant, queue): policy for queue, policy in wanted.items()}

    def others(reader: Reader) -> list[QueueName]:
        return [queue.name for queue in core.registry.all(reader, tenant) if queue.name not in named]

    core.read(lambda reader: _refuse_held(core, reader, others(reader), force=False))
    for name in core.read(others):
        admin.purge(core.plain, name, "done")

    def run(unit: UnitOfWork) -> None:
        _delete(core, unit, others(unit.tx))
        policies.put(core, unit, named)

    core.write(run, answer=NOTHING, step=b"replace")


def _refuse_held(core: Core, reader: Reader, names: Sequence[QueueName], force: bool) -> None:
    for queue in _found(core, reader, names):
        waiting, leased, dead = (_count(reader, queue, c) for c in (Counter.WAITING, Counter.LEASED, Counter.DEAD))
        waiting += _count(reader, queue, Counter.BLOCKED)
        if leased or ((waiting or dead) and not force):
            raise QueueNotEmpty(str(queue.name), leased, waiting, dead)


def _found(core: Core, reader: Reader, names: Sequence[QueueName]) -> list[RegisteredQueue]:
    return [queue for name in names if (queue := core.registry.find(reader, name)) is not None]


def _count(reader: Reader, queue: RegisteredQueue, counter: Counter) -> int:
    return records.decode_count(reader.get(keyspace.COUNTERS, queue.counters[counter]))


def _delete(core: Core, unit: UnitOfWork, names: Sequence[QueueName]) -> bool:
    """Delete queues that have no jobs; False: none of them exists. Raises QueueNotEmpty, before any write."""
    tx, found = unit.tx, _found(core, unit.tx, names)
    _refuse_held(core, tx, names, force=False)
    for queue in found:
        done = _count(tx, queue, Counter.DONE)
        if done:
            raise QueueNotEmpty(str(queue.name), 0, 0, 0, done)
    places = {queue.number: turns.place(tx, queue_sub(queue)) for queue in found}
    for queue in found:
        unit.save_queue(queue.record(policy=Policy(), paused=False, deleted=True, grouped=False))
        unit.event(Change.QUEUE_DELETED, queue.number)
        tx.delete(keyspace.LIMITS, keyspace.limit(Limit.QUEUE_RATE, queue.number))
        # Their due rows find nothing, and the sweeper deletes them.
        tx.delete_range(keyspace.DEDUP, *keyspace.queue_range(queue.number))
        tx.delete_range(keyspace.CLAIMS, *keyspace.queue_range(queue.number))
        unit.woken[queue.name] = ALL
        if queue.grouped:
            groups.forget(unit, queue.number)
        turns.move(tx, queue_sub(queue), places[queue.number], None)
        core.turns.learn(unit, queue.number, None)
    return bool(found)
