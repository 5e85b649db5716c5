"""Mending by people: replay, purge, discard, cancel, cleanup. Long ones work in chunks, each one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from leasehold.model.ids import created_ms
from leasehold.model.job import Replayed
from leasehold.model.lifecycle import Change, Reason, State
from leasehold.model.names import QueueName
from leasehold.model.request import ReplayRequest
from leasehold.queueing.core import Core
from leasehold.queueing.enqueue import free_keys, hold_keys
from leasehold.queueing.ledger import Ledger
from leasehold.queueing.notes import read_notes
from leasehold.queueing.registry import Registered
from leasehold.queueing.removal import remove, remove_leased
from leasehold.queueing.sweep import retire_due
from leasehold.storage import keyspace, records
from leasehold.storage.engine import Reader, Space
from leasehold.storage.keyspace import Counter
from leasehold.storage.records import StateRecord

CHUNK = 500
Progress = Callable[[int, int | None], None]
_DEAD = int(State.DEAD)


# ── replay ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def replay(core: Core, name: QueueName, request: ReplayRequest, progress: Progress | None = None) -> Replayed:
    """Dead jobs back to waiting: same id, the token goes on, attempts start again."""
    queue = core.read(lambda reader: core.registry.find(reader, name))
    done: list[str] = []
    skipped: list[str] = []
    last_visible: int | None = None
    expected = _expected(request)
    start = core.time.now_ms() + request.delay_ms
    for chunk, unknown in _chosen(core, queue, request):
        skipped.extend(job.hex() for job in unknown)
        if request.limit is not None:
            chunk = chunk[: request.limit - len(done)]
        if request.dry_run or queue is None:
            done.extend(job.hex() for job in chunk)
        else:
            times = [start + round((len(done) + i) * request.spacing_ms) for i in range(len(chunk))]
            replayed, missed, last_visible = core.write(
                lambda ledger, q=queue, c=chunk, t=times, v=last_visible: _replay_chunk(ledger, q, c, t, v, expected)  # type: ignore[misc]
            )
            done.extend(job.hex() for job in replayed)
            if request.ids is not None:
                skipped.extend(job.hex() for job in missed)
        if progress is not None:
            progress(len(done), request.limit if request.ids is None else len(request.ids))
        if request.limit is not None and len(done) >= request.limit:
            break
    return Replayed(
        count=len(done), ids=done, skipped=skipped, dry_run=request.dry_run, last_visible_at_ms=last_visible
    )


def _chosen(core: Core, queue: Registered | None, request: ReplayRequest) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Chunks of (dead jobs that fit the request, ids asked for that are not dead)."""
    if queue is None:
        if request.ids:
            yield [], list(request.ids)
        return
    if request.ids is not None:
        unique = list(dict.fromkeys(request.ids))
        for at in range(0, len(unique), CHUNK):
            part = unique[at : at + CHUNK]
            fit = core.read(lambda reader, p=part: _fitting(reader, queue, p, request))  # type: ignore[misc]
            yield fit, [job for job in part if job not in set(fit)]
        return
    begin = keyspace.ended_from(queue.number, request.since_ms or 0)
    end = keyspace.ended_from(queue.number, keyspace.MAX_TIME if request.before_ms is None else request.before_ms)
    stop_ms = core.time.now_ms()  # what dies while we replay is not replayed again
    end = min(end, keyspace.ended_from(queue.number, stop_ms + 1))
    while True:
        keys = core.read(lambda reader, b=begin: reader.keys(keyspace.DEAD, b, end, CHUNK))  # type: ignore[misc]
        if not keys:
            return
        jobs = [keyspace.split_ended(key)[2] for key in keys]
        fit = core.read(lambda reader, j=jobs: _fitting(reader, queue, j, request))  # type: ignore[misc]
        yield fit, []
        begin = keys[-1] + b"\0"


def _fitting(reader: Reader, queue: Registered, jobs: Sequence[bytes], request: ReplayRequest) -> list[bytes]:
    fit = []
    expected = _expected(request)
    for job, state in _states(reader, queue, jobs):
        if state.state != _DEAD or state.token != expected.get(job, state.token):
            continue
        if request.reason is not None and Reason(state.reason).name.lower() != request.reason:
            continue
        if request.since_ms is not None and state.ended_at_ms < request.since_ms:
            continue
        if request.before_ms is not None and state.ended_at_ms >= request.before_ms:
            continue
        if request.error is not None and request.error not in (
            read_notes(reader, queue.number, job, state).error or ""
        ):
            continue
        fit.append(job)
    return fit


def _expected(request: ReplayRequest) -> dict[bytes, int]:
    """The token each job must still have: of one that died again since it was looked at, it is another."""
    if request.ids is None or request.tokens is None:
        return {}
    return dict(zip(request.ids, request.tokens, strict=True))


