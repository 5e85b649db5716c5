"""Granting a claim: its jobs are leased, and the lease itself is written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
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
from tenure.storage.keyspace import LEASE_JOBS, LEASES, Counter, Due
from tenure.storage.records import EVENTS_A_ROW, HAS_GROUP, NO_TEXT, REF_BITS, V1, pack_event, seal_state
from tenure.storage.segments.stored import SegmentShare

T = TypeVar("T")
_LEASED = int(State.LEASED)
_job_of, _token_of = attrgetter("job"), attrgetter("token")
_LEASE_DUE = int(Due.LEASE)
#: Instead of the event that made a job ready, where repair has left none: later than any.
_NOT_TOLD = 1 << 80
_WAITING_COUNT, _LEASED_COUNT = int(Counter.WAITING), int(Counter.LEASED)


class ClaimIdentity(NamedTuple):
    """Digests of a claim's id, and of what it asked for."""

    key: bytes
    asked: bytes


class Together(NamedTuple):
    """Jobs that a claim takes, as they are stored together."""

    shares: Sequence[SegmentShare]
    #: How they are handed out: positions among the jobs of all shares, one share after another. None: in that order.
    order: Sequence[int] | None = None

    def in_turn(self, column: Sequence[T]) -> Sequence[T]:
        return column if self.order is None else [column[at] for at in self.order]


class Grant(msgspec.Struct, frozen=True, gc=False):
    """One lease, over the jobs that one transaction gives to it."""

    unit: UnitOfWork
    queue: RegisteredQueue
    #: The caller's own object, by which it knows its deliveries again.
    name: QueueName
    request: ClaimRequest
    lease: bytes
    identity: ClaimIdentity | None

    def _expires(self) -> int:
        return self.unit.now + (self.request.lease_ms or self.queue.lease_ms)

    def rows(self, found: Selection) -> Leased:
        """Lease jobs that are stored as rows."""
        unit, queue, name, lease, expires = self.unit, self.queue, self.name, self.lease, self._expires()
        prefix, writes, add_event, heads = queue.prefix, unit.tx.writes, unit.add_event, queue.claimed
        deliveries: list[Delivery] = []
        worker, text, first, newest = self.request.worker, NO_TEXT, unit.first_token, 0
        for key, job, state, record in found.jobs:
            if worker and not len(deliveries) % EVENTS_A_ROW:
                text = self._worker_text(len(found.jobs) - len(deliveries))
            attempt, token, priority = state.attempt + 1, next_token(state.token, first), state.priority
            attempts, before = state.max_attempts, state.last_event
            if before > newest or not before:
                newest = before or _NOT_TOLD
            ref = add_event(pack_event(heads[priority], job, lease, token, attempt, attempts, expires, before, text))
            if state.due_at_ms:
                writes.append((keyspace.DUE, keyspace.due(Due.TTL, state.due_at_ms, queue.number, job), None))
            leased = seal_state(
                V1, _LEASED, priority, state.reason, state.flags, attempt, attempts, state.replays, token,
                state.visible_at_ms, state.ended_at_ms, 0, ref, lease,
            )  # fmt: skip
            writes += ((keyspace.STATE, prefix + job, leased), (keyspace.READY, key, None))
            if state.flags & HAS_GROUP:
                groups.take(unit, queue.number, job, state, record.group)
            deliveries.append(
                Delivery(
                    name, job, lease, token, record.payload, attempt, attempts, priority, record.created_at_ms,
                    headers_of(record.headers, job) if record.headers else {}, key_of(record.key) if record.key else None,
                    record.group.decode() if record.group else None,
                )
            )  # fmt: skip
        if queue.meter:
            quota_usage.moved(unit, queue.meter, -len(deliveries), 0)
        self._put_lease(list(map(_job_of, deliveries)), list(map(_token_of, deliveries)), expires, newest)
        return Leased(name, lease, expires, deliveries)

    def _worker_text(self, left: int) -> bytes:
        """The worker's name, for the events of the next jobs: it stands in the journal row that they stand in."""
        self.unit.begin_events(min(left, EVENTS_A_ROW))
        return self.unit.text(self.request.worker)

    def segments(self, together: Together) -> Leased:
        """Lease jobs that are stored together. Requires: their events fit one row of the journal."""
        unit, queue, lease, expires = self.unit, self.queue, self.lease, self._expires()
        shares, in_turn = together.shares, together.in_turn
        ref = unit.begin_events(sum([share.taken for share in shares]))
        text = unit.text(self.request.worker) if self.request.worker else records.NO_TEXT
        jobs: list[bytes] = []
        tokens: list[int] = []
        payloads: list[bytes] = []
        attempts: list[int] = []
        max_attempts: list[int] = []
        priorities: list[int] = []
        created: list[int] = []
        newest, named = 0, False
        for share in shares:
            segment, count, places = share.segment, share.taken, share.places
            state, body = segment.state, segment.body
            priority, attempt, most = state.priority, state.attempt + 1, state.max_attempts
            taken, before = segment.jobs_at(places), segment.events_at(places)
            token = next_token(state.token, unit.first_token)
            alike = lease + records.pack_event_middle(token, attempt, most, expires, 0)[: -records.REF_BYTES]
            unit.add_events_alike(queue.claimed[priority], taken, alike, before, text)
            unit.tx.lease_together(share, lease, token, ref + len(jobs))
            if state.group:
                named = True
                groups.take_together(unit, queue.number, state.group, body.group, count)
            newest = max(newest, before[-1] or _NOT_TOLD)
            jobs += taken
            payloads += segment.payloads_at(places)
            tokens += repeat(token, count)
            attempts += repeat(attempt, count)
            max_attempts += repeat(most, count)
            priorities += repeat(priority, count)
            created += repeat(body.created_at_ms, count)
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
        """Write the lease over these jobs, of which `newest` is the last event that made one ready."""
        unit, queue, lease, identity = self.unit, self.queue, self.lease, self.identity
        tx, count, at = unit.tx, len(jobs), queue.prefix + lease
        tx.answers_after = newest >> REF_BITS
        claim_key = NO_ID if identity is None else identity.key
        tx.writes += (
            (LEASES, at, records.encode_new_lease(expires, unit.now, count, claim_key, self.request.worker.encode())),
            (LEASE_JOBS, at, records.encode_lease_jobs(jobs, tokens)),
            (keyspace.DUE, keyspace.due(_LEASE_DUE, expires, queue.number, lease), b""),
        )
        if tx.holds_leases:
            tx.hold(at, expires - unit.now)
        if identity is not None:
            tx.writes += (
                (keyspace.CLAIMS, queue.prefix + identity.key, records.encode_claim(lease, identity.asked)),
                (keyspace.DUE, keyspace.due(Due.CLAIM, expires + CLAIM_MEMORY_MS, queue.number, identity.key), b""),
            )
        if queue.limited:
            limits.take(unit, queue, count)
        adds, waiting, leased = tx.adds, queue.counters[_WAITING_COUNT], queue.counters[_LEASED_COUNT]
        adds[waiting] = adds.get(waiting, 0) - count
        adds[leased] = adds.get(leased, 0) + count
        # The waiter that leads the line plans for this lease's end too.
        unit.woken.setdefault(self.name, 1)


def headers_of(raw: bytes, job: bytes) -> dict[str, str]:
    return records.decode_headers(raw, job) if raw else {}


def key_of(raw: bytes) -> str | None:
    return raw.decode("utf-8", "replace") if raw else None
