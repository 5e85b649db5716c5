"""`ack(then=…)`: settling and enqueueing are one step of one shard, so both use the same queue and partition."""

from __future__ import annotations

from tenure.backends.redis import flow_links
from tenure.backends.redis.constants import VERDICTS
from tenure.backends.redis.core import Core
from tenure.backends.redis.produce import arguments, pack, refusal
from tenure.backends.redis.records import SETTLE, encode_result
from tenure.backends.redis.shards import RegisteredQueue, Shard
from tenure.model.lease import Settle
from tenure.model.names import QueueName


def ack_and_enqueue(core: Core, name: QueueName, queue: RegisteredQueue, shard: Shard, item: Settle) -> bytes:
    """Settle and enqueue; return the outcome's letter. Nothing is enqueued unless it is `settled`.

    Raises what `enqueue` raises, and InvalidArgument for a job that would go to another queue or partition.
    """
    jobs = item.then or ()
    links, parents = flow_links.packed(name, queue, jobs)
    part = flow_links.only_part(name, pack(core, queue, jobs, shard.partition), shard)
    if parents not in (None, shard):
        raise flow_links.other_partition(name)
    result = item.result
    reply = core.call_once(
        shard.base, "settle_then", SETTLE.pack(VERDICTS["ack"], *item.proof), b"0" if result is None else b"1",
        b"" if result is None else encode_result(result), *arguments(name, part), links,
    )  # fmt: skip
    if reply[0] == b"E":
        raise refusal(name, jobs, part, reply)
    code: bytes = reply[0]
    return code
