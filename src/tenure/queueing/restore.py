"""Jobs put in as they stood elsewhere: in another store (`migrate`), or here before they were archived.

Id, state, attempts, token and times are kept, so that programs that know a job by its id find it again, and a token
handed out there is never handed out twice. Steps, signals and parents come along (`restored_links`). Leases and events
stay behind: what was leased waits, and the journal begins with `restored`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tenure.errors import TooLarge
from tenure.model.ids import NO_ID
from tenure.model.job import Restored
from tenure.model.lifecycle import Change, Reason, State
from tenure.model.names import QueueName
from tenure.model.request import JobImage
from tenure.queueing import groups, quota_usage, quotas
from tenure.queueing.core import Core
from tenure.queueing.enqueue import JOB_OVERHEAD
from tenure.queueing.idempotency_keys import holders
from tenure.queueing.job_notes import put_parts, write_notes
from tenure.queueing.leases import whole_payload
from tenure.queueing.locations import note_foreign
from tenure.queueing.outcomes import Answer
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.removal import COUNTED, due_row, index_row
from tenure.queueing.restored_links import RestoredLinks, blocked_row
from tenure.queueing.step_rows import restore_steps
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.keyspace import Counter, Due
from tenure.storage.records import PART_BYTES, Notes, StateRecord

#: A done job comes back to be looked at: it stays a day where the policy says nothing longer.
_KEPT_MS = 86_400_000

#: A job without parents.
_NO_PARENTS = (False, 0)
#: What the two rows of a job and a parent take.
_LINK_BYTES = 84
_PIECE = Answer[tuple[Restored, int]](tuple[Restored, int])


def restore(core: Core, name: QueueName, images: Sequence[JobImage]) -> Restored:
    size = sum([JOB_OVERHEAD + _weight(image) + _attached_bytes(image) for image in images])
    if size > core.traits.atomic_bytes and not core.traits.cuts_batches:
        raise TooLarge("the batch", size, core.traits.atomic_bytes)
    whole, left = Restored(added=[], there=[], refused={}), list(images)
    while True:
        some = partial(_restore_some, name, left)
        done, at = core.write(some, answer=_PIECE, step=_step(images, left))
        whole.added.extend(done.added)
        whole.there.extend(done.there)
        whole.refused.update(done.refused)
        left = left[at:]
        if not left:
            return whole


def _step(images: Sequence[JobImage], left: Sequence[JobImage]) -> bytes:
    return b"" if len(left) == len(images) else b"left %d" % len(left)


def _restore_some(name: QueueName, images: Sequence[JobImage], unit: UnitOfWork) -> tuple[Restored, int]:
    """Restore the first of them, as many as one transaction takes on, and how many those were."""
    most = unit.tx.at_most(len(images)) if images else 0
    return _restore(unit, unit.queue(name), images[:most]), most


def _restore(unit: UnitOfWork, queue: RegisteredQueue, images: Sequence[JobImage]) -> Restored:
    unique = {image.id: image for image in images}
    keys = [keyspace.of_queue(queue.number, job) for job in unique]
    states = unit.tx.get_many(keyspace.STATE, keys)
    there: list[str] = []
    refused: dict[str, str] = {}
    new: list[JobImage] = []
    for image, raw in zip(unique.values(), states, strict=True):
        if raw is None:
            new.append(image)
        elif _same(unit, queue, image, records.decode_state(raw, image.id)):
            there.append(image.id.hex())
        else:
            refused[image.id.hex()] = "a job with this id is there already, and differs"
    keyed = _keys(unit, queue, new, refused)
    links = RestoredLinks(unit, queue, new)
    links.refuse(new, refused)
    fresh = [image for image in new if image.id.hex() not in refused]
    if queue.meter:
        waiting = sum([not _ended(image) for image in fresh])
        quotas.admit(unit, queue, waiting, sum(map(_weight, fresh)), by_rate=False)
    if any(image.group for image in fresh):
        queue = groups.make_grouped(unit, queue)
    joined = {image.id: links.write(image) for image in fresh if image.parents}
    for image in fresh:
        _put(unit, queue, image, joined.get(image.id, _NO_PARENTS), image.id in links.parents_here)
    links.write_parents()
    for image, digest in keyed:
        if image.id.hex() not in refused:
            _hold(unit, queue, image, digest)
    added = [image.id.hex() for image in fresh]
    unit.count(queue.number, Counter.ENQUEUED, len(added))
    return Restored(added=added, there=there, refused=refused)


def _same(unit: UnitOfWork, queue: RegisteredQueue, image: JobImage, state: StateRecord) -> bool:
    """Whether a job that is there is the one given: compared by all that a migration's checksum covers."""
    if (State(state.state).name.lower(), state.priority, state.attempt, state.token, state.replays) != (
        image.state, image.priority, image.attempt, image.token, image.replays,
    ):  # fmt: skip
        return False
    raw = unit.tx.get(keyspace.JOBS, keyspace.of_queue(queue.number, image.id))
    if raw is None:
        return False
    record = records.decode_job(raw, image.id)
    return (
        record.created_at_ms == image.created_at_ms
        and records.decode_headers(record.headers, image.id) == image.headers
        and (record.group.decode() or None) == image.group
        and whole_payload(unit.tx, queue.number, image.id, record) == image.payload
    )


# ── idempotency keys ─────────────────────────────────────────────────────────────────────────────────────────────────


