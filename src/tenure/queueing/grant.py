"""Grants a claim: leases its jobs, and writes the lease."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import NamedTuple, TypeVar

import msgspec

from tenure.model.ids import NO_ID
from tenure.model.lease import ClaimRequest, Delivery, DeliveryColumns, Leased
from tenure.model.lifecycle import State
from tenure.model.names import QueueName
from tenure.model.tokens import next_token
from tenure.queueing import groups, limits, quota_usage
from tenure.queueing.leases import CLAIM_MEMORY_MS
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.selection import Selection
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.checksum import crc32
from tenure.storage.keyspace import DUE, LEASE_JOBS, LEASES, READY, STATE, Counter, Due, due
from tenure.storage.records import (
    EVENTS_A_ROW,
    HAS_GROUP,
    NO_TEXT,
    REF_BITS,
    V1,
    encode_lease_jobs,
    encode_new_lease,
    pack_event,
    pack_state,
    seal_packed_state,
)
from tenure.storage.segments.stored import SegmentShare

T = TypeVar("T")
_LEASED = int(State.LEASED)
_LEASE_DUE = int(Due.LEASE)
#: Used for a job without a last event (after a repair): later than every event.
_NOT_TOLD = 1 << 80
_WAITING_COUNT, _LEASED_COUNT = int(Counter.WAITING), int(Counter.LEASED)


class ClaimIdentity(NamedTuple):
    """Digests of a claim's id and of its arguments."""

    key: bytes
    asked: bytes


class Together(NamedTuple):
    """Jobs of segments that a claim takes."""

    shares: Sequence[SegmentShare]
    #: The order of delivery: indexes of two or more into the jobs of all shares, one share after another. None: in that
    #: order.
    order: Sequence[int] | None = None

    def in_turn(self, column: Sequence[T]) -> Sequence[T]:
        return column if self.order is None else list(itemgetter(*self.order)(column))


