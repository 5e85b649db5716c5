"""Queries: jobs, lists, counts, upcoming jobs. Nothing here writes."""

from __future__ import annotations

import base64
import heapq
from bisect import bisect_left
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

from tenure.backends.redis import journal
from tenure.backends.redis.core import Core
from tenure.backends.redis.records import (
    HAS_PARENTS,
    HAS_STEPS,
    PLACE,
    State,
    decode_body,
    decode_lease,
    decode_policy,
    decode_progress,
    decode_result,
    decode_state,
)
from tenure.backends.redis.shards import RegisteredQueue, Shard
from tenure.errors import Corrupt, InvalidArgument, WaitTimeout
from tenure.model import lifecycle
from tenure.model.job import ChildJob, Counts, Job, Page, ParentResult, QueueInfo, QueuePage, ended_as
from tenure.model.lifecycle import Reason, shown
from tenure.model.names import QueueName, queue_cursor, queue_of_cursor
from tenure.model.request import UpcomingRequest
from tenure.model.retry import Policy
from tenure.queueing.queries import ANSWER_BYTES, weight
from tenure.queueing.waiters import until_ended
from tenure.storage.keyspace import digest
from tenure.storage.records import ON_PARENT_DEAD

#: Fields of a job in the server's answer: state, body, error, progress, result, lease.
_FIELDS = 6


# ── one job ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def get(core: Core, name: QueueName, job: bytes) -> Job | None:
    queue = core.shards.find(name)
    if queue is None:
        return None
    shard = queue.shard_of(job)
    ghosts = core.filters.ghosts
    if ghosts is not None and job in ghosts and missing_jobs(core, shard, (job,)):
        return None
    now, *fields = core.commands.call(shard.base, "fetch", job)
    found = _job(shard, job, fields, now)
    if found is None and ghosts is not None:
        ghosts.add(job)
    return found


def holder(core: Core, name: QueueName, key: str) -> bytes | None:
    queue = core.shards.find(name)
    if queue is None:
        return None
    hashed = digest(key.encode())
    (found,) = core.commands.call(queue.shard_of(hashed).base, "holders", hashed)
    return found[:16] or None


def missing_jobs(core: Core, shard: Shard, jobs: Sequence[bytes]) -> set[bytes]:
    """Return those jobs that do not exist. A plain read, cheaper than a verb, for ids that a filter named."""
    key = shard.base + b":state"
    if len(jobs) == 1:
        return set() if core.commands.plain(key, "HEXISTS", key, jobs[0]) else set(jobs)
    there = core.commands.plain(key, "HMGET", key, *jobs)
    return {job for job, state in zip(jobs, there, strict=True) if state is None}


def _job(shard: Shard, job: bytes, fields: Sequence[Any], now_ms: int) -> Job | None:
    raw, body, error, progress, result, beside = fields
    if not raw and not body:
        return None
    if not raw or not body:
        raise Corrupt(f"its {'payload' if raw else 'state'} is missing", job.hex())
    state = decode_state(raw, job)
    key, headers, payload, group = decode_body(body, job)
    held = state.state == lifecycle.State.LEASED
    if held and beside is None:
        raise Corrupt(f"its lease {state.lease.hex()} is missing", job.hex())
    holder = decode_lease(beside, state.lease) if held else None
    blocked = state.state == lifecycle.State.BLOCKED and beside is not None
    waits_for = beside if state.state == lifecycle.State.WAITING else None
    fraction, note = decode_progress(progress)
    return Job(
        id=job.hex(),
        tenant=shard.name.tenant,
        queue=shard.name.queue,
        state=_shown(state, now_ms),
        payload=payload,
        headers=headers,
        key=key,
        priority=state.priority,
        attempt=state.attempt,
        max_attempts=state.max_attempts,
        token=state.token,
        replays=state.replays,
        created_at_ms=state.created_at_ms,
        visible_at_ms=state.visible_at_ms,
        ended_at_ms=state.ended_at_ms or None,
        reason=Reason(state.reason).name.lower() if state.state == lifecycle.State.DEAD else None,
        error=None if error is None else error.decode("utf-8", "replace"),
        result=decode_result(result, job),
        progress=fraction,
        progress_note=note,
        lease_id=None if holder is None else state.lease.hex(),
        lease_until_ms=None if holder is None else holder.expires_at_ms,
        worker=None if holder is None else holder.worker,
        due_at_ms=state.due_at_ms or None,
        group=group,
        has_parents=bool(state.flags & HAS_PARENTS),
        has_steps=bool(state.flags & HAS_STEPS),
        on_parent_dead=ON_PARENT_DEAD[int(beside)] if blocked else None,
        waits_for=None if waits_for is None else waits_for.decode(),
    )


