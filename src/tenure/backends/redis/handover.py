"""`ack(then=…)`: settling and enqueueing are one step of one shard, so both are of the same queue and partition."""

from __future__ import annotations

from tenure.backends.redis.constants import VERDICTS
from tenure.backends.redis.core import Core
from tenure.backends.redis.produce import NO_FLOWS, arguments, pack, refusal
from tenure.backends.redis.records import SETTLE, encode_result
from tenure.backends.redis.shards import RegisteredQueue, Shard
from tenure.errors import InvalidArgument
from tenure.model.lease import Settle
from tenure.model.names import QueueName


def ack_and_enqueue(core: Core, name: QueueName, queue: RegisteredQueue, shard: Shard, item: Settle) -> bytes:
    """The outcome's letter; nothing is enqueued unless it is `settled`.

    Raises what `enqueue` raises, and InvalidArgument for a job that would go to another queue or partition.
    """
    jobs = item.then or ()
    for job in jobs:
        if job.flow is not None and (job.flow.after or job.flow.name is not None):
            raise InvalidArgument(NO_FLOWS)
        if job.flow is not None and job.flow.queue not in (None, name.queue):
            raise InvalidArgument(
                f"on Redis and Valkey then= stays within one queue, whose keys share a slot: {job.flow.queue!r} is another "
                f"than {name.queue!r}. Put both kinds of job into one queue, or enqueue under a key= before the ack"
            )
    parts = pack(core, queue, jobs, shard.partition)
    if len(parts) > 1 or parts[0].shard != shard:
        raise InvalidArgument(
            f"queue {name.queue!r} has partitions, and a job with a key belongs to the key's: then= reaches only the "
            f"partition of the settled job. Leave the key out, or use a queue of one partition"
        )
    result = item.result
    reply = core.call_once(
        shard.base, "settle_then", SETTLE.pack(VERDICTS["ack"], *item.proof), b"0" if result is None else b"1",
        b"" if result is None else encode_result(result), *arguments(name, parts[0]),
    )  # fmt: skip
    if reply[0] == b"E":
        raise refusal(name, jobs, parts[0], reply)
    code: bytes = reply[0]
    return code
