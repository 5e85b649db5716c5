"""Claiming, settling and extending."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tenure.backends.redis.constants import OUTCOMES, VERDICTS
from tenure.backends.redis.core import Core
from tenure.backends.redis.handover import ack_and_enqueue
from tenure.backends.redis.packer import Arg
from tenure.backends.redis.records import DELIVERY, SETTLE, decode_body, encode_progress, encode_result
from tenure.backends.redis.shards import RegisteredQueue, Shard
from tenure.errors import AlreadySettled, Corrupt, InvalidArgument, LeaseLost, TenureError
from tenure.model.lease import ClaimRequest, Delivery, Extended, Leased, Proof, Settle
from tenure.model.names import QueueName
from tenure.storage.keyspace import digest

#: Bytes of results in one call that a full server still accepts; settling itself frees memory.
LARGE_RESULTS = 64 * 1024


# ── claim ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Attempt:
    """The result of one attempt on some queues: a lease, or when something becomes due."""

    __slots__ = ("due", "leased", "now")

    def __init__(self) -> None:
        self.leased: Leased | None = None
        #: When each queue has something due, in the server's time.
        self.due: dict[QueueName, int] = {}
        self.now = 0


def claim(
    core: Core, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
) -> Leased | None:
    """Try once. If the request waits, try again at each notification until there is a job or the time is up."""
    lease = core.ids.one(core.clock.wall_ms())
    attempt = _try_once(core, names, request, lease)
    if attempt.leased is not None or not request.wait_ms:
        return attempt.leased
    return wait_in_line(core, names, request.wait_ms, lambda: _try_once(core, names, request, lease), cancel)


def wait_in_line(
    core: Core,
    names: Sequence[QueueName],
    wait_ms: int,
    try_once: Callable[[], Attempt],
    cancel: threading.Event | None,
) -> Leased | None:
    """Try at each notification of these queues (or of ANY_QUEUE) until there is a job or the time is up."""
    deadline = core.clock.steady_ms() + wait_ms
    notifications = core.notifications
    waiter = notifications.waiters.join(names)
    try:
        for name in names:
            core.listen(name)
        while not (cancel is not None and cancel.is_set()):
            waiter.signal.clear()
            for name in names:  # without a planned look, anything that becomes due wakes the first waiter
                notifications.plans.pop(name, None)
            attempt = try_once()
            left = deadline - core.clock.steady_ms()
            if attempt.leased is not None or left <= 0:
                return attempt.leased
            wait_ms = left
            leading = notifications.waiters.leads(waiter)
            for name in names:
                due = attempt.due.get(name)
                if name in leading:
                    notifications.plans[name] = attempt.now + left if due is None else due
                    if due is not None:
                        wait_ms = min(wait_ms, due - attempt.now)
            notifications.wait(waiter, wait_ms, cancel)
            core.commands.ensure_open()
        return None
    finally:
        notifications.waiters.leave(waiter)


def _try_once(core: Core, names: Sequence[QueueName], request: ClaimRequest, lease: bytes) -> Attempt:
    attempt = Attempt()
    damaged: Corrupt | None = None
    for name in names if request.id is None else _queue_that_served(core, names, request.id):
        try:
            if _claim_from(core, name, request, lease, attempt):
                return attempt
        except Corrupt as exc:
            if len(names) == 1:
                raise
            damaged = exc  # another queue may still have readable jobs
    if damaged is not None:
        raise damaged
    return attempt


def _queue_that_served(core: Core, names: Sequence[QueueName], claim_id: str) -> Sequence[QueueName]:
    """Return, for a repeated claim over several queues, only the queue that served it: another may have jobs by now."""
    if len(names) == 1:
        return names
    key = digest(claim_id.encode())
    for name in names:
        queue = core.shards.find(name)
        for shard in () if queue is None else queue.shards:
            if core.commands.call(shard.base, "claimed", key)[0]:
                return (name,)
    return names


def _shards(core: Core, queue: RegisteredQueue, request: ClaimRequest, claim_id: bytes) -> Sequence[Shard]:
    """Return the shards to try, in turn; for a repeated claim, only the one that has seen its id."""
    if request.id is not None and len(queue.shards) > 1:
        for shard in queue.shards:
            if core.commands.call(shard.base, "claimed", claim_id)[0]:
                return (shard,)
    return core.shards.rotated(queue.shards)


def _claim_from(core: Core, name: QueueName, request: ClaimRequest, lease: bytes, attempt: Attempt) -> bool:
    queue = core.shards.find(name)
    if queue is None:
        return False
    claim_id = b"" if request.id is None else digest(request.id.encode())
    damaged = b""
    for shard in _shards(core, queue, request, claim_id):
        while True:
            reply = _claim_step(core, shard, request, lease, claim_id)
            if not reply[0]:
                _, due, attempt.now, aside, more = reply
                if more:
                    continue  # it stopped at `inspect_limit` with rows left: one step must never take long
                damaged = damaged or aside
                if due >= 0:
                    attempt.due[name] = min(due, attempt.due.get(name, due))
                break
            leased = leased_jobs(core, shard, reply)
            if leased is not None:
                attempt.leased = leased
                return True
    if damaged:
        raise Corrupt("it cannot be read, and nothing else is there to claim", damaged.hex())
    return False


def _claim_step(core: Core, shard: Shard, request: ClaimRequest, lease: bytes, claim_id: bytes) -> list[Any]:
    return claimed(core.commands.call(shard.base, "claim", *claim_arguments(core, request, lease, claim_id)))


def claim_arguments(core: Core, request: ClaimRequest, lease: bytes, claim_id: bytes) -> tuple[Arg, ...]:
    """The arguments of a claim; `claim_id` is the digest of the claim's id."""
    request_digest = digest(repr((request.limit, request.lease_ms, request.worker, request.max_bytes)).encode())
    return (
        lease, request.limit, request.lease_ms or 0, request.max_bytes or 0, request.worker, claim_id, request_digest,
        random.random(), core.inspect_limit, core.grace_ms,
    )  # fmt: skip


