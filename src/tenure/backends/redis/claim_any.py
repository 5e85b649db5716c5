"""Claims from any queue, where one step reaches all of them (`traits.any_queue`).

That is so on one server, and on a cluster for queues in one slot (`storage.redis.one_slot`).
"""

from __future__ import annotations

import threading
from functools import partial

from tenure.backends.redis.consume import Attempt, claim_arguments, claimed, leased_jobs, wait_in_line
from tenure.backends.redis.core import Core
from tenure.backends.redis.records import encode_msgpack
from tenure.errors import Corrupt
from tenure.model.lease import AnyQueues, ClaimRequest, Leased
from tenure.model.names import ANY_QUEUE
from tenure.storage.keyspace import digest

REFUSED = (
    "on this cluster the queues are in different slots, and a claim from any queue is one step. Create the queues in one "
    "slot (storage.redis.one_slot, or ?one_slot=true in the URL), or name them: store.claim([...])"
)


def claim_any(
    core: Core, request: ClaimRequest, among: AnyQueues, cancel: threading.Event | None = None
) -> Leased | None:
    """A lease over jobs of the queue whose turn it is; waits up to `request.wait_ms` for one."""
    try_once = partial(_try_once, core, request, _chosen(among), core.ids.one(core.clock.wall_ms()))
    attempt = try_once()
    if attempt.leased is not None or not request.wait_ms:
        return attempt.leased
    return wait_in_line(core, (ANY_QUEUE,), request.wait_ms, try_once, cancel)


def _chosen(among: AnyQueues) -> bytes:
    """The choice of queues for the server; empty: all of them, with equal weights."""
    chosen = {
        "tenants": None if among.tenants is None else sorted(among.tenants),
        "queues": None if among.queues is None else sorted(among.queues),
        "excluding": sorted(among.excluding) or None,
        "weights": among.weights or None,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    return encode_msgpack(given) if given else b""


def _try_once(core: Core, request: ClaimRequest, chosen: bytes, lease: bytes) -> Attempt:
    attempt = Attempt()
    claim_id = b"" if request.id is None else digest(request.id.encode())
    registry = core.shards.registry
    while True:
        reply = core.commands.call_once(registry, "claim_any", *claim_arguments(core, request, lease, claim_id), chosen)
        if reply[0] == b"E":  # a release that kept no index of queues wrote this store
            _index_queues(core)
            continue
        base, answer = reply
        claimed(answer)
        if answer[0]:
            attempt.leased = leased_jobs(core, core.shards.at(base), answer)
            if attempt.leased is not None:
                return attempt
            continue
        _, due, attempt.now, aside, more = answer
        if more:
            continue  # it stopped at `inspect_limit` with queues or rows left: one step must never take long
        if aside:
            raise Corrupt("it cannot be read, and nothing else is there to claim", aside.hex())
        if due >= 0:
            attempt.due[ANY_QUEUE] = due
        return attempt


def _index_queues(core: Core) -> None:
    """Give each queue of the store its place among the turns."""
    cursor = b"0"
    while True:
        cursor = core.commands.call(core.shards.registry, "index_queues", cursor, core.grace_ms)[0]
        if cursor == b"0":
            return
