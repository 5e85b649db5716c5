"""Claims: one lease over the first jobs of a queue, in one transaction.

A claim reads, in this order: the leases that have run out (and gives their jobs back, in a transaction of its own),
then the ready rows of each priority up to now. What it meets on the way that should not be there (a row without its
job, a job past its ttl) it clears; a damaged job it leaves where it is, and goes on. The end of a job that others wait
for is a transaction of its own: it may change the turns that the claim has moved by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from tenure.errors import Corrupt, InvalidArgument, LeaseLost
from tenure.model.lease import ClaimRequest, Delivery, Leased
from tenure.model.lifecycle import Change
from tenure.model.names import ANY_QUEUE, NamesInTurn, QueueName
from tenure.queueing import group_selection, groups, limits, sweep
from tenure.queueing.core import Core
from tenure.queueing.grant import ClaimIdentity, Grant, Together, headers_of, key_of
from tenure.queueing.leases import held_jobs, whole_payload
from tenure.queueing.queue_turns import NEVER
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.removal import remove
from tenure.queueing.selection import Selection, select
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader
from tenure.storage.keyspace import DUE, Due, DueKey, commit
from tenure.storage.segments.stored import SegmentShare
from tenure.storage.transaction import NOTHING_TOLD


def claim(
    core: Core, names: Sequence[QueueName], request: ClaimRequest, cancel: threading.Event | None = None
) -> Leased | None:
    """A lease over jobs of the first of these queues that has any, waiting for one if asked to."""
    attempt = _try if len(names) == 1 else _try_all
    leased = attempt(core, names, request)
    if leased is not None or not request.wait_ms:
        return leased
    return wait_in_line(core, names, request.wait_ms, partial(attempt, core, names, request), cancel)


def wait_in_line(
    core: Core,
    lines: Sequence[QueueName],
    wait_ms: int,
    attempt: Callable[[], Leased | None],
    cancel: threading.Event | None,
) -> Leased | None:
    """Stand in line until there is something or the time is up."""
    deadline = core.time.now_ms() + wait_ms
    waiter = core.waiters.join(lines)
    try:
        while not (cancel is not None and cancel.is_set()):
            waiter.signal.clear()
            seen = core.engine.version()
            leased = attempt()
            remaining = deadline - core.time.now_ms()
            if leased is not None or remaining <= 0:
                return leased
            _wait(core, waiter.signal, core.waiters.leads(waiter), remaining, seen, cancel)
        return None
    finally:
        core.waiters.leave(waiter)


def _wait(
    core: Core,
    signal: threading.Event,
    leading: Sequence[object],
    remaining_ms: int,
    seen: int,
    cancel: threading.Event | None,
) -> None:
    """Sleep until something may have changed. Only who leads a line watches the clock and other processes."""
    wake_at = core.time.now_ms() + remaining_ms
    if leading:
        due = core.read(lambda reader: next_due(core, reader, leading))
        if due is not None and due < wake_at:
            wake_at = due
            if core.traits.scope == "cluster" and due <= core.time.now_ms():
                # It was not taken: its lease lasts by another measure than this clock. Look again in a while.
                core.clock.wait(signal, remaining_ms / 1000, core.traits.poll)
    # A cancelled caller is noticed soon, though nothing in the store tells of it.
    slices = [s for s in (core.traits.poll if leading else None, 0.05 if cancel is not None else None) if s]
    poll = min(slices) if slices else None
    while True:
        left = wake_at - core.time.now_ms()
        if left <= 0 or core.clock.wait(signal, left / 1000, poll) or core.engine.version() != seen:
            return
        if cancel is not None and cancel.is_set():
            return


def next_due(core: Core, reader: Reader, names: Sequence[object]) -> int | None:
    """When the next job of these queues becomes ready, or a lease (of any queue) runs out."""
    times = []
    for name in names:
        if name == ANY_QUEUE:
            turn = reader.keys(keyspace.DUE, keyspace.due_prefix(Due.TURN), keyspace.due_end(Due.TURN), 1)
            times += [keyspace.split_due(key).time_ms for key in turn]
            continue
        queue = core.registry.find(reader, name)  # type: ignore[arg-type]  # lines of claims are queue names
        if queue is None or queue.paused:
            continue
        opens = limits.opens_at(reader, queue) if queue.limited else 0
        if opens is None:
            continue  # whoever lets a job go wakes the line; and leases that end are looked at below
        first = next_job(reader, queue)
        if first is not None:
            times.append(max(first, opens))
    leases = reader.keys(keyspace.DUE, keyspace.due_prefix(Due.LEASE), keyspace.due_end(Due.LEASE), 1)
    if leases:
        times.append(keyspace.split_due(leases[0]).time_ms + core.traits.grace_ms)
    return min(times) if times else None


def next_job(reader: Reader, queue: RegisteredQueue) -> int | None:
    """When the first of a queue's waiting jobs becomes ready, or became so; None: none waits."""
    times = []
    for priority, prefix in zip(range(9, -1, -1), queue.tiers, strict=True):
        keys = reader.keys(keyspace.READY, prefix, keyspace.ready_tier_end(queue.number, priority), 1)
        if keys:
            times.append(keyspace.split_ready(keys[0]).visible_at_ms)
    turn = groups.next_turn(reader, queue) if queue.grouped else None
    if turn is not None:
        times.append(turn)
    return min(times, default=None)


