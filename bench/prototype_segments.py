"""A prototype, not part of Tenure: a batch enqueued together, stored as one record until it must be split (ADR 0010).

    jobs    queue, segment        count, where each ends, payloads    one row for the batch
    state   queue, segment        as a state, and count, cursor, open
    ready   ..., segment          b"S"

Its jobs' ids follow the segment's own.

A claim of all of it leases the segment's one row. A claim of a part takes the next jobs from its front: they get their
own state rows, the segment records how far it was claimed and how many jobs are open, and its payloads stay until none
is. A nack or a cancel splits it into rows as they are now (`split`). It is written as bare as the bare layout, which it
is measured against: no API, no checks. `events="one"` also writes one journal event for a whole segment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from typing import Any, Literal

from rocksdict import WriteBatch

from bench import bare
from bench.bare import Bare, BareClient
from bench.lives import Contender, Lived, live, payloads_of
from bench.ours import Ours
from bench.rows import Row, Setting, paired_ratio, spread
from bench.runner import Run, Section
from tenure.model.job import Enqueued
from tenure.model.lease import Delivery, Settled
from tenure.storage.checksum import crc32
from tenure.storage.keyspace import Counter

_segment = Struct(">BBBBBIIIQQQQQ16sHHH")  # a state, and count, cursor, open
_member = Struct(">BBBBBIIIQQQQQ16s16s")  # a state, and its segment
_head = Struct(">BQH")
_two = Struct(">QQ")
Events = Literal["each", "one"]


class SegmentClient(BareClient):
    def __init__(self, whole: Bare, events: Events) -> None:
        super().__init__(whole)
        self._each = events == "each"

    # ── enqueue: three rows, however many jobs ───────────────────────────────────────────────────────────────────────

    def enqueue(self, payloads: Sequence[bytes]) -> object:
        now, count = int(time.time() * 1000), len(payloads)
        high, low = now << 16 | 0x7000, self._low
        self._low = low + count + 1
        segment, *ids = [bare._id(high, at) for at in range(low, low + count + 1)]
        self._commit += 1
        ref = self._commit << 10
        row = bare._PREFIX + segment
        batch = WriteBatch(raw_mode=True)
        ends = pack(f">{count + 1}I", *accumulate([len(payload) for payload in payloads], initial=0))
        batch.put(row, _sealed(_head.pack(1, now, count) + ends + b"".join(payloads)), self._jobs_cf)
        state = _segment.pack(
            1, bare._WAITING, 0, 0, 0, 0, bare._MAX_ATTEMPTS, 0, 0, now, 0, 0, ref, bare._NO_ID, count, 0, count
        )
        batch.put(row, _sealed(state), self._state_cf)
        batch.put(bare._TIER + bare._u64(now) + segment, b"S", self._ready_cf)
        tail = bare._NO_ID + bare._event_middle(0, 0, bare._MAX_ATTEMPTS, now, 0) + bare._NO_TEXT
        event_rows = ids if self._each else ids[:1]
        events = bare._ENQUEUED_HEAD + (tail + bare._ENQUEUED_HEAD).join(event_rows) + tail
        self.waiting += count
        self.enqueued += count
        self._finish(
            batch, now, len(event_rows), events, Counter.WAITING, self.waiting, Counter.ENQUEUED, self.enqueued
        )
        return [Enqueued(job.hex()) for job in ids]

    # ── claim: all of it, or the next from its front ─────────────────────────────────────────────────────────────────

    def claim(self, limit: int) -> Sequence[Any]:
        now = int(time.time() * 1000)
        iterator = self._ready.iter(bare._until(bare._TIER + bare._u64(now + 1)))
        iterator.seek(self._head)
        if not iterator.valid():
            return []
        self._head = key = iterator.key()
        segment = key[13:]
        row = bare._PREFIX + segment
        fields = _segment.unpack_from(self._get_state(row))
        count, cursor, open_ = fields[14:]
        body = self._get_job(row)
        _, created, _ = _head.unpack_from(body)
        taken = min(limit, count - cursor)
        payloads = _payloads(body, count, cursor, taken)
        high, low = _two.unpack(segment)
        ids = [bare._id(high, low + index) for index in range(cursor + 1, cursor + 1 + taken)]
        lease = bare._id(now << 16 | 0x7000, self._low)
        self._low += 1
        expires = now + bare._LEASE_MS
        self._commit += 1
        ref, last = self._commit << 10, fields[12] + (cursor if self._each else 0)
        attempt, token = fields[5] + 1, fields[8] + 1
        batch = WriteBatch(raw_mode=True)
        if taken == count:
            state = _segment.pack(
                1, bare._LEASED, 0, 0, 0, attempt, bare._MAX_ATTEMPTS, 0, token, fields[9], 0, 0, ref, lease,
                count, count, open_,
            )  # fmt: skip
            batch.put(row, _sealed(state), self._state_cf)
            given = b"S" + segment
        else:
            put, state_cf = batch.put, self._state_cf
            for index, job in enumerate(ids):
                state = _member.pack(
                    1, bare._LEASED, 0, 0, 0, attempt, bare._MAX_ATTEMPTS, 0, token, fields[9], 0, 0, ref + index,
                    lease, segment,
                )  # fmt: skip
                put(bare._PREFIX + job, _sealed(state), state_cf)
            batch.put(row, _sealed(_segment.pack(*fields[:15], cursor + taken, open_)), self._state_cf)
            given = b"".join([bare._lease_job(job, token) for job in ids])
        if cursor + taken == count:
            batch.delete(key, self._ready_cf)
        self._put_lease(batch, now, expires, lease, taken, given)
        events = self._event_group(bare._CLAIMED_HEAD, ids, lease, token, attempt, expires, last)
        self.waiting -= taken
        self.leased += taken
        self._finish(
            batch, now, taken if self._each else 1, events, Counter.WAITING, self.waiting, Counter.LEASED, self.leased
        )
        name, most = self._name, bare._MAX_ATTEMPTS
        return [
            Delivery(name, job, lease, token, payload, attempt, most, 0, created, {})
            for job, payload in zip(ids, payloads, strict=True)
        ]

    def _event_group(
        self, head: bytes, ids: list[bytes], lease: bytes, token: int, attempt: int, at_ms: int, last: int
    ) -> bytes:
        middle, most, none = bare._event_middle, bare._MAX_ATTEMPTS, bare._NO_TEXT
        if not self._each:
            return head + ids[0] + lease + middle(token, attempt, most, at_ms, last) + none
        return b"".join([
            head + job + lease + middle(token, attempt, most, at_ms, last + index) + none
            for index, job in enumerate(ids)
        ])  # fmt: skip

    # ── ack: all of it, or jobs of it ────────────────────────────────────────────────────────────────────────────────

    def ack(self, claimed: Sequence[Any]) -> object:
        now, count = int(time.time() * 1000), len(claimed)
        lease, token, attempt = claimed[0].lease, claimed[0].token, claimed[0].attempt
        at_lease = bare._PREFIX + lease
        raw_lease = self._get_lease(at_lease)
        given = self._get_lease_jobs(at_lease)
        batch = WriteBatch(raw_mode=True)
        delete, state_cf = batch.delete, self._state_cf
        ids = [delivery.job for delivery in claimed]
        if given[1:2] == b"S":
            row = bare._PREFIX + given[2:18]
            last = _segment.unpack_from(self._get_state(row))[12]
            delete(row, self._jobs_cf)
            delete(row, state_cf)
        else:
            rows = [bare._PREFIX + job for job in ids]
            states = self._get_state(rows)
            members = [_member.unpack_from(state) for state in states]
            last, row = members[0][12], bare._PREFIX + members[0][14]
            fields = _segment.unpack_from(self._get_state(row))
            for at in rows:
                delete(at, state_cf)
            if fields[16] == count:
                delete(row, self._jobs_cf)
                delete(row, state_cf)
            else:
                batch.put(row, _sealed(_segment.pack(*fields[:16], fields[16] - count)), state_cf)
        self._delete_lease(batch, lease, at_lease, raw_lease)
        self._commit += 1
        events = self._event_group(bare._DONE_HEAD, ids, lease, token, attempt, 0, last)
        self.leased -= count
        self.removed += count
        self._finish(
            batch, now, count if self._each else 1, events, Counter.LEASED, self.leased, Counter.REMOVED, self.removed
        )
        return Settled([job.hex() for job in ids], [])

    # ── what a nack or a cancel of one of its jobs would have to do first ────────────────────────────────────────────

    def split(self, claimed: Sequence[Any]) -> None:
        """Turn a leased segment into rows as they are now, all under its lease."""
        lease = claimed[0].lease
        row = bare._PREFIX + self._get_lease_jobs(bare._PREFIX + lease)[2:18]
        fields = _segment.unpack_from(self._get_state(row))
        body = self._get_job(row)
        created, count = _head.unpack_from(body)[1:]
        batch = WriteBatch(raw_mode=True)
        given = []
        for delivery, payload in zip(claimed, _payloads(body, count, 0, count), strict=True):
            key = bare._PREFIX + delivery.job
            batch.put(key, _sealed(bare._job(1, created, 0, 0, 0, len(payload)) + payload), self._jobs_cf)
            batch.put(key, _sealed(bare._state(*fields[:14])), self._state_cf)
            given.append(bare._lease_job(delivery.job, delivery.token))
        batch.delete(row, self._jobs_cf)
        batch.delete(row, self._state_cf)
        batch.put(bare._PREFIX + lease, _sealed(b"\x01" + b"".join(given)), self._lease_jobs_cf)
        self._db.write(batch)


def _payloads(body: bytes, count: int, cursor: int, taken: int) -> list[bytes]:
    """Return the payloads from `cursor` on: their ends are stored before all of them."""
    ends = unpack_from(f">{taken + 1}I", body, _head.size + 4 * cursor)
    start = _head.size + 4 * (count + 1)
    return [body[start + begin : start + end] for begin, end in pairwise(ends)]


def _sealed(body: bytes) -> bytes:
    return body + crc32(body).to_bytes(4, "big")


# ── measurements ─────────────────────────────────────────────────────────────────────────────────────────────────────


def rows(run: Run) -> Iterator[Row]:
    """Measure batches of 100 enqueued together, claimed and acked 100, 10 and 1 at a time."""
    payloads = payloads_of(100, 128)
    for limit in (100, 10, 1):
        with ExitStack() as stack:
            contenders: dict[str, Contender] = {
                "bare layout": Bare(run.new_folder("bare"), "os"),
                "segments": Bare(run.new_folder("s"), "os", lambda whole: SegmentClient(whole, "each")),
                "segments, one event": Bare(run.new_folder("s1"), "os", lambda whole: SegmentClient(whole, "one")),
                "Tenure (rocksdb)": Ours(run.new_folder("ours"), "os"),
            }
            for contender in contenders.values():
                stack.callback(contender.close)
            lived = {name: Lived(name) for name in contenders}
            for turn in range(run.rounds + 1):
                for name, contender in contenders.items():
                    began = time.perf_counter()
                    jobs, stages = live(contender.client(), payloads, began + run.seconds, limit)
                    if turn:
                        lived[name].rates.append(jobs / (time.perf_counter() - began))
                        lived[name].jobs += jobs
                        lived[name].stages = [a + b for a, b in zip(lived[name].stages, stages, strict=True)]
            for name, one in lived.items():
                middle, low, high = spread(one.rates)
                row = Row("segments", f"{name}, claims of {limit}", Setting("os", 100), middle, "lives/s", low, high)
                row.note = one.parts()
                if name != "bare layout":
                    row.ratio = paired_ratio(one.rates, lived["bare layout"].rates)
                    row.ratio_of = "to the bare layout"
                yield row
            if limit == 100:
                yield _splitting(run, contenders["segments"].client(), payloads)


def _splitting(run: Run, client: Any, payloads: list[bytes]) -> Row:
    took = []
    for _ in range(run.pick(2, 200, 500)):
        client.enqueue(payloads)
        claimed = client.claim(100)
        began = time.perf_counter()
        client.split(claimed)
        took.append((time.perf_counter() - began) * 1e6 / 100)
    middle, low, high = spread(took)
    return Row("segments", "splitting a leased segment of 100", Setting("os", 100), middle, "µs a job", low, high)


SECTION = Section(
    "segments",
    "the prototype of ADR 0010: a batch of 100 as one record, beside the bare layout",
    "this one / the bare layout, the median of the rounds' ratios",
    rows,
    sizes=("quick", "full"),
)
