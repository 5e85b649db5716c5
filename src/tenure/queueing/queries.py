"""Queries of one queue: jobs, lists, counts. Nothing here writes."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from tenure.errors import Corrupt, InvalidArgument, WaitTimeout
from tenure.model.job import (
    ChildJob,
    Counts,
    Job,
    OnParentDead,
    Page,
    ParentResult,
    QueueDepth,
    QueueInfo,
    QueuePage,
    ended_as,
)
from tenure.model.lifecycle import Change, Reason, State, shown
from tenure.model.names import QueueName, queue_cursor, queue_of_cursor
from tenure.queueing import flows, journal
from tenure.queueing.core import Core
from tenure.queueing.edges import children_of
from tenure.queueing.idempotency_keys import holders_at
from tenure.queueing.job_notes import read_notes, whole_result
from tenure.queueing.leases import held_jobs, read_lease, whole_payload
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.step_rows import read_head
from tenure.queueing.waiters import until_ended
from tenure.queueing.waiting_ranges import waiting_ranges, waiting_rows
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, get_each, iterate_keys
from tenure.storage.keyspace import Counter
from tenure.storage.records import HAS_PARENTS, HAS_STEPS, ON_PARENT_DEAD, StateRecord

#: The most bytes of payloads and results in one answer; a list continues with its cursor.
ANSWER_BYTES = 16 * 1024**2
#: Ready rows that `counts` reads before it answers "at least".
COUNT_SCAN = 10_000
#: `counts` first reads so many ready and so many scheduled rows, then up to `COUNT_SCAN`.
_FEW = 64
#: The most index rows, and jobs, that a list reads at once. A job's row holds up to 64 KiB of its payload.
_PAGE, _ROWS_AT_ONCE = 500, 100
#: The spaces that `read_job` reads.
SHOWN_SPACES = (
    keyspace.QUEUES, keyspace.JOBS, keyspace.PAYLOAD, keyspace.STATE, keyspace.NOTES, keyspace.READY, keyspace.DONE,
    keyspace.DEAD, keyspace.LEASES, keyspace.LEASE_JOBS, keyspace.BLOCKED, keyspace.PARENTS,
    keyspace.CHILDREN, keyspace.STEPS,
)  # fmt: skip


# ── one job ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def get(core: Core, name: QueueName, job: bytes) -> Job | None:
    def run(reader: Reader) -> Job | None:
        queue = core.registry.find(reader, name)
        return None if queue is None else read_job(core, reader, queue, job)

    return core.read(run)


def holder(core: Core, name: QueueName, key: str) -> bytes | None:
    """The job that holds an idempotency key; None: no job does."""
    hashed = keyspace.digest(key.encode())

    def run(reader: Reader) -> bytes | None:
        queue = core.registry.find(reader, name)
        if queue is None:
            return None
        found = holders_at(reader, queue.number, core.time.now_ms(), [hashed])
        return found[hashed][0] if found else None

    return core.read(run)


def read_job(core: Core, reader: Reader, queue: RegisteredQueue, job: bytes) -> Job | None:
    """The public view of a job; None: there is none. Raises Corrupt, with the job's id."""
    at = (queue.prefix + job,)
    return read_job_of(
        core,
        reader,
        queue,
        JobRow(job, get_each(reader, keyspace.STATE, at)[0], get_each(reader, keyspace.JOBS, at)[0]),
    )


class JobRow(NamedTuple):
    """A job's rows in `state` and `jobs`, as they were read."""

    job: bytes
    state: bytes | Corrupt | None
    body: bytes | Corrupt | None


def read_job_of(core: Core, reader: Reader, queue: RegisteredQueue, row: JobRow) -> Job | None:
    """As `read_job`, of a job whose rows were read."""
    job, state, body = row
    try:
        if isinstance(state, Corrupt):
            raise state
        if isinstance(body, Corrupt):
            raise body
        return _shown_job(core, reader, queue, job, state, body)
    except Corrupt as exc:
        if exc.job_id is not None:
            raise
        raise Corrupt(exc.detail, job.hex(), exc.key) from exc  # errors of the engine have no job id


