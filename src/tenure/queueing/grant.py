"""Granting a claim: its jobs are leased, and the lease itself is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from tenure.model.ids import NO_ID
from tenure.model.lease import ClaimRequest, Delivery, DeliveryColumns, Leased
from tenure.model.lifecycle import State
from tenure.model.names import QueueName
from tenure.queueing import groups, limits, quota_usage
from tenure.queueing.leases import CLAIM_MEMORY_MS
from tenure.queueing.registry import RegisteredQueue
from tenure.queueing.selection import Selection
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.keyspace import LEASE_JOBS, LEASES, Counter, Due
from tenure.storage.records import EVENTS_A_ROW, HAS_GROUP, NO_TEXT, V1, pack_event, seal_state
from tenure.storage.segments.stored import SegmentShare, StoredSegment

_LEASED = int(State.LEASED)
_LEASE_DUE = int(Due.LEASE)
_WAITING_COUNT, _LEASED_COUNT = int(Counter.WAITING), int(Counter.LEASED)


class ClaimIdentity(NamedTuple):
    """Digests of a claim's id, and of what it asked for."""

    key: bytes
    asked: bytes


class Grant:
    """One lease, over the jobs that one transaction gives to it."""

    __slots__ = ("_expires", "_identity", "_lease", "_name", "queue", "request", "unit")

    def __init__(
        self,
        unit: UnitOfWork,
        queue: RegisteredQueue,
        name: QueueName,  # the caller's own object, by which it knows its deliveries again
        request: ClaimRequest,
        lease: bytes,
        identity: ClaimIdentity | None,
    ) -> None:
        self.unit, self.queue, self._name, self.request = unit, queue, name, request
        self._lease, self._identity = lease, identity
        self._expires = unit.now + (request.lease_ms or queue.lease_ms)

    def rows(self, found: Selection) -> Leased:
        """Lease jobs that are stored as rows."""
        unit, queue, name, lease, expires = self.unit, self.queue, self._name, self._lease, self._expires
        prefix, writes, add_event, heads = queue.prefix, unit.tx.writes, unit.add_event, queue.claimed
        deliveries = []
        text = NO_TEXT
        for index, (key, job, state, record) in enumerate(found.jobs):
            if self.request.worker and not index % EVENTS_A_ROW:
                text = self._worker_text(len(found.jobs) - index)
            attempt, token, priority = state.attempt + 1, state.token + 1, state.priority
            attempts = state.max_attempts
            ref = add_event(
                pack_event(heads[priority], job, lease, token, attempt, attempts, expires, state.last_event, text)
            )
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
                )
            )  # fmt: skip
        if queue.meter:
            quota_usage.moved(unit, queue.meter, -len(deliveries), 0)
        self._put_lease([each.job for each in deliveries], [each.token for each in deliveries])
        return Leased(name, lease, expires, deliveries)

    def _worker_text(self, left: int) -> bytes:
        """The worker's name, for the events of the next jobs: it stands in the journal row that they stand in."""
        self.unit.begin_events(min(left, EVENTS_A_ROW))
        return self.unit.text(self.request.worker)

    def segments(self, shares: Sequence[SegmentShare]) -> Leased:
        """Lease jobs that are stored together. Requires: their events fit one row of the journal."""
        unit, queue, lease = self.unit, self.queue, self._lease
        ref = unit.begin_events(sum([share.taken for share in shares]))
        text = unit.text(self.request.worker) if self.request.worker else records.NO_TEXT
        jobs: list[bytes] = []
        payloads: list[bytes] = []
        for share in shares:
            segment, state, places = share.segment, share.segment.state, share.places
            taken = segment.jobs_at(places)
            middle = (
                lease
                + records.pack_event_middle(state.token + 1, state.attempt + 1, state.max_attempts, self._expires, 0)[
                    : -records.REF_BYTES
                ]
            )
            unit.add_events_alike(queue.claimed[state.priority], taken, middle, segment.events_at(places), text)
            unit.tx.lease_together(share, lease, ref + len(jobs))
            jobs += taken
            payloads += segment.payloads_at(places)
        tokens = _each(shares, lambda segment: segment.state.token + 1)
        self._put_lease(jobs, tokens)
        return Leased(
            self._name,
            lease,
            self._expires,
            columns=DeliveryColumns(
                jobs,
                tokens,
                payloads,
                _each(shares, lambda segment: segment.state.attempt + 1),
                _each(shares, lambda segment: segment.state.max_attempts),
                _each(shares, lambda segment: segment.state.priority),
                _each(shares, lambda segment: segment.body.created_at_ms),
            ),
        )

    def _put_lease(self, jobs: Sequence[bytes], tokens: Sequence[int]) -> None:
        """Write the lease over these jobs."""
        unit, queue, request, lease, expires = self.unit, self.queue, self.request, self._lease, self._expires
        count, identity, at = len(jobs), self._identity, queue.prefix + lease
        claim_key = NO_ID if identity is None else identity.key
        unit.tx.writes += (
            (LEASES, at, records.encode_new_lease(expires, unit.now, count, claim_key, request.worker.encode())),
            (LEASE_JOBS, at, records.encode_lease_jobs(jobs, tokens)),
            (keyspace.DUE, keyspace.due(_LEASE_DUE, expires, queue.number, lease), b""),
        )
        if unit.tx.holds_leases:
            unit.tx.hold(at, expires - unit.now)
        if identity is not None:
            unit.tx.writes += (
                (keyspace.CLAIMS, queue.prefix + identity.key, records.encode_claim(lease, identity.asked)),
                (keyspace.DUE, keyspace.due(Due.CLAIM, expires + CLAIM_MEMORY_MS, queue.number, identity.key), b""),
            )
        if queue.limited:
            limits.take(unit, queue, count)
        unit.tx.add(queue.counters[_WAITING_COUNT], -count)
        unit.tx.add(queue.counters[_LEASED_COUNT], count)
        # The waiter that leads the line plans for this lease's end too.
        unit.woken[self._name] = max(unit.woken.get(self._name, 0), 1)


def _each(shares: Sequence[SegmentShare], field: Callable[[StoredSegment], int]) -> tuple[int, ...]:
    return tuple(chain.from_iterable([repeat(field(share.segment), share.taken) for share in shares]))


def headers_of(raw: bytes, job: bytes) -> dict[str, str]:
    return records.decode_headers(raw, job) if raw else {}


def key_of(raw: bytes) -> str | None:
    return raw.decode("utf-8", "replace") if raw else None