def wait_for(core: Core, name: QueueName, job: bytes, timeout_ms: int) -> Job | None:
    deadline = core.clock.steady_ms() + timeout_ms
    notifications = core.notifications
    waiter = notifications.waiters.join((job,))
    heard = False

    def look() -> Job | None:
        waiter.signal.clear()
        return get(core, name, job)

    def pause() -> None:
        nonlocal heard
        if not heard:
            notifications.subscribe(core.shards.find_or_register(name).shard_of(job).base, name)
            heard = True
            return  # it may have ended before this thread subscribed
        left = deadline - core.clock.steady_ms()
        if left <= 0:
            raise WaitTimeout(job.hex(), timeout_ms / 1000)
        notifications.wait(waiter, left)
        core.commands.ensure_open()

    try:
        return until_ended(look, pause, lambda last: _final_state(core, name, last, job))
    finally:
        notifications.waiters.leave(waiter)


def _final_state(core: Core, name: QueueName, last: Job, job: bytes) -> Job:
    """Return the final state of a removed job: done and not kept, or cancelled, as its last event says."""
    events = journal.timeline(core, name, job)
    state = "done" if events and events[-1].type == "done" else "removed"
    ended = events[-1].time_ms if events else core.now_ms()
    return ended_as(last, state, ended)


def parents(core: Core, name: QueueName, job: bytes, begin: int, limit: int) -> list[ParentResult]:
    """Return the job's parents from a position on; about `ANSWER_BYTES` at most."""
    queue = core.shards.find(name)
    if queue is None:
        return []
    now, *fields = core.commands.call(queue.shard_of(job).base, "parents", job, begin, limit, ANSWER_BYTES)
    return [
        ParentResult(
            id=parent.hex(),
            queue=name.queue,
            state=_shown(decode_state(raw, parent), now) if raw else "gone",
            error=None if error is None else error.decode("utf-8", "replace"),
            result=decode_result(result, parent),
        )
        for parent, raw, error, result in zip(*[iter(fields)] * 4, strict=True)
    ]


def children(core: Core, name: QueueName, job: bytes, limit: int) -> list[ChildJob]:
    """Return the first jobs that wait or waited for it."""
    queue = core.shards.find(name)
    if queue is None:
        return []
    now, *fields = core.commands.call(queue.shard_of(job).base, "children", job, limit)
    return [
        ChildJob(id=child.hex(), queue=name.queue, state=_shown(decode_state(raw, child), now) if raw else "gone")
        for child, raw in zip(*[iter(fields)] * 2, strict=True)
    ]


def _shown(state: State, now_ms: int) -> str:
    return shown(lifecycle.State(state.state), state.visible_at_ms, now_ms)


# ── many jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def list_jobs(
    core: Core, name: QueueName, state: str, limit: int, cursor: str | None, most: int = ANSWER_BYTES
) -> Page:
    """Return a page of jobs in a state, of about `most` bytes at most."""
    after = None if cursor is None else _split_cursor(cursor, name, state)
    queue = core.shards.find(name)
    if queue is None:
        return Page([], None)
    jobs: list[Job] = []
    size = 0
    partition, place = (0, b"") if after is None else after
    last = (partition, place)
    for shard in queue.shards[partition:]:
        if size >= most:
            return Page(jobs, _cursor(name, state, *last))
        found, cut = _page(core, shard, state, limit + 1 - len(jobs), place, most - size)
        for at, job in found:
            if len(jobs) == limit:
                return Page(jobs, _cursor(name, state, *last))
            last = (shard.partition, at)
            if job is not None:
                jobs.append(job)
                size += weight(job)
        if cut:
            return Page(jobs, _cursor(name, state, *last))
        place = b""
    return Page(jobs, None)


def _page(
    core: Core, shard: Shard, state: str, limit: int, place: bytes, most: int
) -> tuple[list[tuple[bytes, Job | None]], bool]:
    """Return the positions and jobs that fit in `most` bytes, and whether there are more up to `limit`."""
    now, ids, *rest = core.commands.call(shard.base, "page", state, limit, place, most)
    count = len(ids) // 16
    fields = rest[count:]
    fit = len(fields) // _FIELDS
    jobs = (_job(shard, ids[16 * n : 16 * n + 16], fields[_FIELDS * n : _FIELDS * (n + 1)], now) for n in range(fit))
    return list(zip(rest, jobs, strict=False)), fit < count


def _mark(name: QueueName, state: str) -> bytes:
    return digest(f"{name.tenant}/{name.queue}/{state}".encode())[:4]


def _cursor(name: QueueName, state: str, partition: int, place: bytes) -> str:
    # The cursor includes its queue and state: one of another list is refused, not misread.
    return base64.urlsafe_b64encode(_mark(name, state) + bytes((partition,)) + place).decode()


def _split_cursor(cursor: str, name: QueueName, state: str) -> tuple[int, bytes]:
    try:
        raw = base64.urlsafe_b64decode(cursor.encode())
    except (ValueError, AttributeError):
        raw = b""
    if len(raw) < 20 or raw[:4] != _mark(name, state):
        raise InvalidArgument("that is not a cursor of this list")
    return raw[4], raw[5:]