def _try_all(core: Core, names: Sequence[QueueName], request: ClaimRequest) -> Leased | None:
    damaged: Corrupt | None = None
    for name in _worth_trying(core, names):
        try:
            leased = _try(core, names, request, name)
        except Corrupt as exc:
            damaged = exc  # another queue may still be served
            continue
        if leased is not None:
            return leased
    if damaged is not None:
        raise damaged
    return None


def _worth_trying(core: Core, names: Sequence[QueueName]) -> Iterator[QueueName]:
    """Those that may have a job, and the first if none may: each transaction takes over leases that have run out, of whatever queue.

    What came back that way makes its queue worth trying, too.
    """
    turns = core.turns
    in_turn = names if isinstance(names, NamesInTurn) else NamesInTurn(names)
    tried: set[QueueName] = set()
    while True:
        turns.wake_quiet(core.time.now_ms())
        left = [name for name in in_turn.besides(turns.quiet, turns.quiet_version) if name not in tried]
        if not left:
            if tried:
                return
            left = [names[0]]
        for name in left:
            tried.add(name)
            yield name


def _try(core: Core, names: Sequence[QueueName], request: ClaimRequest, name: QueueName | None = None) -> Leased | None:
    """Claim from one of the queues: from `name`, or the first."""
    if name is None:
        name = names[0]
    if (
        not core.only_writer
        and core.traits.scope == "host"
        and request.id is None
        and not core.read(lambda reader: _worth_it(core, reader, name))
    ):
        return None  # looking is cheap there, and taking the writer's lock is not
    now = core.time.now_ms()
    lease = core.ids.one(now)
    step = FIRST
    plan = partial(_claim, core, name, request, lease, names, step)
    while True:
        try:
            outcome = core.write(plan, now)
        except LateParents as late:
            late.remove(core, now)
            continue
        except Corrupt:
            if step.leases is None or step.jobs_only:
                raise
            outcome = past_damaged_leases(core, step)
        if not isinstance(outcome, Step):
            return outcome
        step = outcome
        plan = partial(_claim, core, name, request, lease, names, step)


class LateParents(Exception):
    """A claim met jobs past their ttl that others wait for. Nothing of it is written: they are removed first."""

    def __init__(self, due: list[DueKey]) -> None:
        super().__init__(due)
        self.due = due

    def remove(self, core: Core, now_ms: int) -> None:
        """Remove those jobs, in a transaction. Then the claim is repeated."""
        core.write(partial(sweep.pass_ttl, rows=self.due), now_ms)


_LEASES_DUE = keyspace.due_prefix(Due.LEASE)


class Step(msgspec.Struct, frozen=True):
    """Where a claim goes on that found nothing within `core.inspect_limit` rows. Each step is a transaction of its own."""

    #: Take no expired leases over, which the step before did: their jobs can be read only by this one.
    jobs_only: bool = False
    #: Look for expired leases behind this row; None: there are no others.
    leases: bytes | None = b""
    #: Look for jobs behind this ready row.
    ready: bytes = b""
    damaged: Corrupt | None = None


FIRST = Step()


def _worth_it(core: Core, reader: Reader, name: QueueName) -> bool:
    queue = core.registry.find(reader, name)
    if queue is None or queue.paused:
        return False
    due = next_due(core, reader, (name,))
    return due is not None and due <= core.time.now_ms()


