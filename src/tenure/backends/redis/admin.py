"""Administration and sweeping: replay, cancel, purge, cleanup, sweep, policies. Verbs on many jobs work in chunks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tenure.backends.redis import queries
from tenure.backends.redis.core import Core, RememberingCore
from tenure.backends.redis.filters import RotatingFilter
from tenure.backends.redis.produce import FIRST_RULES, created_text
from tenure.backends.redis.queries import missing_jobs
from tenure.backends.redis.records import (
    DISCARD,
    HAS_KEY,
    KEYED,
    TIME,
    decode_body,
    decode_state,
    encode_group_rules,
    encode_msgpack,
    encode_rules,
)
from tenure.backends.redis.shards import RegisteredQueue, Shard
from tenure.contract.backend import Progress
from tenure.errors import Corrupt, QueueNotEmpty
from tenure.model.job import Replayed, Swept
from tenure.model.lifecycle import State
from tenure.model.names import QueueName
from tenure.model.request import ReplayRequest
from tenure.model.retry import Policy
from tenure.model.write import UNFINISHED_MS
from tenure.storage.keyspace import digest

CHUNK = 500
_DEFAULT = encode_msgpack(Policy())


# ── replay ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def replay(core: Core, name: QueueName, request: ReplayRequest, progress: Progress | None = None) -> Replayed:
    """Make dead jobs waiting again: same id, a higher token, attempts reset."""
    queue = core.shards.find(name)
    done: list[str] = []
    skipped: list[str] = []
    last_visible: int | None = None
    start, chosen = _plan(core, queue, request)
    expected = dict(zip(request.ids, request.tokens, strict=True)) if request.ids and request.tokens else {}
    for shard, chunk, unknown in chosen:
        skipped.extend(job.hex() for job in unknown)
        if request.limit is not None:
            chunk = chunk[: request.limit - len(done)]
        if request.dry_run or shard is None:
            done.extend(job.hex() for job in chunk)
        elif chunk:
            times = [start + round((len(done) + i) * request.spacing_ms) for i in range(len(chunk))]
            replayed, latest = _replay_chunk(core, shard, chunk, times, expected)
            last_visible = max(latest, last_visible or 0) if replayed else last_visible
            done.extend(job.hex() for job in replayed)
            if request.ids is not None:
                missed = set(chunk) - set(replayed)
                skipped.extend(job.hex() for job in chunk if job in missed)
        if progress is not None:
            progress(len(done), request.limit if request.ids is None else len(request.ids))
        if request.limit is not None and len(done) >= request.limit:
            break
    return Replayed(
        count=len(done), ids=done, skipped=skipped, dry_run=request.dry_run, last_visible_at_ms=last_visible
    )


_Chosen = tuple[Shard | None, list[bytes], list[bytes]]


def _plan(core: Core, queue: RegisteredQueue | None, request: ReplayRequest) -> tuple[int, Iterable[_Chosen]]:
    """Return the time at which the first becomes ready, and the jobs: decided once if the request is remembered."""
    if not isinstance(core, RememberingCore):
        start = core.now_ms()
        return start + request.delay_ms, _chosen(core, queue, request, start)

    def decide() -> bytes:
        start = core.now_ms()
        found = [
            (-1 if shard is None else shard.partition, fit, unknown)
            for shard, fit, unknown in _chosen(core, queue, request, start, keep=True)
        ]
        return encode_msgpack((start + request.delay_ms, found))

    start, found = _decode_plan(core.decide_once(decide))
    return start, [
        (None if queue is None or partition < 0 else queue.shards[partition], fit, unknown)
        for partition, fit, unknown in found
    ]


_decode_plan = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, list[bytes], list[bytes]]]]).decode


def _chosen(
    core: Core, queue: RegisteredQueue | None, request: ReplayRequest, now_ms: int, *, keep: bool = False
) -> Iterator[_Chosen]:
    """Yield chunks: a shard, its dead jobs that match the request, and requested ids that are not dead.

    `keep`: the jobs stay dead while later chunks are read, as in a dry run.
    """
    if queue is None:
        if request.ids:
            yield None, [], list(request.ids)
        return
    if request.ids is not None:
        # In the order of the request: runs of jobs of one shard.
        run: list[bytes] = []
        for job in dict.fromkeys(request.ids):
            if run and (len(run) == CHUNK or queue.shard_of(job) != queue.shard_of(run[0])):
                yield _part(core, queue.shard_of(run[0]), run, request)
                run = []
            run.append(job)
        if run:
            yield _part(core, queue.shard_of(run[0]), run, request)
        return
    low = request.since_ms or 0
    # jobs that die from now on stay dead
    high = min(2**53 if request.before_ms is None else request.before_ms - 1, now_ms)
    for shard in queue.shards:
        passed = 0
        while True:
            key = shard.base + b":dead"
            jobs = core.commands.plain(key, "ZRANGEBYSCORE", key, low, high, "LIMIT", passed, CHUNK)
            if not jobs:
                break
            fit = _fitting(core, shard, jobs, request)
            yield shard, fit, []
            passed += len(jobs) if request.dry_run or keep else len(jobs) - len(fit)


def _part(
    core: Core, shard: Shard, jobs: list[bytes], request: ReplayRequest
) -> tuple[Shard, list[bytes], list[bytes]]:
    fit = _fitting(core, shard, jobs, request)
    there = set(fit)
    return shard, fit, [job for job in jobs if job not in there]


def _fitting(core: Core, shard: Shard, jobs: Sequence[bytes], request: ReplayRequest) -> list[bytes]:
    reply = core.commands.call(shard.base, "causes", b"".join(jobs))
    expected = dict(zip(request.ids, request.tokens, strict=True)) if request.ids and request.tokens else {}
    fit = []
    for job, raw, error in zip(jobs, reply, reply[len(jobs) :], strict=False):
        if not raw:
            continue
        state = decode_state(raw, job)
        if state.state != State.DEAD or state.token != expected.get(job, state.token):
            continue
        if not request.covers(state.reason, state.ended_at_ms):
            continue
        if request.error is not None and request.error not in (error or b"").decode("utf-8", "replace"):
            continue
        fit.append(job)
    return fit


def _replay_chunk(
    core: Core, shard: Shard, jobs: list[bytes], times: list[int], expected: dict[bytes, int]
) -> tuple[list[bytes], int]:
    keyed = []
    _, *fields = core.commands.call(shard.base, "fetch", b"".join(jobs))
    for index, job in enumerate(jobs):
        raw, body = fields[6 * index : 6 * index + 2]
        if raw and decode_state(raw, job).flags & HAS_KEY:
            stored = decode_body(body, job)
            keyed.append(KEYED.pack(index, digest((stored.key or "").encode()), digest(stored.payload), 0))
    ids, latest = core.call_once(
        shard.base, "replay", b"".join(jobs), b"".join(TIME.pack(t) for t in times), b"".join(keyed),
        b"".join(TIME.pack(expected[job]) for job in jobs) if expected else b"",
    )  # fmt: skip
    return [ids[at : at + 16] for at in range(0, len(ids), 16)], latest


# ── cancel, purge, cleanup ───────────────────────────────────────────────────────────────────────────────────────────


def discard(core: Core, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> list[bytes]:
    """Remove those jobs that are still in that state with that token, in one step for each shard."""
    queue = core.shards.find(name)
    if queue is None:
        return []
    wanted = int(State.DONE if state == "done" else State.DEAD)
    parts: dict[Shard, list[bytes]] = {}
    for job in tokens:
        parts.setdefault(queue.shard_of(job), []).append(job)
    removed = []
    # A request that is remembered by its id must repeat every step.
    removed_filter = None if isinstance(core, RememberingCore) else core.filters.cleanup
    for shard, jobs in parts.items():
        if removed_filter is not None:
            jobs = _existing_jobs(core, shard, jobs, removed_filter)
        if jobs:
            rows = b"".join([DISCARD.pack(job, tokens[job]) for job in jobs])
            ids = core.call_once(shard.base, "discard", wanted, rows)[0]
            removed += [ids[at : at + 16] for at in range(0, len(ids), 16)]
    if removed_filter is not None:
        for job in tokens:  # jobs that this step did not remove are gone already, or cost one more read next time
            removed_filter.add(job)
    return removed


def _existing_jobs(core: Core, shard: Shard, jobs: list[bytes], removed_filter: RotatingFilter) -> list[bytes]:
    """Return the jobs that exist: one read for those that the filter names, instead of a step."""
    named = [job for job in jobs if job in removed_filter]
    gone = missing_jobs(core, shard, named) if named else set()
    return [job for job in jobs if job not in gone] if gone else jobs


def cancel(core: Core, name: QueueName, job: bytes) -> bool:
    queue = core.shards.find(name)
    return queue is not None and bool(core.call_once(queue.shard_of(job).base, "cancel", job)[0])


def purge(core: Core, name: QueueName, state: str, progress: Progress | None = None) -> int:
    """Remove every job that was in this state when the purge began."""
    queue = core.shards.find(name)
    if queue is None:
        return 0
    # Later partitions may gain jobs meanwhile, so all use the time at which the purge began.
    began = -1 if len(queue.shards) == 1 else int(core.decide_once(lambda: b"%d" % core.now_ms()))
    removed = 0
    for shard in queue.shards:
        removed += _purge(core, shard, state, began, None, removed, progress)
    return removed


def _purge(
    core: Core, shard: Shard, state: str, until: int, limit: int | None, before: int, progress: Progress | None
) -> int:
    removed = passed = 0
    while limit is None or removed < limit:
        want = CHUNK if limit is None else min(CHUNK, limit - removed)
        count, left, until, more = core.call_once(shard.base, "purge", state, until, want, passed)
        removed += count
        passed += left
        if progress is not None:
            progress(before + removed, limit)
        if not more:
            break
    return removed


def cleanup(core: Core, before_ms: int | None, limit: int, progress: Progress | None = None) -> int:
    """Remove done jobs past their retention or, with `before_ms`, done and dead jobs that ended before then."""
    removed = 0
    bases = core.decide_once(lambda: b"\n".join(shard.base for shard in core.shards.shards())).split()
    for shard in [shard for shard in core.shards.shards() if shard.base in bases]:
        if before_ms is None:
            while removed < limit:
                count = core.call_once(shard.base, "retire", min(CHUNK, limit - removed))[0]
                removed += count
                if progress is not None:
                    progress(removed, limit)
                if not count:
                    break
        elif before_ms > 0:
            for state in ("done", "dead"):
                if removed < limit:
                    removed += _purge(core, shard, state, before_ms - 1, limit - removed, removed, progress)
    return removed


# ── sweep ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_SWEPT = (
    "leases", "jobs_back", "jobs_dead", "retired", "ttl_passed", "keys_forgotten", "claims_forgotten", "events_trimmed",
)  # fmt: skip


def sweep(core: Core) -> Swept:
    """Make one bounded pass over each shard. Raises `Corrupt` at the end if a shard could not be swept."""
    totals = dict.fromkeys(_SWEPT, 0)
    more = False
    damaged: Corrupt | None = None
    for shard in core.shards.shards():
        try:
            *counted, left = core.commands.call(shard.base, "sweep", random.random(), core.grace_ms)
        except Corrupt as exc:
            damaged = damaged or exc
            continue
        more = more or bool(left)
        for name, count in zip(_SWEPT, counted, strict=True):
            totals[name] += count
    writes, requests, left = core.commands.call(core.shards.registry, "sweep_registry", UNFINISHED_MS)
    if damaged is not None:
        raise damaged
    return Swept(**totals, writes_forgotten=writes, requests_forgotten=requests, more=more or bool(left))


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def configure(core: Core, policies: Mapping[QueueName, Policy]) -> None:
    """Set the policies of queues, each shard in a step of its own."""
    for name, policy in policies.items():
        queue = core.shards.find_or_register(name)
        for shard in queue.shards:
            core.call_once(
                shard.base, "configure", created_text(name), FIRST_RULES, encode_rules(policy, len(queue.shards)),
                encode_msgpack(policy), _DEFAULT, *encode_group_rules(policy),
            )  # fmt: skip


def delete_queue(core: Core, name: QueueName, force: bool) -> bool:
    """Delete each shard in a step of its own, once all of them are empty."""
    queue = core.shards.find(name)
    there = queue is not None and queries.queue_info(core, queue) is not None
    # A repeated request gets the first answer.
    if queue is None or core.decide_once(lambda: b"1" if there else b"0") == b"0":
        return False
    _refuse_not_empty(core, queue, force)
    for state in ("done", "blocked", "ready", "scheduled", "dead") if force else ("done",):
        purge(core, name, state)
    for shard in queue.shards:
        deleted, leased, waiting, dead, done = core.call_once(shard.base, "delete_queue")
        if not deleted and leased + waiting + dead + done:
            raise QueueNotEmpty(str(name), leased, waiting, dead, done)
    return True


def _refuse_not_empty(core: Core, queue: RegisteredQueue, force: bool) -> None:
    info = queries.queue_info(core, queue)
    counts = None if info is None else info.counts
    if counts is None:
        return
    waiting = counts.waiting + counts.blocked
    if counts.leased or ((waiting or counts.dead) and not force):
        raise QueueNotEmpty(str(queue.name), counts.leased, waiting, counts.dead)


def replace_queues(core: Core, tenant: str, policies: Mapping[str, Policy]) -> None:
    """Replace the tenant's queues one by one: no step can change queues in different slots.

    Refuses before it changes anything.
    """
    others = [queue for queue in core.shards.queues(tenant) if queue.name.queue not in policies]
    for queue in others:
        _refuse_not_empty(core, queue, force=False)
    for queue in others:
        delete_queue(core, queue.name, force=False)
    configure(core, {QueueName(tenant, queue): policy for queue, policy in policies.items()})


def set_paused(core: Core, name: QueueName, paused: bool) -> None:
    for shard in core.shards.find_or_register(name).shards:
        core.call_once(shard.base, "set_paused", created_text(name), FIRST_RULES, int(paused))
