"""Administration of jobs: replay, purge, discard, cancel, cleanup. Long verbs work in chunks, each one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tenure.model.ids import created_ms
from tenure.model.job import Replayed
from tenure.model.lifecycle import Change, State
from tenure.model.names import QueueName
from tenure.model.request import ReplayRequest
from tenure.queueing import groups, quota_usage, quotas
from tenure.queueing.core import Core
from tenure.queueing.idempotency_keys import free_keys, hold_keys
from tenure.queueing.job_notes import read_notes
from tenure.queueing.outcomes import NUMBER, YES_OR_NO, Answer
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.removal import remove, remove_leased
from tenure.queueing.sweep import retire_due
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.queueing.waiting_ranges import waiting_ranges
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Space
from tenure.storage.keyspace import Counter
from tenure.storage.records import StateRecord

CHUNK = 500
Progress = Callable[[int, int | None], None]
_DEAD = int(State.DEAD)
_DISCARDED = Answer[tuple[list[bytes], int]](tuple[list[bytes], int])
_NUMBERS = Answer[list[int]](list[int])
_REMOVED = Answer[tuple[int, bytes | None]](tuple[int, bytes | None])


# ── replay ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    """What one transaction of a replay did, and where the next goes on (None: it was the last)."""

    replayed: list[bytes]
    skipped: list[bytes]
    last_visible_ms: int | None
    after: bytes | None


_CHUNK = Answer[_Chunk](_Chunk)


def replay(core: Core, name: QueueName, request: ReplayRequest, progress: Progress | None = None) -> Replayed:
    """Dead jobs back to waiting: same id, the token goes on, attempts start again."""
    done: list[str] = []
    skipped: list[str] = []
    last_visible: int | None = None
    wanted = _wanted(request)
    # What dies while we replay is not replayed again.
    start = core.write(lambda unit: unit.now, answer=NUMBER, step=b"begin")
    after: bytes | None = b""
    while after is not None and (request.limit is None or len(done) < request.limit):

        def run(unit: UnitOfWork, at: bytes = after, before: int = len(done)) -> _Chunk:
            return _replay_chunk(core, unit, name, wanted, at, start, before)

        # Chosen inside the transaction, so that a repeated request goes on from what was chosen the first time.
        chunk = core.write(run, answer=_CHUNK, step=b"from" + after)
        after = chunk.after
        done.extend(job.hex() for job in chunk.replayed)
        skipped.extend(job.hex() for job in chunk.skipped)
        if chunk.last_visible_ms is not None:
            last_visible = max(last_visible or 0, chunk.last_visible_ms)
        if progress is not None:
            progress(len(done), request.limit if request.ids is None else len(request.ids))
    return Replayed(
        count=len(done), ids=done, skipped=skipped, dry_run=request.dry_run, last_visible_at_ms=last_visible
    )


class _Wanted(NamedTuple):
    """What a replay asks for: its ids each once, and the token each must still have (one that died again has another)."""

    request: ReplayRequest
    ids: list[bytes]
    tokens: dict[bytes, int]


def _wanted(request: ReplayRequest) -> _Wanted:
    ids = request.ids or ()
    tokens = {} if request.tokens is None else dict(zip(ids, request.tokens, strict=True))
    return _Wanted(request, list(dict.fromkeys(ids)), tokens)


def _replay_chunk(
    core: Core, unit: UnitOfWork, name: QueueName, wanted: _Wanted, at: bytes, start: int, before: int
) -> _Chunk:
    """The next jobs after position `at`; `before` have been replayed so far."""
    request = wanted.request
    queue = core.registry.find(unit.tx, name)
    if queue is None:
        return _Chunk([], wanted.ids, None, None)
    jobs, after = _candidates(unit.tx, queue, wanted, at, start, unit.tx.at_most(CHUNK))
    fit = _fitting(unit.tx, queue, jobs, wanted)
    chosen = set(fit)
    skipped = [] if request.ids is None else [job for job in jobs if job not in chosen]
    if request.limit is not None:
        fit = fit[: request.limit - before]
    if request.dry_run:
        return _Chunk(fit, skipped, None, after)
    if queue.meter:
        quotas.admit(unit, queue, len(fit), 0, by_rate=False)
    begin = start + request.delay_ms
    times = [begin + round((before + place) * request.spacing_ms) for place in range(len(fit))]
    return _Chunk(fit, skipped, _replay(unit, queue, fit, times), after)


def _candidates(
    reader: Reader, queue: RegisteredQueue, wanted: _Wanted, at: bytes, start: int, most: int
) -> tuple[list[bytes], bytes | None]:
    """Up to `most` jobs that may fit, and the position after them."""
    request = wanted.request
    if request.ids is not None:
        place = int.from_bytes(at, "big")
        end = place + most
        return wanted.ids[place:end], end.to_bytes(8, "big") if end < len(wanted.ids) else None
    begin = at or keyspace.ended_from(queue.number, request.since_ms or 0)
    last = start + 1 if request.before_ms is None else min(request.before_ms, start + 1)
    keys = reader.keys(keyspace.DEAD, begin, keyspace.ended_from(queue.number, last), most)
    jobs = [keyspace.split_ended(key)[2] for key in keys]
    return jobs, keys[-1] + b"\0" if len(keys) == most else None


def _fitting(reader: Reader, queue: RegisteredQueue, jobs: Sequence[bytes], wanted: _Wanted) -> list[bytes]:
    request = wanted.request
    fit = []
    for job, state in _states(reader, queue, jobs):
        if state.state != _DEAD or state.token != wanted.tokens.get(job, state.token):
            continue
        if not request.covers(state.reason, state.ended_at_ms):
            continue
        if request.error is not None and request.error not in (
            read_notes(reader, queue.number, job, state).error or ""
        ):
            continue
        fit.append(job)
    return fit


def _replay(unit: UnitOfWork, queue: RegisteredQueue, jobs: Sequence[bytes], times: Sequence[int]) -> int | None:
    """Make these dead jobs wait again, each from its time on; the last of those times."""
    tx, number = unit.tx, queue.number
    states = dict(_states(tx, queue, jobs))
    keys = free_keys(unit, queue, [job for job in jobs if states[job].flags & records.HAS_KEY])
    last_visible: int | None = None
    for job, time_ms in zip(jobs, times, strict=True):
        state = states[job]
        visible = max(unit.now, time_ms)
        tx.delete(keyspace.DEAD, keyspace.ended(number, state.ended_at_ms, job))
        back = state._replace(
            state=int(State.WAITING),
            reason=0,
            attempt=0,
            replays=state.replays + 1,
            visible_at_ms=visible,
            ended_at_ms=0,
        )
        ref = unit.event(Change.REPLAYED, number, job, back, at_ms=visible, previous=state.last_event)
        tx.put(keyspace.STATE, keyspace.of_queue(number, job), records.encode_state(back._replace(last_event=ref)))
        grouped = state.flags & records.HAS_GROUP
        tx.put(keyspace.READY, keyspace.ready(number, state.priority, visible, job, grouped), b"")
        if grouped:
            groups.wait_again(unit, queue, job, back)
        unit.ready(queue, state.priority, visible)
        last_visible = visible if last_visible is None else max(visible, last_visible)
    unit.count(number, Counter.DEAD, -len(jobs))
    unit.count(number, Counter.WAITING, len(jobs))
    quota_usage.back(unit, queue, jobs)
    hold_keys(unit, queue, keys)
    return last_visible


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def cancel(core: Core, name: QueueName, job: bytes) -> bool:
    def run(unit: UnitOfWork) -> bool:
        tx = unit.tx
        queue = core.registry.find(tx, name)
        raw = None if queue is None else tx.get(keyspace.STATE, keyspace.of_queue(queue.number, job))
        if queue is None or raw is None:
            return False
        state = records.decode_state(raw, job)
        if state.state in (State.WAITING, State.BLOCKED):
            remove(unit, queue.number, job, state, Change.CANCELLED)
        elif state.state == State.LEASED:
            remove_leased(unit, queue.number, job, state, Change.CANCELLED)
            unit.freed(queue, 1)
        else:
            return False
        return True

    return core.write(run, answer=YES_OR_NO)


# ── removal of what was looked at ────────────────────────────────────────────────────────────────────────────────────


def discard(core: Core, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> list[bytes]:
    """Remove those of these jobs that are still in that state, with that token.

    One transaction, or several where the engine keeps them small: then a repeat removes what is left.
    """
    wanted = int(State.DONE if state == "done" else State.DEAD)

    def run(unit: UnitOfWork, jobs: list[bytes]) -> tuple[list[bytes], int]:
        queue = core.registry.find(unit.tx, name)
        if queue is None or not jobs:
            return [], len(jobs)
        some = jobs[: unit.tx.at_most(len(jobs))]
        removed = []
        for job, found in _states(unit.tx, queue, some):
            if found.state == wanted and found.token == tokens[job]:
                remove(unit, queue.number, job, found, Change.PURGED)
                removed.append(job)
        return removed, len(some)

    gone: list[bytes] = []
    left = list(tokens)
    while True:
        step = b"" if len(left) == len(tokens) else b"left %d" % len(left)
        removed, looked_at = core.write(lambda unit, jobs=left: run(unit, jobs), answer=_DISCARDED, step=step)  # type: ignore[misc]
        gone += removed
        left = left[looked_at:]
        if not left:
            return gone


# ── purge and cleanup ────────────────────────────────────────────────────────────────────────────────────────────────


def purge(core: Core, name: QueueName, state: str, progress: Progress | None = None) -> int:
    """Remove every job that was in this state when the purge began."""
    now = core.write(lambda unit: unit.now, answer=NUMBER, step=b"begin")
    queue = core.read(lambda reader: core.registry.find(reader, name))
    if queue is None:
        return 0
    if state in ("done", "dead"):
        space = keyspace.DONE if state == "done" else keyspace.DEAD
        ranges = [(keyspace.ended_from(queue.number, 0), keyspace.ended_from(queue.number, now + 1))]
        return _remove_range(core, queue, space, ranges, None, progress)
    if state == "blocked":
        ranges = [keyspace.queue_range(queue.number)]
        return _remove_range(core, queue, keyspace.BLOCKED, ranges, None, progress, now)
    ranges = [(begin, end) for _, begin, end in waiting_ranges(queue, state, now)]
    return _remove_range(core, queue, keyspace.READY, ranges, None, progress, now)


def cleanup(core: Core, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
    """Remove done jobs past their retention or, with `before_ms`, done and dead jobs that ended before then."""
    if before_ms is None:
        return _retire_due(core, limit, progress)
    numbers = core.write(
        lambda unit: [queue.number for queue in core.registry.all(unit.tx)], answer=_NUMBERS, step=b"queues"
    )
    # By number, which also finds a queue that was deleted since: a repeated request still gets its first answers.
    found = core.read(lambda reader: [core.registry.by_number(reader, number) for number in numbers])
    removed = 0
    for queue in [queue for queue in found if queue is not None]:
        for space in (keyspace.DONE, keyspace.DEAD):
            ranges = [(keyspace.ended_from(queue.number, 0), keyspace.ended_from(queue.number, before_ms))]
            removed += _remove_range(core, queue, space, ranges, limit - removed, progress)
            if removed >= limit:
                return removed
    return removed


def _retire_due(core: Core, limit: int, progress: Progress | None) -> int:
    removed = 0
    while removed < limit:
        count = core.write(
            lambda unit, left=limit - removed: retire_due(unit, unit.tx.at_most(min(CHUNK, left))),  # type: ignore[misc]
            answer=NUMBER,
            step=b"after %d" % removed,
        )
        removed += count
        if progress is not None:
            progress(removed, limit)
        if not count:
            break
    return removed


def _remove_range(
    core: Core,
    queue: RegisteredQueue,
    space: Space,
    ranges: Sequence[tuple[bytes, bytes]],
    limit: int | None,
    progress: Progress | None,
    made_by_ms: int | None = None,
) -> int:
    """Remove the jobs that index rows in these ranges point at, but none made after `made_by_ms`."""
    removed = 0
    for begin, end in ranges:
        while limit is None or removed < limit:
            want = CHUNK if limit is None else min(CHUNK, limit - removed)
            count, after = core.write(
                lambda unit, b=begin, e=end, w=want: _remove_chunk(unit, queue, space, b, e, w, made_by_ms),  # type: ignore[misc]
                answer=_REMOVED,
                step=bytes((space,)) + begin,
            )
            removed += count
            if progress is not None:
                progress(removed, limit)
            if after is None:
                break
            begin = after
    return removed


def _remove_chunk(
    unit: UnitOfWork, queue: RegisteredQueue, space: Space, begin: bytes, end: bytes, want: int, made_by_ms: int | None
) -> tuple[int, bytes | None]:
    """(how many were removed, where to go on; None at the end of the range)"""
    want = unit.tx.at_most(want)
    keys = unit.tx.keys(space, begin, end, want)
    jobs = [key[-16:] for key in keys if made_by_ms is None or created_ms(key[-16:]) <= made_by_ms]
    removed = 0
    for job, state in _states(unit.tx, queue, jobs):
        if state.state != State.LEASED:
            remove(unit, queue.number, job, state, Change.PURGED)
            removed += 1
    return removed, keys[-1] + b"\0" if len(keys) == want else None


def _states(reader: Reader, queue: RegisteredQueue, jobs: Sequence[bytes]) -> list[tuple[bytes, StateRecord]]:
    """The states of those jobs that are there."""
    raws = reader.get_many(keyspace.STATE, [keyspace.of_queue(queue.number, job) for job in jobs])
    return [(job, records.decode_state(raw, job)) for job, raw in zip(jobs, raws, strict=True) if raw is not None]