class Grant(msgspec.Struct, frozen=True, gc=False):
    """One lease, over the jobs that one transaction grants."""

    unit: UnitOfWork
    queue: RegisteredQueue
    #: The caller's own object, so that its deliveries have the same one.
    name: QueueName
    request: ClaimRequest
    lease: bytes
    identity: ClaimIdentity | None

    def _expires(self) -> int:
        return self.unit.now + (self.request.lease_ms or self.queue.lease_ms)

    def rows(self, found: Selection) -> Leased:
        """Lease jobs that are stored as rows."""
        unit, queue, name, lease, expires = self.unit, self.queue, self.name, self.lease, self._expires()
        prefix, number, heads, writes, selected = queue.prefix, queue.number, queue.claimed, unit.tx.writes, found.jobs
        count = len(selected)
        jobs: list[bytes] = []
        tokens: list[int] = []
        deliveries: list[Delivery] = []
        worker, text, first, newest = self.request.worker, NO_TEXT, unit.core.first_token, 0
        ref = 0
        for key, job, state, record in selected:
            if not len(jobs) % EVENTS_A_ROW:
                ref = unit.begin_events(min(count - len(jobs), EVENTS_A_ROW))
                if worker:
                    text = unit.text(worker)
            priority, flags, most, before = state.priority, state.flags, state.max_attempts, state.last_event
            attempt, token = state.attempt + 1, next_token(state.token, first)
            if before > newest or not before:
                newest = before or _NOT_TOLD
            unit.events.append(pack_event(heads[priority], job, lease, token, attempt, most, expires, before, text))
            if state.due_at_ms:
                writes.append((DUE, due(Due.TTL, state.due_at_ms, number, job), None))
            leased = pack_state(
                V1, _LEASED, priority, state.reason, flags, attempt, most, state.replays, token,
                state.visible_at_ms, state.ended_at_ms, 0, ref, lease,
            )  # fmt: skip
            ref += 1
            writes += ((STATE, prefix + job, seal_packed_state(leased, crc32(leased))), (READY, key, None))
            if flags & HAS_GROUP:
                groups.take(unit, number, job, state, record.group)
            jobs.append(job)
            tokens.append(token)
            deliveries.append(
                Delivery(
                    name, job, lease, token, record.payload, attempt, most, priority, record.created_at_ms,
                    headers_of(record.headers, job) if record.headers else {},
                    key_of(record.key) if record.key else None,
                    record.group.decode() if record.group else None,
                )
            )  # fmt: skip
        if queue.meter:
            quota_usage.moved(unit, queue.meter, -count, 0)
        self._put_lease(jobs, tokens, expires, newest)
        return Leased(name, lease, expires, deliveries)

    def segments(self, together: Together) -> Leased:
        """Lease jobs that are stored in segments. Requires: their events fit into one journal row."""
        unit, queue, lease, expires = self.unit, self.queue, self.lease, self._expires()
        shares, in_turn = together.shares, together.in_turn
        ref = unit.begin_events(sum([share.taken for share in shares]))
        text = unit.text(self.request.worker) if self.request.worker else records.NO_TEXT
        jobs: list[bytes] = []
        payloads: list[bytes] = []
        #: Of each share: token, attempt, max_attempts, priority, created; and how many jobs it has.
        alike: list[tuple[int, int, int, int, int]] = []
        counts: list[int] = []
        newest, named, first = 0, False, unit.core.first_token
        for share in shares:
            segment, count, places = share.segment, share.taken, share.places
            state, body = segment.state, segment.body
            priority, attempt, most = state.priority, state.attempt + 1, state.max_attempts
            taken, before = segment.jobs_at(places), segment.events_at(places)
            token = next_token(state.token, first)
            middle = lease + records.pack_event_middle(token, attempt, most, expires, 0)[: -records.REF_BYTES]
            unit.add_events_alike(queue.claimed[priority], taken, middle, before, text)
            unit.tx.lease_together(share, lease, token, ref + len(jobs))
            if state.group:
                named = True
                groups.take_together(unit, queue.number, state.group, body.group, count)
            newest = max(newest, before[-1] or _NOT_TOLD)
            jobs += taken
            payloads += segment.payloads_at(places)
            alike.append((token, attempt, most, priority, body.created_at_ms))
            counts.append(count)
        tokens, attempts, max_attempts, priorities, created = [
            _of_each(column, counts) for column in zip(*alike, strict=True)
        ]
        of_groups = [(share.segment.body.group.decode() or None, share.taken) for share in shares] if named else []
        given, given_tokens = in_turn(jobs), in_turn(tokens)
        self._put_lease(given, given_tokens, expires, newest)
        return Leased(
            self.name,
            lease,
            expires,
            columns=DeliveryColumns(
                given,
                given_tokens,
                in_turn(payloads),
                in_turn(attempts),
                in_turn(max_attempts),
                in_turn(priorities),
                in_turn(created),
                groups=in_turn([group for group, count in of_groups for _ in range(count)]) if named else None,
            ),
        )

    def _put_lease(self, jobs: Sequence[bytes], tokens: Sequence[int], expires: int, newest: int) -> None:
        """Write the lease over these jobs; `newest` is the latest of their last events."""
        unit, queue, lease, identity = self.unit, self.queue, self.lease, self.identity
        tx, count, number, at, now = unit.tx, len(jobs), queue.number, queue.prefix + lease, unit.now
        tx.answers_after = newest >> REF_BITS
        claim_key = NO_ID if identity is None else identity.key
        tx.writes += (
            (LEASES, at, encode_new_lease(expires, now, count, claim_key, self.request.worker.encode())),
            (LEASE_JOBS, at, encode_lease_jobs(jobs, tokens)),
            (DUE, due(_LEASE_DUE, expires, number, lease), b""),
        )
        if tx.holds_leases:
            tx.hold(at, expires - now)
        if identity is not None:
            tx.writes += (
                (keyspace.CLAIMS, queue.prefix + identity.key, records.encode_claim(lease, identity.asked)),
                (DUE, due(Due.CLAIM, expires + CLAIM_MEMORY_MS, number, identity.key), b""),
            )
        if queue.limited:
            limits.take(unit, queue, count)
        adds, waiting, leased = tx.adds, queue.counters[_WAITING_COUNT], queue.counters[_LEASED_COUNT]
        adds[waiting] = adds.get(waiting, 0) - count
        adds[leased] = adds.get(leased, 0) + count
        # Wake the first waiter in line, which computes the next due time again: this lease's end may be earlier.
        unit.woken.setdefault(self.name, 1)


def _of_each(values: Sequence[int], counts: Sequence[int]) -> list[int]:
    """A column: so many times each of these values."""
    if values.count(values[0]) == len(values):
        return [values[0]] * sum(counts)
    return list(chain.from_iterable(map(repeat, values, counts)))


def headers_of(raw: bytes, job: bytes) -> dict[str, str]:
    return records.decode_headers(raw, job) if raw else {}


def key_of(raw: bytes) -> str | None:
    return raw.decode("utf-8", "replace") if raw else None
