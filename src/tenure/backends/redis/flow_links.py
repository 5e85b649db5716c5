"""Flows: encode the links between jobs for the Lua functions.

A step of the server sees one shard: a job, its parents and the jobs enqueued with its ack must be in one queue and one
partition. Other requests are refused here, with advice on how to place the jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tenure.backends.redis.records import LINKS, PARENT_HERE
from tenure.backends.redis.shards import Packed, RegisteredQueue, Shard
from tenure.errors import InvalidArgument
from tenure.model.ids import NO_ID
from tenure.model.names import QueueName
from tenure.model.request import JobRequest, dead_parent
from tenure.queueing.flow_links import named
from tenure.storage.records import ON_PARENT_DEAD

_NO_PREFIX = NO_ID[:12]


def packed(name: QueueName, queue: RegisteredQueue, requests: Sequence[JobRequest]) -> tuple[bytes, Shard | None]:
    """Return the links of these jobs, and the shard of their stored parents, if there are any.

    Raises InvalidArgument for a job of another queue, parents in several partitions, unknown names and cycles.
    """
    places = named(requests).places
    found: list[bytes] = []
    stored: set[bytes] = set()
    for index, request in enumerate(requests):
        flow = request.flow
        if flow is None:
            continue
        if flow.queue not in (None, name.queue):
            raise _other_queue(name, flow.queue or "")
        if flow.after:
            found.append(LINKS.pack(index, ON_PARENT_DEAD.index(flow.on_parent_dead), len(flow.after)))
            for parent in flow.after:
                if isinstance(parent, bytes):
                    # no job has such an id; in links the prefix marks a job of the same call
                    if parent.startswith(_NO_PREFIX):
                        raise _missing_parent(parent)
                    stored.add(parent)
                    found.append(parent)
                else:
                    found.append(PARENT_HERE.pack(_NO_PREFIX, places[parent]))
    return b"".join(found), _common_shard(name, queue, stored)


def _common_shard(name: QueueName, queue: RegisteredQueue, jobs: Iterable[bytes]) -> Shard | None:
    shards = {queue.shard_of(job) for job in jobs}
    if len(shards) > 1:
        raise other_partition(name)
    return shards.pop() if shards else None


def only_part(name: QueueName, parts: Sequence[Packed], shard: Shard | None = None) -> Packed:
    """Return the only part, checked to be in `shard` if one is given. Raises InvalidArgument if there are several."""
    if len(parts) > 1 or parts[0].shard != (shard or parts[0].shard):
        raise other_partition(name)
    return parts[0]


def _other_queue(name: QueueName, other: str) -> InvalidArgument:
    return InvalidArgument(
        f"on Redis and Valkey a flow stays within one queue, whose keys share a slot: {other!r} is another than "
        f"{name.queue!r}. Put both kinds of job into one queue, or enqueue under a key= before the ack"
    )


def other_partition(name: QueueName) -> InvalidArgument:
    return InvalidArgument(
        f"queue {name.queue!r} has partitions, and a flow stays within one: a job is in the partition of its key, or of "
        f"its parents. Enqueue the flow in one call and without keys, or use a queue of one partition"
    )


def refusal(reply: Sequence[Any]) -> InvalidArgument:
    """Return the error for a parent that is dead, or does not exist."""
    return dead_parent(reply[2]) if reply[1] == b"dead" else _missing_parent(reply[2])


def _missing_parent(job: bytes) -> InvalidArgument:
    return InvalidArgument(
        f"parent {job.hex()} is not in this queue: it was never enqueued here, or is gone. On Redis and Valkey a job "
        "waits for jobs of its own queue"
    )