def _claim(
    core: Core,
    name: QueueName,
    request: ClaimRequest,
    lease: bytes,
    names: Sequence[QueueName],
    step: Step,
    unit: UnitOfWork,
) -> Leased | Step | None:
    tx = unit.tx
    identity = None
    if request.id is not None:
        identity = identity_of(request)
        given = given_before(core, unit, names, identity)
        if given is not None:
            return given
    tx.answers_after = NOTHING_TOLD  # until jobs are leased (`grant`)
    queue = core.registry.find(tx, name)
    if queue is None or queue.paused:
        if queue is None and len(names) > 1 and core.only_writer:
            core.turns.is_quiet(name, NEVER)  # until its first job makes it
        return None
    until = commit(unit.now + 1)
    if not step.jobs_only and step.leases is not None:
        step = take_over(core, unit, step, until)
        if step.jobs_only:
            return step
    if queue.limited:
        room = limits.room(tx, queue, unit.now, request.limit)
        if not room:
            return None
        request = replace(request, limit=room)
    outcome = take(core, Grant(unit, queue, name, request, lease, identity), until, step)
    if outcome is None and len(names) > 1 and core.only_writer and not tx.writes:
        due = next_job(tx, queue)
        core.turns.is_quiet(name, NEVER if due is None else due)
    return outcome


def take_over(core: Core, unit: UnitOfWork, step: Step, until: bytes) -> Step:
    """Take over leases that have run out: a claim's share of the sweep. `until` is the moment after now, as keys hold it."""
    if core.traits.grace_ms:
        until = commit(max(0, unit.now + 1 - core.traits.grace_ms))
    if not unit.tx.reader.keys(DUE, _LEASES_DUE, _LEASES_DUE + until, 1, snapshot=True):
        return _NO_LEASES if step is FIRST else replace(step, leases=None)
    page = sweep.expire(core, unit, step.leases or b"", core.inspect_limit)
    return replace(step, jobs_only=any(page.counted.values()), leases=page.last)


_NO_LEASES = Step(leases=None)


def past_damaged_leases(core: Core, step: Step) -> Step:
    """Where a claim goes on that met damage: it may be in what the end of another's lease needs, which must not stop it.

    Leases are taken over one by one, and the claim takes none over any more.
    """
    sweep.sweep_page(core, Due.LEASE)
    return replace(step, leases=None)


def take(core: Core, grant: Grant, until: bytes, step: Step) -> Leased | Step | None:
    """The next jobs: as they are stored together, if that is how they can be handed out, else row by row."""
    unit, queue, request = grant.unit, grant.queue, grant.request
    tx = unit.tx
    tiers = core.priorities.prefixes.get(queue.number) or core.priorities.of(tx, queue)
    if request.limit > 1 and (fewer := tx.at_most(request.limit)) < request.limit:
        request = replace(request, limit=fewer)
    if queue.grouped:
        by_turns = group_selection.select(unit, queue, tiers, until, request, core.inspect_limit)
        if by_turns is not None:
            if by_turns.together is not None:
                return grant.segments(by_turns.together)
            if by_turns.group_orphans:
                tx.delete_many(keyspace.GROUP_READY, by_turns.group_orphans)
            outcome = _granted(grant, by_turns, step)
            return step if by_turns.again else outcome
    if request.limit > 1 and not queue.meter:
        shares = tx.first_together(tiers, until, request.limit)
        if shares and _fit(shares, request.max_bytes):
            return grant.segments(Together(shares))
    # Where hosts claim side by side, each looks at other rows; behind a row that was seen, at all of them.
    spread = 1 if step.ready else tx.spread
    found = select(unit, queue, tiers, until, request, step.ready, core.inspect_limit, spread)
    if spread > 1 and not found.jobs:
        # What was chosen could not be taken, and there may be others before and behind it.
        found = select(unit, queue, tiers, until, request, step.ready, core.inspect_limit, 1)
    return _granted(grant, found, step)


def _fit(shares: Sequence[SegmentShare], max_bytes: int | None) -> bool:
    """Whether these shares of segments may be leased together: within `max_bytes`, and one row of the journal."""
    fits = max_bytes is None or sum([share.payload_bytes for share in shares]) <= max_bytes
    return fits and sum([share.taken for share in shares]) <= records.EVENTS_A_ROW