def _shown_job(
    core: Core, reader: Reader, queue: RegisteredQueue, job: bytes, raw: bytes | None, body: bytes | None
) -> Job | None:
    if raw is None and body is None:
        return None
    if raw is None or body is None:
        raise Corrupt(f"its {'state' if raw is None else 'payload'} is missing", job.hex())
    state = records.decode_state(raw, job)
    record = records.decode_job(body, job)
    notes = read_notes(reader, queue.number, job, state)
    held = state.state == State.LEASED
    lease = read_lease(reader, queue.number, state.lease) if held else None
    if held and lease is None:
        raise Corrupt(f"its lease {state.lease.hex()} is missing", job.hex())
    return Job(
        id=job.hex(),
        tenant=queue.name.tenant,
        queue=queue.name.queue,
        state=shown(State(state.state), state.visible_at_ms, core.time.now_ms()),
        payload=whole_payload(reader, queue.number, job, record),
        headers=records.decode_headers(record.headers, job),
        key=record.key.decode("utf-8", "replace") or None,
        priority=state.priority,
        attempt=state.attempt,
        max_attempts=state.max_attempts,
        token=state.token,
        replays=state.replays,
        created_at_ms=record.created_at_ms,
        visible_at_ms=state.visible_at_ms,
        ended_at_ms=state.ended_at_ms or None,
        reason=Reason(state.reason).name.lower() if state.state == State.DEAD else None,
        error=notes.error,
        result=whole_result(reader, queue.number, job, notes),
        progress=notes.progress,
        progress_note=notes.progress_note,
        lease_id=state.lease.hex() if lease is not None else None,
        lease_until_ms=None if lease is None else lease.expires_at_ms,
        worker=None if lease is None else lease.worker_name or None,
        due_at_ms=state.due_at_ms or None,
        group=record.group.decode() or None,
        has_parents=bool(state.flags & HAS_PARENTS),
        has_steps=bool(state.flags & HAS_STEPS),
        on_parent_dead=_on_parent_dead(reader, keyspace.of_queue(queue.number, job))
        if state.state == State.BLOCKED
        else None,
        waits_for=_waited_for(reader, queue.number, job, state),
    )


def _on_parent_dead(reader: Reader, at: bytes) -> OnParentDead | None:
    raw = reader.get(keyspace.BLOCKED, at)
    return None if raw is None else ON_PARENT_DEAD[records.decode_blocked(raw, at[4:]).on_parent_dead]


def _waited_for(reader: Reader, queue: int, job: bytes, state: StateRecord) -> str | None:
    """The signal that a waiting job waits for; None if a later delivery ended the wait."""
    if state.state != State.WAITING or not state.flags & HAS_STEPS:
        return None
    head = read_head(reader, queue, job)
    return head.signal or None if head.token == state.token else None


def wait_for(core: Core, name: QueueName, job: bytes, timeout_ms: int) -> Job | None:
    deadline = core.time.now_ms() + timeout_ms
    waiter = core.waiters.join((job,))
    seen_from = core.read(journal.bounds)[1]

    def look() -> Job | None:
        waiter.signal.clear()
        return get(core, name, job)

    def pause() -> None:
        left = deadline - core.time.now_ms()
        if left <= 0:
            raise WaitTimeout(job.hex(), timeout_ms / 1000)
        core.clock.wait(waiter.signal, left / 1000, core.engine.traits.poll)

    try:
        return until_ended(look, pause, lambda last: _how_it_ended(core, last, job, seen_from))
    finally:
        core.waiters.leave(waiter)


def _how_it_ended(core: Core, last: Job, job: bytes, seen_from: int) -> Job:
    """The final view of a job that is gone: done without retention, or removed, by its last event since `seen_from`."""
    state, ended = "removed", core.time.now_ms()
    with core.engine.snapshot((keyspace.JOURNAL,)) as reader:
        oldest, newest = journal.bounds(reader)
        for _, row in journal.rows_from(reader, max(oldest, seen_from), newest):
            for event in row.events:
                if event.job == job and event.state == State.GONE:
                    state = "done" if event.change == Change.DONE else "removed"
                    ended = row.header.time_ms
    return ended_as(last, state, ended)


def parents(core: Core, name: QueueName, job: bytes, begin: int, limit: int) -> list[ParentResult]:
    """The states and results of a job's parents, from index `begin` on; up to about `ANSWER_BYTES`."""
    with core.engine.snapshot(SHOWN_SPACES) as reader:
        queue = core.registry.find(reader, name)
        found: list[ParentResult] = []
        size = 0
        for number, parent in () if queue is None else flows.parents_of(reader, queue.number, job, begin, limit):
            found.append(_parent_result(core, reader, number, parent))
            size += len(found[-1].result or b"")
            if size >= ANSWER_BYTES:
                break
        return found