def claimed(reply: list[Any]) -> list[Any]:
    """A claim's answer. Raises for a repeated claim that is refused."""
    if reply[0] == b"E":
        if reply[1] == b"lost":
            raise LeaseLost(detail="the claim with this id has expired")
        raise InvalidArgument("a claim with this id asked for something else: use another id")
    return reply


def leased_jobs(core: Core, shard: Shard, reply: list[Any]) -> Leased | None:
    """Build the lease with its deliveries; None if none of its jobs can be read."""
    _, until, rows, *bodies, lease = reply
    deliveries = []
    unread = []
    name = shard.name
    for (job, token, attempt, max_attempts, priority, created), raw in zip(
        DELIVERY.iter_unpack(rows), bodies, strict=True
    ):
        try:
            key, headers, payload, group = decode_body(raw, job)
        except Corrupt:
            unread.append(job)
            continue
        deliveries.append(
            Delivery(name, job, lease, token, payload, attempt, max_attempts, priority, created, headers, key, group)
        )
    if unread:
        core.call_once(shard.base, "set_aside", lease, b"".join(unread))
        if not deliveries:
            return None
    return Leased(shard.name, lease, until, deliveries)


# ── settle ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def settle(core: Core, name: QueueName, items: Sequence[Settle]) -> list[TenureError | None]:
    queue = core.shards.find(name)
    if queue is None:
        return [_outcome(ord(OUTCOMES["gone"]), item.proof) for item in items]
    if any(item.then for item in items):
        return _settle_and_hand_over(core, name, queue, items)
    if len(queue.shards) == 1:
        return _settle(core, queue.shards[0], items)
    outcomes: list[TenureError | None] = [None] * len(items)
    parts: dict[Shard, list[int]] = {}
    for index, item in enumerate(items):
        parts.setdefault(queue.shard_of(item.proof.job), []).append(index)
    for shard, indexes in parts.items():
        answers = _settle(core, shard, [items[index] for index in indexes])
        for index, answer in zip(indexes, answers, strict=True):
            outcomes[index] = answer
    return outcomes