def _granted(grant: Grant, found: Selection, step: Step) -> Leased | Step | None:
    """Lease the jobs that were found. If there are none: where the claim goes on, or None.

    Raises Corrupt for damage alone, and LateParents.
    """
    if found.expired or found.orphans:
        _clear(grant.unit, grant.queue, found)
    if found.jobs:
        return grant.rows(found)
    damaged = step.damaged or (found.damaged[0] if found.damaged else None)
    if found.stopped is not None:
        return Step(True, step.leases, found.stopped + b"\0", damaged)
    if step.leases is not None:
        return Step(False, step.leases, b"", damaged)
    if damaged is None:
        return None
    if found.expired or found.orphans:
        return Step(True, None, step.ready, damaged)  # what was cleared is to be kept: the next step raises
    raise damaged


def _clear(unit: UnitOfWork, queue: RegisteredQueue, found: Selection) -> None:
    """Remove jobs past their ttl, and ready rows without a job. Raises LateParents."""
    late = [(job, state.due_at_ms) for job, state in found.expired if state.flags & records.HAS_CHILDREN]
    if late:
        raise LateParents([DueKey(Due.TTL, due_ms, queue.number, job) for job, due_ms in late])
    unit.tx.delete_many(keyspace.READY, found.orphans)
    for job, state in found.expired:
        remove(unit, queue.number, job, state, Change.TTL_PASSED)


def identity_of(request: ClaimRequest) -> ClaimIdentity:
    """Of a claim that has an id."""
    return ClaimIdentity(keyspace.digest((request.id or "").encode()), _asked(request))


def note_any(unit: UnitOfWork, queue: RegisteredQueue, identity: ClaimIdentity) -> None:
    """Remember which queue served a claim from any: repeated, it goes there."""
    unit.tx.put(keyspace.CLAIMS, keyspace.of_queue(0, identity.key), records.encode_number(queue.number))


def any_claimed(core: Core, reader: Reader, identity: ClaimIdentity) -> QueueName | None:
    """The queue that served a claim from any with this id; None: none did."""
    raw = reader.get(keyspace.CLAIMS, keyspace.of_queue(0, identity.key))
    queue = None if raw is None else core.registry.by_number(reader, records.decode_number(raw))
    return None if queue is None else queue.name


def given_before(core: Core, unit: UnitOfWork, names: Sequence[QueueName], identity: ClaimIdentity) -> Leased | None:
    """What a claim with this id was given. Over several queues, it may find jobs in one that had none: any may have served it."""
    for queue in (core.registry.find(unit.tx, name) for name in names):
        seen = None if queue is None else unit.tx.get(keyspace.CLAIMS, keyspace.of_queue(queue.number, identity.key))
        if queue is not None and seen is not None:
            return _repeat(unit, queue, records.decode_claim(seen), identity.asked)
    return None


def _asked(request: ClaimRequest) -> bytes:
    """Stands for what a claim asked for; how long it is ready to wait may differ when it is repeated."""
    return keyspace.digest(repr((request.limit, request.lease_ms, request.worker, request.max_bytes)).encode())


def _repeat(unit: UnitOfWork, queue: RegisteredQueue, claim: records.ClaimRecord, asked: bytes) -> Leased:
    """A claim whose id was seen before: its jobs that are still open, or how it ended."""
    if claim.asked != asked:
        raise InvalidArgument("a claim with this id asked for something else: use another id")
    if claim.expired:
        raise LeaseLost(detail="the claim with this id has expired")
    tx, number = unit.tx, queue.number
    at = keyspace.of_queue(number, claim.lease)
    raw = tx.get(keyspace.LEASES, at)
    if raw is None:
        return Leased(queue.name, claim.lease, unit.now, [])  # all settled: an answer, so nobody waits for another
    lease = records.decode_lease(raw, claim.lease)
    if lease.expires_at_ms <= unit.now:
        raise LeaseLost(detail="the claim with this id has expired")
    deliveries = []
    for job, state in held_jobs(tx, number, claim.lease).jobs:
        raw_job = tx.get(keyspace.JOBS, keyspace.of_queue(number, job))
        if raw_job is None:
            raise Corrupt("its payload is missing", job.hex())
        record = records.decode_job(raw_job, job)
        if record.parts:
            record = record._replace(payload=whole_payload(tx, number, job, record))
        deliveries.append(
            Delivery(
                queue.name,
                job,
                claim.lease,
                state.token,
                record.payload,
                state.attempt,
                state.max_attempts,
                state.priority,
                record.created_at_ms,
                headers_of(record.headers, job),
                key_of(record.key),
                key_of(record.group),
            )
        )
    return Leased(queue.name, claim.lease, lease.expires_at_ms, deliveries)