def _parent_result(core: Core, reader: Reader, number: int, job: bytes) -> ParentResult:
    queue = core.registry.by_number(reader, number)
    raw = reader.get(keyspace.STATE, keyspace.of_queue(number, job))
    name = "" if queue is None else queue.name.queue
    if raw is None:
        return ParentResult(id=job.hex(), queue=name, state="gone")
    state = records.decode_state(raw, job)
    notes = read_notes(reader, number, job, state)
    return ParentResult(
        id=job.hex(),
        queue=name,
        state=shown(State(state.state), state.visible_at_ms, core.time.now_ms()),
        result=whole_result(reader, number, job, notes),
        error=notes.error,
    )


def children(core: Core, name: QueueName, job: bytes, limit: int) -> list[ChildJob]:
    """Up to `limit` children of a job, in an arbitrary order."""
    with core.engine.snapshot(SHOWN_SPACES) as reader:
        queue = core.registry.find(reader, name)
        if queue is None:
            return []
        found = children_of(reader, keyspace.of_queue(queue.number, job), limit)
        return [_child_job(core, reader, *keyspace.split_of_queue(child)) for child in found]


def _child_job(core: Core, reader: Reader, number: int, job: bytes) -> ChildJob:
    queue = core.registry.by_number(reader, number)
    raw = reader.get(keyspace.STATE, keyspace.of_queue(number, job))
    shown_state = "gone"
    if raw is not None:
        state = records.decode_state(raw, job)
        shown_state = shown(State(state.state), state.visible_at_ms, core.time.now_ms())
    return ChildJob(id=job.hex(), queue="" if queue is None else queue.name.queue, state=shown_state)


# ── many jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def list_jobs(core: Core, name: QueueName, state: str, limit: int, cursor: str | None) -> Page:
    listed = f"{name.tenant}/{name.queue}/{state}"
    after = None if cursor is None else split_cursor(listed, cursor)

    def run(reader: Reader) -> Page:
        queue = core.registry.find(reader, name)
        if queue is None:
            return Page([], None)
        rows = read_rows(reader, queue, positions(core, reader, queue, state, after, limit + 1), limit)
        jobs: list[Job] = []
        last, size = b"", 0
        for count, (position, row) in enumerate(rows):
            if count == limit or size >= ANSWER_BYTES:
                return Page(jobs, sealed_cursor(listed, last))
            last = position
            shown_job = read_job_of(core, reader, queue, row)
            if shown_job is not None:
                jobs.append(shown_job)
                size += weight(shown_job)
        return Page(jobs, None)

    with core.engine.snapshot(SHOWN_SPACES) as reader:
        return run(reader)


def weight(job: Job) -> int:
    return len(job.payload) + len(job.result or b"")


def read_rows(
    reader: Reader, queue: RegisteredQueue, rows: Iterable[tuple[bytes, bytes]], limit: int
) -> Iterator[tuple[bytes, JobRow]]:
    """(position, the job's rows) for each (position, job); at most `limit` are read at once."""
    left = iter(rows)
    while found := list(islice(left, min(limit, _ROWS_AT_ONCE))):
        keys = [queue.prefix + job for _, job in found]
        states, bodies = [get_each(reader, space, keys) for space in (keyspace.STATE, keyspace.JOBS)]
        for (position, job), state, body in zip(found, states, bodies, strict=True):
            yield position, JobRow(job, state, body)


def positions(
    core: Core, reader: Reader, queue: RegisteredQueue, state: str, after: bytes | None, page: int
) -> Iterator[tuple[bytes, bytes]]:
    """(position, job) of a queue's jobs in a state, in the order of that state, after a position; `page` read at once."""
    if state == "leased":
        return _leased_rows(reader, queue, after)
    return _index_rows(core, reader, queue, state, after, min(page, _PAGE))


