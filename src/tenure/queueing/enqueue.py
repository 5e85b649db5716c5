"""Jobs in: one transaction for the whole call, all or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import TypeVar

import msgspec

from tenure.errors import KeyConflict, QueueFull, TenureError, TooLarge
from tenure.model.ids import NO_ID
from tenure.model.job import MAX_PAYLOAD, Enqueued
from tenure.model.lifecycle import Change, State
from tenure.model.names import QueueName
from tenure.model.request import AlikeJobs, JobRequest, alike_parts, payloads_of
from tenure.queueing import flow_links, groups, quota_usage, quotas
from tenure.queueing.core import Core
from tenure.queueing.edges import Run
from tenure.queueing.flow_links import Link
from tenure.queueing.idempotency_keys import Holding, Keyed, find_duplicates, hold_keys
from tenure.queueing.outcomes import ENQUEUED
from tenure.queueing.queue_turns import NEVER
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.checksum import crc32
from tenure.storage.keyspace import JOBS, READY, STATE, Counter, Due, pack_ready
from tenure.storage.records import (
    EVENTS_A_ROW,
    NO_TEXT,
    PART_BYTES,
    V1,
    encode_plain_job,
    pack_event,
    pack_event_head,
    pack_state,
    seal_packed_state,
)

T = TypeVar("T")
_WAITING, _BLOCKED = int(State.WAITING), int(State.BLOCKED)
#: What a job costs besides its payload, for telling whether a batch fits one transaction.
JOB_OVERHEAD = 512
_LARGEST_JOB = JOB_OVERHEAD + MAX_PAYLOAD

#: Parts of a batch (`alike_parts`) that have fewer jobs than this on average are written as rows, and journal rows that
#: have less room are left as they are: engines keep no fewer than about so many jobs together.
_A_PART = 8
_BEHIND_MARK = itemgetter(slice(9, None))  # of an id
_WAITING_COUNT, _ENQUEUED_COUNT = int(Counter.WAITING), int(Counter.ENQUEUED)


def enqueue(core: Core, name: QueueName, requests: Sequence[JobRequest]) -> list[Enqueued]:
    if len(requests) > 1 and core.traits.cuts_batches:
        return _enqueue_in_pieces(core, name, requests)
    now, plan = planned(core, name, requests)
    return core.write(plan, now, ENQUEUED)


def _enqueue_in_pieces(core: Core, name: QueueName, requests: Sequence[JobRequest]) -> list[Enqueued]:
    """As `enqueue`, in as few transactions as the engine does it in. Jobs that wait for jobs stay together: one, then.

    The first try is the whole batch: a key conflict, a full queue or a quota refuses all of it. An error of a later
    transaction says how many jobs were enqueued before it.
    """
    done: list[Enqueued] = []
    size = len(requests)
    linked = any(request.flow is not None for request in requests)
    while len(done) < len(requests):
        left = requests[len(done) : len(done) + size]
        now, whole = planned(core, name, left)
        plans = {len(left): whole}

        def plan(
            unit: UnitOfWork,
            left: Sequence[JobRequest] = left,
            plans: dict[int, Plan] = plans,
        ) -> list[Enqueued]:
            most = len(left) if linked else unit.tx.at_most(len(left))
            if most not in plans:  # drawn once: a try that runs again has the same ids
                plans[most] = planned(core, name, left[:most])[1]
            return plans[most](unit)

        try:
            added = core.write(plan, now, answer=ENQUEUED, step=b"from %d" % len(done) if done else b"")
        except KeyConflict as conflict:
            raise conflict.at(range(len(done), len(requests))) from None
        except TenureError as error:
            if done:
                error.add_note(f"{len(done)} of {len(requests)} jobs were enqueued before this")
            raise
        size = len(added)
        done += added
    return done


Plan = Callable[[UnitOfWork], list[Enqueued]]
Found = tuple[RegisteredQueue, list[bytes], Mapping[int, bytes]]
"""A queue, the ids of its new jobs, and those of jobs that were there before, by their place in the batch."""
_NONE: Mapping[int, bytes] = {}
_NO_LINKS: Mapping[int, Link] = {}


def planned(
    core: Core, name: QueueName, requests: Sequence[JobRequest], settled: Mapping[bytes, str] | None = None
) -> tuple[int, Plan]:
    """The time, and the plan of a transaction: for itself, or together with a marker (`staged_writes`).

    `settled`: the jobs that the same transaction settles (`handover`), by what verb.
    """
    now = core.time.now_ms()
    if len(requests) * _LARGEST_JOB > core.traits.atomic_bytes and not core.traits.cuts_batches:
        _check_size(requests, core.traits.atomic_bytes)
    batch = _batch(core, name, requests, now)
    return now, _flow_plan(core, name, requests, settled or {}, now) if batch is None else batch


def _batch(
    core: Core, name: QueueName, requests: Sequence[JobRequest], now: int, *, in_flow: bool = False
) -> Batch | None:
    """The plan for one queue. None: one of the jobs is part of a flow, unless (`in_flow`) that is known."""
    drawn = core.ids.take(now, len(requests))
    parts = alike_parts(requests, max(1, len(requests) // _A_PART)) if len(requests) > 1 else None
    batch = Batch(core, name, requests, parts, drawn)
    if parts is not None:
        batch.grouped += [(part.group, part.priority) for part in parts if part.group is not None]
        if len(parts) > 1:
            # The ids of a part follow one another: jobs that are stored together lie between no others.
            by_place = dict(zip(chain.from_iterable([part.places for part in parts]), drawn, strict=True))
            batch.drawn = list(map(by_place.__getitem__, range(len(drawn))))
        return batch
    for index, (payload, _, at_ms, priority, key, _, _, _, _, flow, group) in enumerate(requests):
        if flow is not None and not in_flow:
            return None
        if key is not None:
            # Digests are made once, outside the transaction: they cost more than the look-up.
            batch.keyed.append(Keyed(index, keyspace.digest(key.encode()), keyspace.digest(payload)))
        if at_ms is not None:
            batch.moments[index] = core.time.from_calendar(at_ms, now)
        if group is not None:
            batch.grouped.append((group, priority))
    return batch


class Batch(msgspec.Struct):
    """The plan of an enqueue into one queue."""

    core: Core
    name: QueueName
    requests: Sequence[JobRequest]
    #: Its jobs by priority and group, if there is no more to them than that and their payloads.
    parts: Sequence[AlikeJobs] | None
    #: Ids that the jobs get, once their queue is marked in them.
    drawn: Sequence[bytes]
    keyed: list[Keyed] = []
    #: When the later ones are ready.
    moments: dict[int, int] = {}
    #: Group and priority of those that have a group.
    grouped: list[tuple[str, int]] = []

    def find(self, unit: UnitOfWork) -> Found:
        """What has to be read before anything is written."""
        queue = self.core.registry.find(unit.tx, self.name) or unit.queue(self.name)
        # Drawn together, they begin alike.
        begin = self.drawn[0][:6] + queue.mark if self.drawn else b""
        ids = list(map(begin.__add__, map(_BEHIND_MARK, self.drawn)))
        return queue, ids, find_duplicates(unit, queue, self.requests, ids, self.keyed) if self.keyed else _NONE

    def __call__(
        self, unit: UnitOfWork, found: Found | None = None, links: Mapping[int, Link] = _NO_LINKS
    ) -> list[Enqueued]:
        """`found`: what `find` returned, if it was called; `links`: of jobs that wait for jobs, or are waited for."""
        queue, ids, duplicates = found or self.find(unit)
        requests = self.requests
        if queue.bounded:
            _admit(unit, queue, payloads_of(requests), duplicates)
        if self.grouped:
            queue = groups.expect(unit, queue, self.grouped)
        if self.parts is None or links:
            _put_rows(unit, queue, requests, ids, self.moments, duplicates, links)
        else:
            _put_parts(unit, queue, requests, ids, self.parts)
        added = len(ids) - len(duplicates) if duplicates else len(ids)
        if added:
            adds, counters = unit.tx.adds, queue.counters
            waiting, enqueued = counters[_WAITING_COUNT], counters[_ENQUEUED_COUNT]
            adds[waiting] = adds.get(waiting, 0) + added
            adds[enqueued] = adds.get(enqueued, 0) + added
            if links and (blocked := sum([link.open > 0 for link in links.values()])):
                adds[waiting] -= blocked
                unit.tx.add(counters[Counter.BLOCKED], blocked)
        if self.keyed:
            fresh = [Holding(key, ids[at], payload) for at, key, payload in self.keyed if at not in duplicates]
            hold_keys(unit, queue, fresh)
        if not duplicates:
            return list(map(Enqueued, map(bytes.hex, ids)))
        return [
            Enqueued(duplicates[index].hex(), True) if index in duplicates else Enqueued(job.hex())
            for index, job in enumerate(ids)
        ]


def _by_queue(name: QueueName, requests: Sequence[JobRequest]) -> dict[QueueName, list[int]]:
    """The places of the jobs of a call on `name`, by the queue that they go to."""
    here: list[int] = []
    found = {name: here}
    for place, request in enumerate(requests):
        if request.flow is None or request.flow.queue is None:
            here.append(place)
        else:
            found.setdefault(QueueName(name.tenant, request.flow.queue), []).append(place)
    return {queue: places for queue, places in found.items() if places}


def _flow_plan(
    core: Core, name: QueueName, requests: Sequence[JobRequest], settled: Mapping[bytes, str], now: int
) -> Plan:
    """Jobs that wait for each other or for others, or go to several queues: a batch for each queue."""
    names = flow_links.named(requests)
    batches: list[tuple[list[int], Batch]] = []
    for queue, places in _by_queue(name, requests).items():
        batch = _batch(core, queue, [requests[place] for place in places], now, in_flow=True)
        assert batch is not None  # its jobs may be in a flow
        batches.append((places, batch))

    def plan(unit: UnitOfWork) -> list[Enqueued]:
        found: list[Found] = []
        jobs: list[bytes] = [b""] * len(requests)
        for places, batch in batches:
            try:
                found.append(batch.find(unit))
            except KeyConflict as conflict:
                raise conflict.at(places) from None
            queue, ids, duplicates = found[-1]
            prefix = queue.prefix
            _put_at(jobs, places, [prefix + job for job in ids])
            for index, job in duplicates.items():
                jobs[places[index]] = prefix + job
        runs = [Run(unit.tx, queue.prefix, ids) for queue, ids, _ in found]
        there = {places[index] for (places, _), (_, _, known) in zip(batches, found, strict=True) for index in known}
        known = names
        if there:
            # A job with the same key as another of the call stands for that one.
            fresh = {job: place for place, job in enumerate(jobs) if place not in there}
            known = names._replace(places={name: fresh.get(jobs[at], at) for name, at in names.places.items()})
        links = flow_links.linked(unit, name.tenant, requests, known, jobs, there, runs, settled)
        answers: list[Enqueued] = [Enqueued("")] * len(requests)
        for (places, batch), of_queue in zip(batches, found, strict=True):
            _put_at(answers, places, batch(unit, of_queue, _links_of(links, places)))
        return answers

    return plan


def _put_at(whole: list[T], places: Sequence[int], values: Sequence[T]) -> None:
    """Put values at these places, which ascend."""
    if places[-1] - places[0] == len(places) - 1:
        whole[places[0] : places[-1] + 1] = values
        return
    for place, value in zip(places, values, strict=True):
        whole[place] = value


def _links_of(links: Mapping[int, Link], places: Sequence[int]) -> Mapping[int, Link]:
    """The links of the jobs at these places of the call, which ascend, by their place among them."""
    if places[-1] == len(places) - 1:
        others = [place for place in links if place >= len(places)]
        if not others:
            return links
        own = dict(links)
        for place in others:
            del own[place]
        return own
    return {index: links[place] for index, place in enumerate(places) if place in links}


def _put_parts(
    unit: UnitOfWork,
    queue: RegisteredQueue,
    requests: Sequence[JobRequest],
    ids: Sequence[bytes],
    parts: Sequence[AlikeJobs],
) -> None:
    """The jobs of each part, in as few records as the engine can make of them; those that it makes none of, as rows."""
    payloads = payloads_of(requests)
    if max(map(len, payloads)) > PART_BYTES:
        _put_rows(unit, queue, requests, ids, {}, {}, _NO_LINKS)
        return
    jobs, bodies = ids, payloads
    for part in parts:
        if len(parts) > 1:
            jobs, bodies = list(map(ids.__getitem__, part.places)), list(map(payloads.__getitem__, part.places))
        put = _put_together(unit, queue, part, jobs, bodies)
        if put < len(jobs):
            left = requests[put:] if len(parts) == 1 else [requests[place] for place in part.places[put:]]
            _put_rows(unit, queue, left, jobs[put:], {}, {}, _NO_LINKS)


def _put_together(
    unit: UnitOfWork, queue: RegisteredQueue, part: AlikeJobs, jobs: Sequence[bytes], payloads: Sequence[bytes]
) -> int:
    """Jobs that are alike but for their payloads, as the engine stores them together. Returns how many of the first it did."""
    now, max_attempts, (priority, group, _) = unit.now, queue.max_attempts, part
    name, most_leased = b"", None
    if group is not None:
        name, most_leased = group.encode(), queue.policy.of_group(group).max_leased
    middle = NO_ID + records.pack_event_middle(0, 0, max_attempts, now, 0)[: -records.REF_BYTES]
    begin = 0
    while begin < len(jobs):
        room, left = unit.room_for_events(), len(jobs) - begin
        if room < left and (room < _A_PART or left - room < _A_PART):
            room = EVENTS_A_ROW  # in a new row of the journal: on either side there would be too few
        ids, bodies = jobs[begin : begin + room], payloads[begin : begin + room]
        ref = unit.begin_events(len(ids))
        if not unit.tx.put_together(queue.prefix, ids, bodies, now, priority, max_attempts, ref, name, most_leased):
            break
        unit.add_events_alike(queue.enqueued[priority], ids, middle, repeat(0))
        if name:
            unit.groups.waits(queue, groups.group_id(name), name, 9 - priority, now, len(ids))
        begin += len(ids)
    if begin:
        unit.ready(queue, priority, now, now, begin)
    return begin


def _put_rows(
    unit: UnitOfWork,
    queue: RegisteredQueue,
    requests: Sequence[JobRequest],
    ids: Sequence[bytes],
    moments: Mapping[int, int],
    duplicates: Mapping[int, bytes],
    links: Mapping[int, Link],
) -> None:
    """The rows and the event of each job that is not there yet."""
    now, writes = unit.now, unit.tx.writes
    number, prefix, heads, most = queue.number, queue.prefix, queue.enqueued, queue.max_attempts
    latest, earliest, used, ref = now, NEVER, 0, 0
    for index, request in enumerate(requests):
        if not index % EVENTS_A_ROW:
            ref = unit.begin_events(min(len(ids) - index, EVENTS_A_ROW))
        if index in duplicates:
            continue
        payload, delay_ms, at_ms, priority, key, attempts, ttl_ms, headers, _, _, group = request
        visible = now + delay_ms if at_ms is None else max(now, moments[index])
        if visible > latest:
            latest = visible
        if visible < earliest:
            earliest = visible
        if priority != used:
            if index:
                unit.in_use(number, used)
            used = priority
        job = ids[index]
        row, ready_row, attempts = prefix + job, pack_ready(number, 9 - priority, visible, job), attempts or most
        head, kind, flags, due_at, link = heads[priority], _WAITING, 0, 0, links.get(index) if links else None
        if key is None and group is None and ttl_ms is None and headers is None and len(payload) <= PART_BYTES:
            body = encode_plain_job(now, payload)
        else:
            body, flags, due_at = _put_extras(unit, queue, job, request)
            if group is not None and (link is None or not link.open):
                ready_row = keyspace.ready(number, priority, visible, job, keyspace.GROUPED)
                groups.wait(unit, queue, job, priority, visible, group.encode())
        index_row = (READY, ready_row, b"")
        if link is not None:
            flags |= link.flags
            if link.open:
                head, kind = pack_event_head(Change.ENQUEUED, State.BLOCKED, priority, 0, number), _BLOCKED
                index_row = (keyspace.BLOCKED, row, link.blocked)
        state = pack_state(V1, kind, priority, 0, flags, 0, attempts, 0, 0, visible, 0, due_at, ref, NO_ID)
        writes += ((JOBS, row, body), (STATE, row, seal_packed_state(state, crc32(state))), index_row)
        unit.events.append(pack_event(head, job, NO_ID, 0, 0, attempts, visible, 0, NO_TEXT))
        ref += 1
    unit.ready(queue, used, earliest, latest, len(ids))


def _put_extras(unit: UnitOfWork, queue: RegisteredQueue, job: bytes, request: JobRequest) -> tuple[bytes, int, int]:
    """Write what few jobs have: further parts, and when it is removed. Returns its row, its flags and that time."""
    writes, flags, due_at = unit.tx.writes, 0, 0
    key = request.key.encode() if request.key else b""
    headers = records.encode_headers(request.headers) if request.headers else b""
    group = request.group.encode() if request.group else b""
    body, parts = records.encode_job(unit.now, request.payload, key, headers, group)
    if group:
        flags |= records.HAS_GROUP
    if key:
        flags |= records.HAS_KEY
    if parts:
        flags |= records.HAS_PARTS
        for part, value in enumerate(parts, 1):
            writes.append((keyspace.PAYLOAD, keyspace.payload_part(queue.number, job, part), value))
    if request.ttl_ms is not None:
        due_at = unit.now + request.ttl_ms
        writes.append((keyspace.DUE, keyspace.due(Due.TTL, due_at, queue.number, job), b""))
    return body, flags, due_at


def _check_size(requests: Sequence[JobRequest], most: int) -> None:
    """Raise TooLarge if they do not fit one transaction, of so many bytes."""
    size = JOB_OVERHEAD * len(requests) + sum(map(len, payloads_of(requests)))
    if size > most:
        raise TooLarge("the batch", size, most)


def _admit(
    unit: UnitOfWork, queue: RegisteredQueue, payloads: Sequence[bytes], duplicates: Mapping[int, bytes]
) -> None:
    """Raise QueueFull, QuotaExceeded or RateLimited if the queue or its tenant may not take these jobs."""
    limit, meter = queue.policy.max_waiting, queue.meter
    more = len(payloads) - len(duplicates)
    if limit is not None and more:
        waiting = unit.counted(queue.counters[Counter.WAITING]) + unit.counted(queue.counters[Counter.BLOCKED])
        if waiting + more > limit:
            raise QueueFull(str(queue.name), waiting, limit)
    if meter:
        size = sum([len(payload) for index, payload in enumerate(payloads) if index not in duplicates])
        quotas.admit(unit, queue, more, size)
        quota_usage.moved(unit, meter, more, size)
