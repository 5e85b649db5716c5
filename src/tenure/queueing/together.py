"""Jobs that are enqueued, claimed and settled together, as one thing: a segment (`storage.segments`).

These do what the general verbs do, for the commonest batches, in a handful of rows: plain jobs, a claim that takes the
next of them, an ack of all that a lease was given. Whatever else they meet, they leave to the general verbs (None, or
False), having written nothing. Events are written for each job, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat

from tenure.model.lease import DeliveryColumns
from tenure.model.lifecycle import State
from tenure.queueing.ledger import Ledger
from tenure.queueing.registry import Registered
from tenure.storage import keyspace, records
from tenure.storage.segments import Kept, SegmentedTransaction

_WAITING, _LEASED = int(State.WAITING), int(State.LEASED)
#: Segments that one claim or ack handles; more are left to the general verbs.
_SEGMENTS = 64


# ── enqueue ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def put_waiting(
    tx: SegmentedTransaction, queue: Registered, now_ms: int, jobs: Sequence[bytes], payloads: Sequence[bytes], ref: int
) -> bool:
    """Plain jobs whose events stand side by side, the first at `ref`. False: as segments they would gain nothing."""
    each = min(tx.MOST, tx.MOST_BYTES // (max(map(len, payloads)) + 1))
    if (
        each < tx.LEAST
        or len(jobs) < tx.LEAST
        or not tx.worthwhile(queue.prefix)
        or (tx.there and not tx.vacant(queue.prefix + jobs[0], queue.prefix + jobs[-1]))
    ):
        return False
    place = keyspace.ready_from(queue.number, 0, now_ms)
    max_attempts = queue.policy.max_attempts
    for begin in range(0, len(jobs), each):
        end = begin + each
        tx.put_segment(
            queue.prefix, jobs[begin:end], payloads[begin:end], now_ms, max_attempts, place, ref + begin
        )  # fmt: skip
    return True


# ── claim ────────────────────────────────────────────────────────────────────────────────────────────────────────────

Share = tuple[Kept, int]
"""A segment, and how many of its first jobs a claim takes."""


def first_in_line(tx: SegmentedTransaction, tiers: Sequence[bytes], now_ms: int, limit: int) -> list[Share] | None:
    """What a claim takes, if that is whole segments and the beginning of one more, and nothing else comes before."""
    if not tx.there or limit < tx.LEAST:
        return None
    until = keyspace.commit(now_ms + 1)
    shares: list[Share] = []
    left = limit
    for tier in tiers:
        end = tier + until
        stored = tx.inner.keys(keyspace.READY, tier, end, 1)
        for kept in tx.marked(tier, end, left // tx.MOST + 2):
            if isinstance(kept, bytes) or not kept.body.whole:
                return None  # damaged: the general way passes it
            take = min(kept.count, left)
            if stored and stored[0] < kept.ready_place + kept.body.jobs[kept.places[take - 1]]:
                return None
            if take < kept.count and take < tx.LEAST:
                return None
            shares.append((kept, take))
            left -= take
            if not left:
                return shares
            if len(shares) >= _SEGMENTS:
                return None
        if stored:
            return None  # the rest of the claim is to come from there
    return shares or None


def lease(
    ledger: Ledger,
    tx: SegmentedTransaction,
    queue: Registered,
    shares: Sequence[Share],
    lease: bytes,
    expires_ms: int,
    worker: str,
) -> DeliveryColumns | None:
    """Give these jobs to a lease. None: their events do not fit one row of the journal."""
    count = sum([take for _, take in shares])
    if not ledger.fits(count):
        return None
    ((_, _, ref, said),) = ledger.room(count, worker)
    jobs: list[bytes] = []
    payloads: list[bytes] = []
    for kept, take in shares:
        state, places = kept.state, kept.places[:take]
        theirs, bodies = kept.jobs_at(places), kept.payloads_at(places)
        middle = records.pack_event_middle(state.token + 1, state.attempt + 1, state.max_attempts, expires_ms, 0)[:-8]
        _tell(ledger, queue.claimed[state.priority], theirs, lease + middle, kept.events_at(places), said)
        tx.lease_segment(kept, take, bodies, _LEASED, lease, ref + len(jobs))
        jobs += theirs
        payloads += bodies
    return DeliveryColumns(
        jobs,
        _each(shares, lambda kept: kept.state.token + 1),
        payloads,
        _each(shares, lambda kept: kept.state.attempt + 1),
        _each(shares, lambda kept: kept.state.max_attempts),
        _each(shares, lambda kept: kept.state.priority),
        _each(shares, lambda kept: kept.body.created_at_ms),
    )


def _each(shares: Sequence[Share], field: Callable[[Kept], int]) -> tuple[int, ...]:
    return tuple(chain.from_iterable([repeat(field(kept), take) for kept, take in shares]))


def _tell(
    ledger: Ledger, head: bytes, jobs: Sequence[bytes], middle: bytes, previous: Sequence[int], said: bytes
) -> None:
    """An event for each job: they differ in the job, and in the event before."""
    ledger.put_events(list(map(records.pack_alike_event, repeat(head), jobs, repeat(middle), previous, repeat(said))))


# ── ack ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def held(
    tx: SegmentedTransaction, queue: Registered, lease: bytes, jobs: Sequence[bytes], tokens: Sequence[int]
) -> list[Kept] | None:
    """The segments that these jobs are, whole and in order, if this lease holds them with these tokens."""
    if not tx.there or len(jobs) < tx.LEAST:
        return None
    found: list[Kept] = []
    for kept, at in _segments_of(tx, queue.prefix, jobs):
        end = at + kept.count
        state = kept.state
        if (
            state.state != _LEASED
            or state.lease != lease
            or kept.jobs != list(jobs[at:end])
            or tokens[at:end].count(state.token) != kept.count
            or len(found) >= _SEGMENTS
        ):
            return None
        found.append(kept)
    return found or None


def _segments_of(tx: SegmentedTransaction, prefix: bytes, jobs: Sequence[bytes]) -> Iterator[tuple[Kept, int]]:
    """The segment of the first job, then that of the first job behind it, and so on; nothing if one is in none."""
    at = 0
    found: list[tuple[Kept, int]] = []
    while at < len(jobs):
        holding = tx.holding(prefix + jobs[at])
        if holding is None:
            return
        found.append((holding[0], at))
        at += holding[0].count
    yield from found


def remove_done(
    ledger: Ledger, tx: SegmentedTransaction, queue: Registered, segments: Sequence[Kept], lease: bytes
) -> None:
    """Done, and not kept: gone in the same step."""
    for kept in segments:
        state = kept.state
        middle = records.pack_event_middle(state.token, state.attempt, state.max_attempts, 0, 0)[:-8]
        previous = kept.events_at(kept.places)
        _tell(ledger, queue.done[state.priority], kept.jobs, lease + middle, previous, records.NO_TEXT)
        tx.delete_segment(kept)