def _keys(
    unit: UnitOfWork, queue: RegisteredQueue, images: Sequence[JobImage], refused: dict[str, str]
) -> list[tuple[JobImage, bytes]]:
    """Which of these are to hold their key, as a digest; those that must and cannot are refused."""
    keyed = [(image, keyspace.digest(image.key.encode())) for image in images if image.key is not None]
    if not keyed:
        return []
    taken = {key: job for key, (job, _) in holders(unit, queue, [digest for _, digest in keyed]).items()}
    held = []
    # A job that has not ended must hold its key; one that has may leave it to another.
    for image, digest in sorted(keyed, key=lambda pair: _ended(pair[0])):
        if taken.setdefault(digest, image.id) == image.id:
            held.append((image, digest))
        elif not _ended(image) and not image.replays:
            refused[image.id.hex()] = f"its idempotency key {image.key!r} is held by job {taken[digest].hex()}"
    return held


def _hold(unit: UnitOfWork, queue: RegisteredQueue, image: JobImage, digest: bytes) -> None:
    until = image.created_at_ms + queue.dedup_ms
    if until <= unit.now:
        if _ended(image):
            return  # its window has passed
        until = unit.now + 1
    at = keyspace.of_queue(queue.number, digest)
    payload = keyspace.digest(image.payload)
    unit.tx.put(keyspace.DEDUP, at, records.encode_dedup(image.id, payload, until))
    unit.tx.put(keyspace.DUE, keyspace.due(Due.DEDUP, until, queue.number, digest), b"")


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _put(unit: UnitOfWork, queue: RegisteredQueue, image: JobImage, parents: tuple[bool, int], is_parent: bool) -> None:
    """`parents`: whether it has any, and how many have not ended for it. One that waits for none is not blocked."""
    tx, number, job = unit.tx, queue.number, image.id
    has_parents, unmet = parents
    if image.state == "blocked" and not unmet:
        image = image._replace(state="waiting", visible_at_ms=max(unit.now, image.visible_at_ms))
    at = keyspace.of_queue(number, job)
    row, parts = records.encode_job(
        image.created_at_ms,
        image.payload,
        image.key.encode() if image.key else b"",
        records.encode_headers(image.headers),
        image.group.encode() if image.group else b"",
    )
    tx.put(keyspace.JOBS, at, row)
    note_foreign(tx, number, (job,))
    for part, value in enumerate(parts, 1):
        tx.put(keyspace.PAYLOAD, keyspace.payload_part(number, job, part), value)
    flags = (records.HAS_PARTS if parts else 0) | (records.HAS_KEY if image.key else 0) | _note(unit, number, image)
    if image.group:
        flags |= records.HAS_GROUP
    flags |= (records.HAS_PARENTS if has_parents else 0) | (records.HAS_CHILDREN if is_parent else 0)
    flags |= restore_steps(unit, number, image)
    state = _state(unit, queue, image, flags)
    ref = unit.event(
        Change.RESTORED, number, job, state, at_ms=state.visible_at_ms, text=(image.error or "")
    )  # fmt: skip
    tx.put(keyspace.STATE, at, records.encode_state(state._replace(last_event=ref)))
    index, due = index_row(number, job, state), due_row(number, job, state)
    if index is not None:
        tx.put(*index, blocked_row(unmet, image.on_parent_dead) if state.state == State.BLOCKED else b"")
    if due is not None:
        tx.put(keyspace.DUE, due, b"")
    unit.count(number, COUNTED[State(state.state)], 1)
    if queue.meter:
        quota_usage.moved(unit, queue.meter, int(not _ended(image)), _weight(image))
    if state.state == State.WAITING:
        unit.ready(queue, state.priority, state.visible_at_ms)
        if image.group:
            groups.wait(unit, queue, job, state.priority, state.visible_at_ms, image.group.encode())


def _ended(image: JobImage) -> bool:
    return image.state in ("done", "dead")


def _attached_bytes(image: JobImage) -> int:
    return sum([len(step.value) for step in image.steps]) + _LINK_BYTES * len(image.parents)


def _weight(image: JobImage) -> int:
    return len(image.payload) + len(image.result or b"")


def _note(unit: UnitOfWork, queue: int, image: JobImage) -> int:
    """Write what its deliveries said; returns the flags to set."""
    result = image.result
    if result is None and image.error is None and image.progress is None and image.progress_note is None:
        return 0
    parts = 0 if result is None else put_parts(unit.tx, queue, image.id, result)
    first = None if result is None else result[:PART_BYTES]
    notes = Notes(image.error, image.progress, image.progress_note, first, len(result or b""))
    return write_notes(unit.tx, queue, image.id, notes) | parts


def _state(unit: UnitOfWork, queue: RegisteredQueue, image: JobImage, flags: int) -> StateRecord:
    state = State[image.state.upper()]
    ended = image.ended_at_ms if _ended(image) else 0
    due = image.due_at_ms if state is not State.DEAD else 0
    if state is State.DONE and due <= unit.now:
        kept = max(queue.retention_ms, queue.result_retention_ms if image.result is not None else 0) or _KEPT_MS
        due = unit.now + kept
    return StateRecord(
        version=records.V1,
        state=int(state),
        priority=image.priority,
        reason=int(Reason[image.reason.upper()]) if image.reason else 0,
        flags=flags,
        attempt=image.attempt,
        max_attempts=image.max_attempts,
        replays=image.replays,
        token=image.token,
        visible_at_ms=image.visible_at_ms,
        ended_at_ms=ended,
        due_at_ms=due,
        last_event=0,
        lease=NO_ID,
    )