def _settle_and_hand_over(
    core: Core, name: QueueName, queue: RegisteredQueue, items: Sequence[Settle]
) -> list[TenureError | None]:
    """Settle items with jobs to enqueue, one step each; then the others."""
    outcomes: list[TenureError | None] = [None] * len(items)
    for index, item in enumerate(items):
        if item.then:
            code = ack_and_enqueue(core, name, queue, queue.shard_of(item.proof.job), item)
            outcomes[index] = _outcome(ord(code), item.proof)
    rest = [index for index, item in enumerate(items) if not item.then]
    if rest:
        for index, outcome in zip(rest, settle(core, name, [items[index] for index in rest]), strict=True):
            outcomes[index] = outcome
    return outcomes


def _settle(core: Core, shard: Shard, items: Sequence[Settle]) -> list[TenureError | None]:
    if all(item.verb == "ack" and item.result is None for item in items):
        packed = b"".join([SETTLE.pack(VERDICTS["ack"], *item.proof) for item in items])
        return _answers(core.call_once(shard.base, "settle", packed)[0], items)
    rows: list[bytes] = []
    extras: list[bytes | str | int | float] = []
    for index, item in enumerate(items):
        rows.append(SETTLE.pack(VERDICTS[item.verb], *item.proof))
        text = item.error
        if item.verb == "nack" or text is not None or item.result is not None or item.delay_ms is not None:
            raw = text.encode("utf-8", "replace") if text is not None else None
            if item.verb == "ack":
                raw = None if item.result is None else encode_result(item.result)
            elif item.verb == "release":
                raw = None if item.until_signal is None else item.until_signal.encode()
            delay = -1 if item.delay_ms is None else item.delay_ms
            extras += (index, delay, random.random(), b"0" if raw is None else b"1", raw or b"")
    large = sum(len(item.result) for item in items if item.result is not None) > LARGE_RESULTS
    verb = "settle_with_large_results" if large else "settle"
    return _answers(core.call_once(shard.base, verb, b"".join(rows), *extras)[0], items)


def _answers(codes: bytes, items: Sequence[Settle]) -> list[TenureError | None]:
    if codes == _SETTLED * len(items):
        return [None] * len(items)
    return [_outcome(code, item.proof) for code, item in zip(codes, items, strict=True)]


_NAMES = {ord(letter): name for name, letter in OUTCOMES.items()}
_SETTLED = OUTCOMES["settled"].encode()
_DETAILS = {
    "gone": "it was settled, cancelled or purged before",
    "lost": "its lease has ended",
    "expired": "its lease has expired",
}


def _outcome(code: int, proof: Proof) -> TenureError | None:
    job, name = proof.job.hex(), _NAMES[code]
    if name == "settled":
        return None
    if name == "already_settled":
        return AlreadySettled(job, proof.token)
    if name == "corrupt":
        return Corrupt("its state is damaged", job)
    if name == "no_lease":
        return Corrupt(f"its lease {proof.lease.hex()} is missing", job)
    return LeaseLost(job, proof.token, _DETAILS[name])


def extend(core: Core, name: QueueName, lease: bytes, lease_ms: int) -> Extended:
    queue = core.shards.find(name)
    for shard in () if queue is None else queue.shards:
        reply = core.call_once(shard.base, "extend", lease, lease_ms)
        if reply[0] != b"E":
            until, lost = reply
            return Extended(until, [lost[at : at + 16].hex() for at in range(0, len(lost), 16)])
    raise LeaseLost(detail="its lease has ended")


def progress(core: Core, name: QueueName, proof: Proof, fraction: float, note: str | None) -> None:
    queue = core.shards.find(name)
    if queue is None:
        raise LeaseLost(proof.job.hex(), proof.token)
    shard = queue.shard_of(proof.job)
    reply = core.call_once(shard.base, "progress", *proof, encode_progress(fraction, note))
    if reply[0] == b"E":
        raise refusal(reply[1], proof)


def refusal(code: bytes, proof: Proof) -> TenureError:
    """Return why a proof is not valid, by the outcome's letter."""
    outcome = _outcome(ord(code), proof)
    assert outcome is not None
    return outcome
