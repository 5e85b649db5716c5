"""Restore jobs as they were in another store, or in this one before they were archived."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.backends.redis.core import Core
from tenure.backends.redis.packer import Arg
from tenure.backends.redis.produce import ATOMIC_BYTES, FIRST_RULES, created_text
from tenure.backends.redis.records import (
    HAS_GROUP,
    HAS_KEY,
    RESTORED_PARENT,
    RESTORED_STEP,
    State,
    encode_body,
    encode_progress,
    encode_result,
    encode_state,
)
from tenure.backends.redis.shards import Shard
from tenure.errors import TooLarge
from tenure.model import lifecycle
from tenure.model.ids import NO_ID
from tenure.model.job import Restored
from tenure.model.lifecycle import Reason
from tenure.model.names import QueueName
from tenure.model.request import JobImage, StepImage
from tenure.storage.keyspace import digest
from tenure.storage.records import ON_PARENT_DEAD, encode_headers

_JOB_OVERHEAD = 512
#: Milliseconds for which a restored done job stays, unless the policy's retention is longer.
_RETENTION_MS = 86_400_000
#: The server's Lua has no integers: larger numbers would not stay exact.
_LARGEST = 2**52


def restore(core: Core, name: QueueName, images: Sequence[JobImage]) -> Restored:
    size = sum([_JOB_OVERHEAD + len(image.payload) + len(image.result or b"") for image in images])
    size += sum([len(step.value) for image in images for step in image.steps])
    if size > ATOMIC_BYTES:
        raise TooLarge("the batch", size, ATOMIC_BYTES)
    queue = core.shards.find_or_register(name)
    parts: dict[Shard, list[Arg]] = {}
    keys: dict[bytes, str | None] = {}
    whole = Restored(added=[], there=[], refused={})
    for image in images:
        if max(image.token, image.created_at_ms, image.visible_at_ms, image.ended_at_ms, image.due_at_ms) > _LARGEST:
            whole.refused[image.id.hex()] = "its token or a time is above 2**52: Redis and Valkey keep it inexactly"
            continue
        parts.setdefault(queue.shard_of(image.id), []).extend(_packed(image))
        keys[image.id] = image.key
    for shard, args in parts.items():
        added, there, *refused = core.call_once(
            shard.base, "restore", created_text(name), FIRST_RULES, _RETENTION_MS, *args
        )
        whole.added.extend(_ids(added))
        whole.there.extend(_ids(there))
        for job, why in zip(refused[::2], refused[1::2], strict=True):
            whole.refused[job.hex()] = _refusal(keys[job], why)
    return whole


def _refusal(key: str | None, why: bytes) -> str:
    """Return the meaning of the letter in Lua's answer, and the job that follows it."""
    other = why[1:].hex()
    reasons = {
        b"k": f"its idempotency key {key!r} is held by job {other}",
        b"p": f"it waits for job {other}, which is not there: on Redis and Valkey, in the same queue and partition",
        b"x": f"it waits for job {other}, which is dead",
    }
    return reasons.get(why[:1], "a job with this id is there already, and differs")


def _ids(joined: bytes) -> list[str]:
    return [joined[at : at + 16].hex() for at in range(0, len(joined), 16)]


def _packed(image: JobImage) -> list[Arg]:
    key = image.key.encode() if image.key else b""
    group = image.group.encode() if image.group else b""
    state = lifecycle.State[image.state.upper()]
    row = State(
        version=1,
        state=int(state),
        priority=image.priority,
        reason=int(Reason[image.reason.upper()]) if image.reason else 0,
        flags=(HAS_KEY if key else 0) | (HAS_GROUP if group else 0),
        attempt=image.attempt,
        max_attempts=image.max_attempts,
        replays=image.replays,
        token=image.token,
        created_at_ms=image.created_at_ms,
        visible_at_ms=image.visible_at_ms,
        ended_at_ms=image.ended_at_ms if state in lifecycle.TERMINAL else 0,
        due_at_ms=0 if state is lifecycle.State.DEAD else image.due_at_ms,
        last_event=0,
        lease=NO_ID,
    )
    progress = None
    if image.progress is not None or image.progress_note is not None:
        progress = encode_progress(image.progress or 0.0, image.progress_note)
    return [
        image.id,
        encode_state(row, image.id),
        encode_body(image.payload, key, encode_headers(image.headers) if image.headers else b"", group),
        digest(key) + digest(image.payload) if key else b"",
        _note(None if image.error is None else image.error.encode("utf-8", "replace")),
        _note(progress),
        _note(None if image.result is None else encode_result(image.result)),
        _packed_parents(image),
        b"".join([_packed_step(step) for step in image.steps]),
        (image.waits_for or "").encode(),
    ]


def _packed_parents(image: JobImage) -> bytes:
    """Encode on_parent_dead and the parents; parents in other queues look like missing ones."""
    if not image.parents:
        return b""
    policy = bytes((ON_PARENT_DEAD.index(image.on_parent_dead),))
    return policy + b"".join([RESTORED_PARENT.pack(parent.job, parent.ended) for parent in image.parents])


def _packed_step(step: StepImage) -> bytes:
    name, kind = step.name.encode(), b"s" if step.kind == "step" else b"g"
    return RESTORED_STEP.pack(kind, len(name), len(step.value), step.stored_at_ms) + name + step.value


def _note(text: bytes | None) -> bytes:
    return b"0" if text is None else b"1" + text
