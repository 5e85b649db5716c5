"""Steps and signals of a job: a hash in its shard, written by one step of the server (`lua/46_steps.lua`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenure.backends.redis.consume import refusal
from tenure.backends.redis.core import Core
from tenure.backends.redis.records import decode_step
from tenure.errors import LeaseLost, NotFound
from tenure.model.lease import Proof
from tenure.model.names import QueueName
from tenure.model.step import Step, steps_limit_error


def record_step(core: Core, name: QueueName, proof: Proof, step: str, value: bytes) -> bytes:
    """Store a step's value unless it has one; return the stored value. Raises LeaseLost, TooLarge."""
    queue = core.shards.find(name)
    if queue is None:
        raise LeaseLost(proof.job.hex(), proof.token)
    reply = core.call_once(queue.shard_of(proof.job).base, "record_step", *proof, step.encode(), value)
    _raise_if_too_many(reply)
    if reply[0] == b"E":
        raise refusal(reply[1], proof)
    found: bytes = value if reply[0] else reply[1]
    return found


def signal(core: Core, name: QueueName, job: bytes, signal: str, payload: bytes) -> bool:
    """Send a signal to a job; False if it has one of that name. Raises NotFound, TooLarge."""
    queue = core.shards.find(name)
    reply = [-1]
    if queue is not None:
        reply = core.call_once(queue.shard_of(job).base, "signal", job, signal.encode(), payload)
        _raise_if_too_many(reply)
    if reply[0] < 0:
        raise NotFound("there is no such job, or it is done")
    return reply[0] == 1


def steps(core: Core, name: QueueName, job: bytes) -> list[Step]:
    """Return the steps and signals of a job, in the order in which they were stored. Raises Corrupt."""
    queue = core.shards.find(name)
    if queue is None:
        return []
    rows = core.commands.call(queue.shard_of(job).base, "steps", job)
    found = [decode_step(job, field, row) for field, row in zip(rows[::2], rows[1::2], strict=True)]
    return [step for _, step in sorted(found, key=lambda placed: placed[0])]


def _raise_if_too_many(reply: Sequence[Any]) -> None:
    refused = steps_limit_error(reply[2], reply[3]) if reply[:2] == [b"E", b"large"] else None
    if refused is not None:
        raise refused