def find(core: Core, job: bytes) -> Job | None:
    """Search every shard in turn: an id does not name its queue, and no key can be in two slots."""
    for shard in core.shards.shards():
        if job not in missing_jobs(core, shard, (job,)):
            found = get(core, shard.name, job)
            if found is not None:
                return found
    return None


def _queues(core: Core, tenant: str | None, queues: Collection[str] | None) -> list[RegisteredQueue]:
    return [queue for queue in core.shards.queues(tenant) if queues is None or queue.name.queue in queues]


def list_all(
    core: Core, state: str, limit: int, cursor: str | None, tenant: str | None, queues: Collection[str] | None
) -> Page:
    """Return a page, queue by queue in the order of names; a cursor is a queue's name and the cursor of its list."""
    begin, inner = "", None
    if cursor is not None:
        begin, _, rest = cursor.partition("!")
        inner = rest or None
    jobs: list[Job] = []
    size = 0
    found = _queues(core, tenant, queues)
    for at, queue in enumerate(found):
        name = f"{queue.name.tenant}/{queue.name.queue}"
        if name < begin:
            continue
        inner_cursor = inner if name == begin else None
        page = list_jobs(core, queue.name, state, limit - len(jobs), inner_cursor, ANSWER_BYTES - size)
        jobs += page.jobs
        size += sum(map(weight, page.jobs))
        if page.cursor is not None:
            return Page(jobs, f"{name}!{page.cursor}")
        if (len(jobs) >= limit or size >= ANSWER_BYTES) and at + 1 < len(found):
            after = found[at + 1].name
            return Page(jobs, f"{after.tenant}/{after.queue}!")
    if cursor is not None and "!" not in cursor:
        raise InvalidArgument("that is not a cursor of this list")
    return Page(jobs, None)


def upcoming(core: Core, request: UpcomingRequest) -> Page:
    before_ms, after_ms, limit, cursor, tenant, queues = request
    before = 2**53 if before_ms >= 2**61 else core.server_time_of(before_ms)
    after = b"" if not after_ms else PLACE.pack(core.server_time_of(after_ms) or 0, b"\xff" * 16)
    if cursor is not None:
        try:
            after = max(after, base64.urlsafe_b64decode(cursor.encode()))
        except ValueError:
            after = b""
        if len(after) != PLACE.size:
            raise InvalidArgument("that is not a cursor of this list")
    rows: list[tuple[bytes, Shard]] = []
    for queue in _queues(core, tenant, queues):
        for shard in queue.shards:
            found = core.commands.call(shard.base, "upcoming", before or 0, limit + 1, after)
            rows.extend((row, shard) for row in found)
    first = heapq.nsmallest(limit + 1, rows)
    jobs: list[Job] = []
    size = 0
    for at, (row, shard) in enumerate(first):
        if at == limit or size >= ANSWER_BYTES:
            return Page(jobs, base64.urlsafe_b64encode(first[at - 1][0]).decode())
        job = get(core, shard.name, row[8:])
        if job is not None:
            jobs.append(job)
            size += weight(job)
    return Page(jobs, None)


# ── counts ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_NOTHING = Counts(ready=0, scheduled=0, leased=0, done=0, dead=0, enqueued=0, removed=0)


def counts(core: Core, name: QueueName) -> Counts:
    queue = core.shards.find(name)
    found = None if queue is None else queue_info(core, queue)
    return _NOTHING if found is None else found.counts


def policy(core: Core, name: QueueName) -> Policy:
    queue = core.shards.find(name)
    found = None if queue is None else queue_info(core, queue)
    return found.policy if found is not None and isinstance(found.policy, Policy) else Policy()


def queues(core: Core, tenant: str | None, limit: int, cursor: str | None) -> QueuePage:
    found = core.shards.queues(tenant)
    if cursor is not None:
        found = found[bisect_left(found, queue_of_cursor(cursor), key=attrgetter("name")) :]
    more = queue_cursor(found[limit].name) if len(found) > limit else None
    infos = (queue_info(core, queue) for queue in found[:limit])
    return QueuePage([info for info in infos if info is not None], more)


def queue_info(core: Core, queue: RegisteredQueue) -> QueueInfo | None:
    """Return the queue's counts, summed over its partitions; None if the queue has a name and nothing else."""
    there = []
    for shard in queue.shards:
        reply = core.commands.call(shard.base, "counts")
        if reply[1]:
            there.append(reply[2:])
    if not there:
        return None
    ready, waiting, leased, done, dead, enqueued, removed = (sum(row[n] for row in there) for n in range(7))
    return QueueInfo(
        tenant=queue.name.tenant,
        queue=queue.name.queue,
        number=queue.number,
        paused=bool(there[0][7]),
        policy=decode_policy(there[0][8]),
        counts=Counts(
            ready=ready,
            scheduled=waiting - ready,
            leased=leased,
            done=done,
            dead=dead,
            enqueued=enqueued,
            removed=removed,
            blocked=sum(row[9] for row in there),
        ),
    )