def _replay_chunk(
    ledger: Ledger,
    queue: Registered,
    jobs: Sequence[bytes],
    times: Sequence[int],
    last_visible: int | None,
    expected: dict[bytes, int],
) -> tuple[list[bytes], list[bytes], int | None]:
    tx, number = ledger.tx, queue.number
    states = {
        job: state
        for job, state in _states(tx, queue, jobs)
        if state.state == _DEAD and state.token == expected.get(job, state.token)
    }
    keys = free_keys(ledger, queue, [job for job, state in states.items() if state.flags & records.HAS_KEY])
    done: list[bytes] = []
    for job, time_ms in zip(jobs, times, strict=True):
        state = states.get(job)
        if state is None:
            continue
        visible = max(ledger.now, time_ms)
        tx.delete(keyspace.DEAD, keyspace.ended(number, state.ended_at_ms, job))
        back = state._replace(
            state=int(State.WAITING),
            reason=0,
            attempt=0,
            replays=state.replays + 1,
            visible_at_ms=visible,
            ended_at_ms=0,
        )
        ref = ledger.event(Change.REPLAYED, number, job, back, at_ms=visible, previous=state.last_event)
        tx.put(keyspace.STATE, keyspace.of_queue(number, job), records.encode_state(back._replace(last_event=ref)))
        tx.put(keyspace.READY, keyspace.ready(number, state.priority, visible, job), b"")
        ledger.ready(queue, state.priority, visible)
        last_visible = visible if last_visible is None else max(visible, last_visible)
        done.append(job)
    ledger.count(number, Counter.DEAD, -len(done))
    ledger.count(number, Counter.WAITING, len(done))
    hold_keys(ledger, queue, keys)
    taken = set(done)
    return done, [job for job in jobs if job not in taken], last_visible


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def cancel(core: Core, name: QueueName, job: bytes) -> bool:
    def run(ledger: Ledger) -> bool:
        tx = ledger.tx
        queue = core.registry.find(tx, name)
        raw = None if queue is None else tx.get(keyspace.STATE, keyspace.of_queue(queue.number, job))
        if queue is None or raw is None:
            return False
        state = records.decode_state(raw, job)
        if state.state == State.WAITING:
            remove(ledger, queue.number, job, state, Change.CANCELLED)
        elif state.state == State.LEASED:
            remove_leased(ledger, queue.number, job, state, Change.CANCELLED)
        else:
            return False
        return True

    return core.write(run)


# ── removal of what was looked at ────────────────────────────────────────────────────────────────────────────────────


def discard(core: Core, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> list[bytes]:
    """Remove those of these jobs that are still in that state, with that token; one transaction."""
    wanted = int(State.DONE if state == "done" else State.DEAD)

    def run(ledger: Ledger) -> list[bytes]:
        queue = core.registry.find(ledger.tx, name)
        if queue is None:
            return []
        removed = []
        for job, found in _states(ledger.tx, queue, list(tokens)):
            if found.state == wanted and found.token == tokens[job]:
                remove(ledger, queue.number, job, found, Change.PURGED)
                removed.append(job)
        return removed

    return core.write(run)


# ── purge and cleanup ────────────────────────────────────────────────────────────────────────────────────────────────


def purge(core: Core, name: QueueName, state: str, progress: Progress | None = None) -> int:
    """Remove every job that was in this state when the purge began."""
    queue = core.read(lambda reader: core.registry.find(reader, name))
    if queue is None:
        return 0
    now = core.time.now_ms()
    if state in ("done", "dead"):
        space = keyspace.DONE if state == "done" else keyspace.DEAD
        ranges = [(keyspace.ended_from(queue.number, 0), keyspace.ended_from(queue.number, now + 1))]
        return _remove_range(core, queue, space, ranges, None, progress)
    ranges = []
    for priority, prefix in zip(range(9, -1, -1), queue.tiers, strict=True):
        middle = keyspace.ready_until(queue.number, priority, now)
        end = keyspace.ready_tier_end(queue.number, priority)
        ranges.append((prefix, middle) if state == "ready" else (middle, end))
    return _remove_range(core, queue, keyspace.READY, ranges, None, progress, now)


def cleanup(core: Core, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
    """Remove done jobs past their retention or, with `before_ms`, done and dead jobs that ended before then."""
    queues = core.read(lambda reader: core.registry.all(reader))
    removed = 0
    if before_ms is None:
        return _retire_due(core, limit, progress)
    for queue in queues:
        for space in (keyspace.DONE, keyspace.DEAD):
            ranges = [(keyspace.ended_from(queue.number, 0), keyspace.ended_from(queue.number, before_ms))]
            removed += _remove_range(core, queue, space, ranges, limit - removed, progress)
            if removed >= limit:
                return removed
    return removed


def _retire_due(core: Core, limit: int, progress: Progress | None) -> int:
    removed = 0
    while removed < limit:
        count = core.write(lambda ledger, left=limit - removed: retire_due(ledger, min(CHUNK, left)))  # type: ignore[misc]
        removed += count
        if progress is not None:
            progress(removed, limit)
        if not count:
            break
    return removed


def _remove_range(
    core: Core,
    queue: Registered,
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
                lambda ledger, b=begin, e=end, w=want: _remove_chunk(ledger, queue, space, b, e, w, made_by_ms)  # type: ignore[misc]
            )
            removed += count
            if progress is not None:
                progress(removed, limit)
            if after is None:
                break
            begin = after
    return removed


def _remove_chunk(
    ledger: Ledger, queue: Registered, space: Space, begin: bytes, end: bytes, want: int, made_by_ms: int | None
) -> tuple[int, bytes | None]:
    """(how many were removed, where to go on; None at the end of the range)"""
    keys = ledger.tx.keys(space, begin, end, want)
    jobs = [key[-16:] for key in keys if made_by_ms is None or created_ms(key[-16:]) <= made_by_ms]
    removed = 0
    for job, state in _states(ledger.tx, queue, jobs):
        if state.state != State.LEASED:
            remove(ledger, queue.number, job, state, Change.PURGED)
            removed += 1
    return removed, keys[-1] + b"\0" if len(keys) == want else None


def _states(reader: Reader, queue: Registered, jobs: Sequence[bytes]) -> list[tuple[bytes, StateRecord]]:
    """The states of those jobs that are there."""
    raws = reader.get_many(keyspace.STATE, [keyspace.of_queue(queue.number, job) for job in jobs])
    return [(job, records.decode_state(raw, job)) for job, raw in zip(jobs, raws, strict=True) if raw is not None]