def _index_rows(
    core: Core, reader: Reader, queue: RegisteredQueue, state: str, after: bytes | None, page: int
) -> Iterator[tuple[bytes, bytes]]:
    """(position, job) in the order of the state's index."""
    if state in ("ready", "scheduled"):
        yield from waiting_rows(reader, queue, state, core.time.now_ms(), after, page)
        return
    begin, end = keyspace.queue_range(queue.number)
    if after is not None:
        begin = after + b"\0"
    for keys in iterate_keys(reader, _ENDED_IN[state], begin, end, page):
        for key in keys:
            yield key, key[-16:]


_ENDED_IN = {"done": keyspace.DONE, "dead": keyspace.DEAD, "blocked": keyspace.BLOCKED}


def _leased_rows(reader: Reader, queue: RegisteredQueue, after: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    """(lease and job, job) of all leased jobs, lease by lease."""
    begin, end = keyspace.queue_range(queue.number)
    if after is not None:
        begin = keyspace.queue_prefix(queue.number) + after[:16]
    for keys in iterate_keys(reader, keyspace.LEASES, begin, end, 100):
        for key in keys:
            lease = key[4:]
            for job, _ in sorted(held_jobs(reader, queue.number, lease).jobs):
                if after is None or lease + job > after:
                    yield lease + job, job


def sealed_cursor(of: str, position: bytes) -> str:
    """A cursor: a position, with a digest of the list `of` that it belongs to, so that others are refused."""
    return base64.urlsafe_b64encode(keyspace.digest(of.encode())[:4] + position).decode()


def split_cursor(of: str, cursor: str) -> bytes:
    """The position. Raises InvalidArgument if it is not a cursor of that list."""
    try:
        raw = base64.urlsafe_b64decode(cursor.encode())
    except (ValueError, AttributeError):
        raw = b""
    if len(raw) < 20 or raw[:4] != keyspace.digest(of.encode())[:4]:
        raise InvalidArgument("that is not a cursor of this list")
    return raw[4:]


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def counts(core: Core, name: QueueName) -> Counts:
    def run(reader: Reader) -> Counts:
        queue = core.registry.find(reader, name)
        if queue is None:
            return Counts(ready=0, scheduled=0, leased=0, done=0, dead=0, enqueued=0, removed=0)
        return count_queue(reader, queue, core.time.now_ms())

    # A snapshot: counters and index are consistent, and a long scan does not block writers.
    with core.engine.snapshot((keyspace.QUEUES, keyspace.COUNTERS, keyspace.READY)) as snapshot:
        return run(snapshot)


def count_queue(reader: Reader, queue: RegisteredQueue, now_ms: int, scan: int = COUNT_SCAN) -> Counts:
    return _count_and_oldest(reader, queue, now_ms, scan)[0]


def _count_and_oldest(reader: Reader, queue: RegisteredQueue, now_ms: int, scan: int) -> tuple[Counts, int | None]:
    """The queue's counts, and when its oldest ready job became ready (None: there is none)."""
    names = list(Counter)
    raws = reader.get_many(keyspace.COUNTERS, [keyspace.counter(queue.number, name) for name in names])
    number = {name: records.decode_count(raw) for name, raw in zip(names, raws, strict=True)}
    waiting = number[Counter.WAITING]
    # In most queues no job is scheduled, or none is ready: then no rows have to be counted.
    oldest, any_scheduled = (None, False) if not waiting else _ready_and_scheduled(reader, queue, now_ms)
    if not any_scheduled:
        return _counts(number, waiting, 0, False), oldest
    if oldest is None:
        return _counts(number, 0, waiting, False), None
    return _count_both(reader, queue, now_ms, scan, number), oldest


def _count_both(reader: Reader, queue: RegisteredQueue, now_ms: int, scan: int, number: dict[Counter, int]) -> Counts:
    """Counts of a queue with ready and scheduled jobs: the smaller kind is counted, the other is the difference."""
    waiting = number[Counter.WAITING]
    for bound in (min(_FEW, scan), scan):
        ready = _count_keys(reader, queue, now_ms, bound, scheduled=False)
        if ready <= bound:
            return _counts(number, ready, waiting - ready, False)
        scheduled = _count_keys(reader, queue, now_ms, bound, scheduled=True)
        if scheduled <= bound:
            return _counts(number, waiting - scheduled, scheduled, False)
    return _counts(number, scan, waiting - scan, True)


def _count_keys(reader: Reader, queue: RegisteredQueue, now_ms: int, bound: int, *, scheduled: bool) -> int:
    """The number of ready or scheduled jobs, counted up to `bound` + 1."""
    found = 0
    for _, begin, end in waiting_ranges(queue, "scheduled" if scheduled else "ready", now_ms):
        found += len(reader.keys(keyspace.READY, begin, end, bound + 1 - found))
        if found > bound:
            break
    return found


def _ready_and_scheduled(reader: Reader, queue: RegisteredQueue, now_ms: int) -> tuple[int | None, bool]:
    """When the oldest ready job became ready (None: there is none), and whether any job is scheduled.

    Reads one key for each tier and kind in use, and one more at the end.
    """
    oldest, scheduled = None, False
    begin, end = keyspace.queue_range(queue.number)
    while found := reader.keys(keyspace.READY, begin, end, 1):
        row = keyspace.split_ready(found[0])
        if row.visible_at_ms <= now_ms:
            oldest = row.visible_at_ms if oldest is None else min(oldest, row.visible_at_ms)
            begin = keyspace.ready_until(queue.number, row.priority, now_ms, row.grouped)
        else:
            scheduled = True
            begin = keyspace.ready_tier_end(queue.number, row.priority, row.grouped)
    return oldest, scheduled


def _counts(number: dict[Counter, int], ready: int, scheduled: int, at_least: bool) -> Counts:
    return Counts(
        ready=ready,
        scheduled=scheduled,
        leased=number[Counter.LEASED],
        done=number[Counter.DONE],
        dead=number[Counter.DEAD],
        enqueued=number[Counter.ENQUEUED],
        removed=number[Counter.REMOVED],
        at_least=at_least,
        blocked=number[Counter.BLOCKED],
    )


_SHOWN_COUNTERS = (Counter.WAITING, Counter.LEASED, Counter.DONE, Counter.DEAD, Counter.BLOCKED)


def depths(core: Core, limit: int) -> tuple[list[QueueDepth], int]:
    """The queues with the most waiting, leased and dead jobs, by their counters; and the number of other queues."""
    with core.engine.snapshot((keyspace.QUEUES, keyspace.COUNTERS, keyspace.READY)) as reader:
        found = core.registry.all(reader)
        keys = [keyspace.counter(queue.number, counter) for queue in found for counter in _SHOWN_COUNTERS]
        counts = [records.decode_count(raw) for raw in reader.get_many(keyspace.COUNTERS, keys)]
        rows = sorted(
            zip(found, *(counts[place :: len(_SHOWN_COUNTERS)] for place in range(len(_SHOWN_COUNTERS))), strict=True),
            key=lambda row: -(row[1] + row[2] + row[4]),
        )
        now = core.time.now_ms()
        shown_rows = [
            QueueDepth(
                tenant=queue.name.tenant,
                queue=queue.name.queue,
                blocked=blocked,
                waiting=waiting,
                leased=leased,
                done=done,
                dead=dead,
                oldest_age_ms=_age(_ready_and_scheduled(reader, queue, now)[0], now) if waiting else None,
            )
            for queue, waiting, leased, done, dead, blocked in rows[:limit]
        ]
        return shown_rows, max(0, len(rows) - limit)


def _age(since_ms: int | None, now_ms: int) -> int | None:
    return None if since_ms is None else now_ms - since_ms


def queues(core: Core, tenant: str | None, limit: int, cursor: str | None) -> QueuePage:
    begin = b"" if cursor is None else keyspace.queue_row(*queue_of_cursor(cursor))
    with core.engine.snapshot((keyspace.QUEUES, keyspace.COUNTERS, keyspace.READY)) as reader:
        now = core.time.now_ms()
        found = list(islice(core.registry.each(reader, tenant, begin, min(limit + 1, 1000)), limit + 1))
        more = queue_cursor(found.pop().name) if len(found) > limit else None
        found.sort(key=attrgetter("name"))  # keys are ordered by the lengths of names first
        return QueuePage([_info(reader, queue, now) for queue in found], more)


def _info(reader: Reader, queue: RegisteredQueue, now_ms: int) -> QueueInfo:
    counts, oldest = _count_and_oldest(reader, queue, now_ms, 1000)
    return QueueInfo(
        tenant=queue.name.tenant,
        queue=queue.name.queue,
        number=queue.number,
        paused=queue.paused,
        policy=queue.policy,
        counts=counts,
        oldest_at_ms=oldest,
    )
