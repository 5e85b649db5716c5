"""Enqueueing, and staged writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from tenure.backends.redis import flow_links
from tenure.backends.redis.core import Core, RememberingCore
from tenure.backends.redis.groups import shard_of_group
from tenure.backends.redis.packer import Arg
from tenure.backends.redis.records import (
    CONFLICT,
    HAS_GROUP,
    HAS_KEY,
    KEYED,
    THERE,
    WISH,
    encode_body,
    encode_msgpack,
    encode_rules,
    plain_body,
)
from tenure.backends.redis.shards import Packed, RegisteredQueue, Shard
from tenure.errors import InvalidArgument, KeyConflict, QueueFull, TenureError, TooLarge
from tenure.model.ids import NO_ID
from tenure.model.job import Enqueued
from tenure.model.names import QueueName
from tenure.model.request import JobRequest
from tenure.model.retry import Policy
from tenure.model.write import (
    CHUNK,
    MAX_MANIFEST,
    UNFINISHED_MS,
    Published,
    Refusal,
    WriteState,
    accepted_indexes,
)
from tenure.storage.keyspace import digest
from tenure.storage.records import encode_headers

#: The most bytes that one call enqueues: one request, which the server runs as one step.
ATOMIC_BYTES = 64 * 1024 * 1024
_JOB_OVERHEAD = 512
#: From this payload size on, a read before sending pays off if this process may have sent the key before.
LARGE_PAYLOAD = 32 * 1024
FIRST_RULES = encode_rules(Policy())
_PLAIN = WISH.pack(0, 0, 0, 0, 0)
_PLAIN_REQUEST = tuple(JobRequest(b""))[1:]
_decode_refusals = msgspec.msgpack.Decoder(list[Refusal]).decode


def created_text(name: QueueName) -> bytes:
    return encode_msgpack((name.tenant, name.queue))


def enqueue(core: Core, name: QueueName, requests: Sequence[JobRequest]) -> list[Enqueued]:
    queue = core.shards.find_or_register(name)
    size = _JOB_OVERHEAD * len(requests)
    in_flow = False
    for request in requests:
        size += len(request[0])
        in_flow = in_flow or request.flow is not None
    if size > ATOMIC_BYTES:
        raise TooLarge("the batch", size, ATOMIC_BYTES)
    if in_flow:
        links, shard = flow_links.packed(name, queue, requests)
        parts = pack(core, queue, requests, None if shard is None else shard.partition)
        return _send(core, name, requests, flow_links.only_part(name, parts), links)
    known = _held_duplicates(core, queue, requests) if core.filters.keys is not None else {}
    if known:
        rest = [request for index, request in enumerate(requests) if index not in known]
        added = iter(_enqueue(core, name, queue, rest) if rest else ())
        return [known[index] if index in known else next(added) for index in range(len(requests))]
    return _enqueue(core, name, queue, requests)


def _enqueue(core: Core, name: QueueName, queue: RegisteredQueue, requests: Sequence[JobRequest]) -> list[Enqueued]:
    packed = pack(core, queue, requests)
    if len(packed) == 1:
        return _send(core, name, requests, packed[0])
    answers: dict[int, Enqueued] = {}
    for part in packed:
        answers.update(zip(part.indexes, _send(core, name, requests, part), strict=True))
    return [answers[index] for index in range(len(requests))]


def _held_duplicates(core: Core, queue: RegisteredQueue, requests: Sequence[JobRequest]) -> dict[int, Enqueued]:
    """Find large jobs that are duplicates, by a read, so that they need not be sent; return the results by index.

    Only keys that this process may have sent before are looked up; for others the enqueue itself finds out. A request
    that is remembered by its id must repeat every step, so nothing is looked up for it.
    """
    seen = core.filters.keys
    if seen is None or isinstance(core, RememberingCore):
        return {}
    wanted: dict[Shard, list[tuple[int, bytes, bytes]]] = {}
    for index, request in enumerate(requests):
        if request.key is not None and len(request.payload) >= LARGE_PAYLOAD:
            key = digest(request.key.encode())
            if key in seen:
                wanted.setdefault(queue.shard_of(key), []).append((index, key, digest(request.payload)))
            else:
                seen.add(key)
    known: dict[int, Enqueued] = {}
    for shard, keyed in wanted.items():
        found = core.commands.call(shard.base, "holders", b"".join(key for _, key, _ in keyed))
        for (index, _, payload), holder in zip(keyed, found, strict=True):
            if holder and (holder[16:] == payload or requests[index].on_conflict == "keep"):
                known[index] = Enqueued(holder[:16].hex(), True)
    return known


def pack(core: Core, queue: RegisteredQueue, requests: Sequence[JobRequest], chunk: int | None = None) -> list[Packed]:
    wall = core.clock.wall_ms()
    # A repeated chunk must find its marker, so it always goes to the same partition.
    anywhere = core.choose_shard(queue.shards) if chunk is None else queue.shards[chunk % len(queue.shards)]
    if all(request[1:] == _PLAIN_REQUEST for request in requests):
        return [Packed(anywhere, range(len(requests)), [_PLAIN], [], [plain_body(r[0]) for r in requests])]
    packed: dict[int, Packed] = {}
    for index, request in enumerate(requests):
        payload, delay_ms, at_ms, priority, key, attempts, ttl_ms, headers, on_conflict, _, group = request
        if at_ms is not None:
            delay_ms = max(0, at_ms - wall)  # by the caller's calendar
        raw_key = key.encode() if key is not None else b""
        shard = anywhere
        key_digest = b""
        if raw_key:
            key_digest = digest(raw_key)
            shard = queue.shard_of(key_digest)  # jobs with the same key are in the same shard
        if group is not None:
            shard = shard_of_group(queue, group, bool(raw_key))
        part = packed.get(shard.partition)
        if part is None:
            places: list[int] = []
            part = packed[shard.partition] = Packed(shard, places, [], [], [])
        if raw_key:
            part.keyed.append(KEYED.pack(len(part.indexes), key_digest, digest(payload), on_conflict == "keep"))
        assert isinstance(part.indexes, list)
        part.indexes.append(index)
        flags = (HAS_KEY if raw_key else 0) | (HAS_GROUP if group is not None else 0)
        part.wishes.append(WISH.pack(priority, flags, attempts or 0, delay_ms, ttl_ms or 0))
        raw_headers = encode_headers(headers) if headers else b""
        part.bodies.append(encode_body(payload, raw_key, raw_headers, b"" if group is None else group.encode()))
    return list(packed.values())


def arguments(name: QueueName, part: Packed) -> list[Arg]:
    wishes = part.wishes[0] if len(set(part.wishes)) == 1 else b"".join(part.wishes)
    return [
        created_text(name), FIRST_RULES, os.urandom(4), part.shard.partition, len(part.indexes), wishes,
        b"".join(part.keyed), *part.bodies,
    ]  # fmt: skip


def refusal(name: QueueName, requests: Sequence[JobRequest], part: Packed, reply: list[Any]) -> TenureError:
    if reply[1] == b"full":
        return QueueFull(str(name), int(reply[2]), int(reply[3]))
    if reply[1] in (b"parent", b"dead"):
        return flow_links.refusal(reply)
    conflicts = []
    for index, job, other in CONFLICT.iter_unpack(reply[2]):
        existing = f"{part.indexes[other]} of this call" if job == NO_ID else job.hex()
        conflicts.append((part.indexes[index], existing))
    first, existing = conflicts[0]
    return KeyConflict(first, str(requests[first].key), existing, conflicts)


def _send(
    core: Core, name: QueueName, requests: Sequence[JobRequest], part: Packed, links: bytes | None = None
) -> list[Enqueued]:
    args = arguments(name, part)
    if links is None:
        reply = core.call_once(part.shard.base, "enqueue", *args)
    else:
        reply = core.call_once(part.shard.base, "enqueue_flow", *args, links)
    if reply[0] == b"E":
        raise refusal(name, requests, part, reply)
    prefix, there = reply
    count = len(part.indexes)
    tail = bytes((part.shard.partition,))
    first, last = prefix.hex(), tail.hex()
    added = [Enqueued(f"{first}{n:06x}{last}") for n in range(count)]
    for index, job in THERE.iter_unpack(there):
        added[index] = Enqueued(job.hex(), True)
    return added


# ── staged writes ────────────────────────────────────────────────────────────────────────────────────────────────────
#
# The manifest and how far a write is are in the registry; the marker of a chunk is beside its jobs, written with them.
# If a client stops between the two, the marker is there and the chunk is not counted yet: the next client counts it.


def begin_write(core: Core, write_id: str, manifest: bytes, keep_ms: int) -> WriteState:
    if len(manifest) > MAX_MANIFEST:
        raise TooLarge("the write's manifest", len(manifest), MAX_MANIFEST)
    key = digest(write_id.encode())
    return _write(core.commands.call(core.shards.registry, "begin_write", key, write_id, manifest, keep_ms))


def write_state(core: Core, write_id: str) -> WriteState | None:
    reply = core.commands.call(core.shards.registry, "write_state", digest(write_id.encode()))
    return _write(reply) if reply else None


def publish(
    core: Core,
    write_id: str,
    chunk: int,
    name: QueueName,
    requests: Sequence[JobRequest],
    refused: Sequence[Refusal] = (),
) -> Published:
    if len(requests) > CHUNK:
        raise InvalidArgument(f"a chunk has at most {CHUNK} jobs, not {len(requests)}")
    if any(request.flow is not None for request in requests):
        raise InvalidArgument("on Redis and Valkey a staged write takes no flows: enqueue_many enqueues one")
    accepted = accepted_indexes(len(requests), refused)
    state = write_state(core, write_id)
    if state is None:
        raise _unknown(write_id)
    if chunk < state.chunk or state.finished:
        stored = core.commands.call(core.shards.registry, "refusals", digest(write_id.encode()), chunk)
        return Published(False, 0, 0, _refusals(stored[0]))
    if chunk > state.chunk:
        raise InvalidArgument(f"chunk {chunk} of write {write_id!r} comes before chunk {state.chunk}")
    key = digest(write_id.encode())
    wanted = [requests[index] for index in accepted] if refused else requests
    fresh = not requests
    jobs = duplicates = 0
    recorded: list[Refusal] = []
    for part, left_out in _with_refusals(core, name, requests, wanted, refused, chunk) if requests else ():
        encoded = msgspec.msgpack.encode(left_out) if left_out else b""
        reply = core.call_once(part.shard.base, "publish", *arguments(name, part), key, chunk, encoded, UNFINISHED_MS)
        if reply[0] == b"E":
            error = refusal(name, wanted, part, reply)
            raise error.at(accepted) if isinstance(error, KeyConflict) else error
        fresh = fresh or bool(reply[0])
        jobs, duplicates = jobs + reply[1], duplicates + reply[2]
        recorded += _refusals(reply[3])
    recorded.sort(key=lambda refusal: refusal.index)
    encoded = msgspec.msgpack.encode(recorded) if recorded else b""
    core.commands.call(core.shards.registry, "count_chunk", key, chunk, jobs, duplicates, len(recorded), encoded)
    return Published(True, jobs, duplicates, recorded) if fresh else Published(False, 0, 0, recorded)


def _with_refusals(
    core: Core,
    name: QueueName,
    requests: Sequence[JobRequest],
    wanted: Sequence[JobRequest],
    refused: Sequence[Refusal],
    chunk: int,
) -> list[tuple[Packed, list[Refusal]]]:
    """Return the chunk's jobs by partition, each with the refusals that the partition's marker records."""
    queue = core.shards.find_or_register(name)
    packed = {part.shard.partition: part for part in pack(core, queue, wanted, chunk)} if wanted else {}
    left_out: dict[int, list[Refusal]] = {}
    for refusal in refused:
        shard = queue.shard_of(digest(str(requests[refusal.index].key).encode()))
        packed.setdefault(shard.partition, Packed(shard, [], [], [], []))
        left_out.setdefault(shard.partition, []).append(refusal)
    return [(part, left_out.get(partition, [])) for partition, part in packed.items()]


def _refusals(stored: bytes) -> list[Refusal]:
    return _decode_refusals(stored) if stored else []


def finish_write(core: Core, write_id: str, forget: str | None) -> WriteState:
    other = b"" if forget is None else digest(forget.encode())
    reply = core.commands.call(core.shards.registry, "finish_write", digest(write_id.encode()), other)
    if not reply:
        raise _unknown(write_id)
    return _write(reply)


def _unknown(write_id: str) -> InvalidArgument:
    return InvalidArgument(f"write {write_id!r} was never begun, or has been forgotten")


def _write(reply: list[Any]) -> WriteState:
    write_id, manifest, chunk, jobs, duplicates, finished, refused = reply
    return WriteState(
        id=write_id.decode(),
        manifest=manifest,
        chunk=chunk,
        jobs=jobs,
        duplicates=duplicates,
        finished=bool(finished),
        refused=refused,
    )
