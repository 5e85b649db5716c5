"""A segment: jobs that were enqueued together and have the same state, stored as one record.

The immutable fields (ids, payloads) are one value, the state another, small one. Readers make from them the rows of
`jobs` and `state` that each job would have, byte for byte.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from struct import Struct, calcsize
from typing import NamedTuple

from tenure.storage.checksum import LONG, crc32, crc32_held
from tenure.storage.records.framing import V1, V1_BYTE, V2, damaged, new_tuple, pack_crc, seal, unpack_crc, unseal
from tenure.storage.records.jobs import encode_plain_jobs, plain_job_head
from tenure.storage.records.states import HAS_GROUP, STATE_ALIKE, alike_states, pack_state

_SEGMENT = Struct(">BHQ")  # version, jobs, created
_HEAD = _SEGMENT.size
_JOB = 16 + 4 + 4  # id, payload bytes, CRC of its row in `jobs`
_GROUP_LENGTH = Struct(">H")
_SEGMENT_STATE = Struct(">BBBIIQQQH16s16s16s")
_GROUP_SEGMENT_STATE = Struct(_SEGMENT_STATE.format + "16s")
#: Where the fields `last_event`, `first` and `first_job` begin.
_PLACES = calcsize(">BBBIIQQ"), calcsize(">BBBIIQQQ"), calcsize(">BBBIIQQQH")
_pack_plain_state, _pack_group_state = _SEGMENT_STATE.pack, _GROUP_SEGMENT_STATE.pack
_SEGMENT_STATES = {V1: _SEGMENT_STATE, V2: _GROUP_SEGMENT_STATE}


@lru_cache(256)
def _numbers(count: int) -> Struct:
    return Struct(f">{count}I")


@lru_cache(64)
def _head_sum(created_at_ms: int, size: int, group: bytes) -> int:
    """The checksum of how the rows in `jobs` begin that have a payload of this size."""
    return crc32(plain_job_head(created_at_ms, size, group))


@lru_cache(256)
def _pieces(count: int, size: int) -> Struct:
    """Unpacks `count` pieces of `size` bytes in one call."""
    return Struct(f"{size}s" * count)


@lru_cache(256)
def _job_row(head: int, size: int) -> Callable[..., bytes]:
    return Struct(f">{head}s{size}sI").pack


class SegmentStateRecord(NamedTuple):
    """The state that all jobs of a segment share; only their last events differ."""

    version: int
    state: int
    priority: int
    attempt: int
    max_attempts: int
    token: int
    visible_at_ms: int
    #: The last event of the job at index 0, even if that job has left; the event of the job at index n is n further.
    last_event: int
    #: The index of the first job that has not left the segment.
    first: int
    #: Its id. With the last id, which is the key, it bounds the ids in the segment.
    first_job: bytes
    lease: bytes
    #: A bit for each index whose job has left, the lowest for index 0. Bits below `first` are not maintained.
    gone: bytes
    #: Version 2: the digest of the jobs' common group. Empty: they have none.
    group: bytes = b""


def encode_segment_state(state: SegmentStateRecord) -> bytes:
    body = _pack_group_state(*state) if state[-1] else _pack_plain_state(*state[:-1])
    return body + pack_crc(crc32(body))


def alike_segment_states(state: SegmentStateRecord) -> Callable[[int, bytes], bytes]:
    """Encode the states of segments that differ from `state` only in `last_event` and `first_job`, the arguments of each
    call.
    """
    body = encode_segment_state(state)[:-4]
    last_event, first, first_job = _PLACES
    pack = Struct(f">{last_event}sQ{first_job - first}s16s{len(body) - first_job - 16}s").pack
    before, between, after = body[:last_event], body[first:first_job], body[first_job + 16 :]

    def encode(event: int, job: bytes) -> bytes:
        made: bytes = pack(before, event, between, job, after)
        return made + pack_crc(crc32(made))

    return encode


def decode_segment_state(value: bytes) -> SegmentStateRecord:
    body = value[:-4]
    struct = _SEGMENT_STATES.get(value[0]) if value else None
    if struct is None or len(body) != struct.size or crc32(body) != unpack_crc(value, len(body))[0]:
        raise damaged("the state of a segment", value)
    fields = struct.unpack(body)
    return new_tuple(SegmentStateRecord, fields if struct is not _SEGMENT_STATE else (*fields, b""))


def encode_segment_mark(last_job: bytes) -> bytes:
    """The value of a segment's row in `segment_ready`: its last job, which is the segment's key."""
    return seal(V1_BYTE + last_job)


def decode_segment_mark(value: bytes) -> bytes:
    body = unseal("the place of a segment", value)
    if len(body) != 17:
        raise damaged("the place of a segment", value)
    return body[1:]


def encode_segment(created_at_ms: int, jobs: Sequence[bytes], payloads: Sequence[bytes], group: bytes = b"") -> bytes:
    """Encode a segment; ids in ascending order. It stores the CRC that each job's row in `jobs` would have."""
    return encode_packed_segment(created_at_ms, b"".join(jobs), payloads, b"".join(payloads), group)


def encode_packed_segment(
    created_at_ms: int,
    jobs: bytes | memoryview,
    payloads: Sequence[bytes],
    packed: bytes | memoryview,
    group: bytes = b"",
    width: int = 0,
) -> bytes:
    """As `encode_segment`, with the ids joined in `jobs` and the payloads joined in `packed`.

    `width` is the length of every payload, 0 if the caller does not know that they have one length.
    """
    count, longest = len(payloads), width or max(map(len, payloads))
    summed = crc32 if longest <= LONG else crc32_held
    if longest * count == len(packed):  # all payloads have one length
        begin = _head_sum(created_at_ms, longest, group)
        packed_sizes, sums = pack_crc(longest) * count, map(summed, payloads, repeat(begin))
    else:
        sizes = list(map(len, payloads))
        begins = {size: crc32(plain_job_head(created_at_ms, size, group)) for size in set(sizes)}
        packed_sizes, sums = _numbers(count).pack(*sizes), map(summed, payloads, map(begins.__getitem__, sizes))
    named = _GROUP_LENGTH.pack(len(group)) + group if group else b""
    first = _SEGMENT.pack(V2 if group else V1, count, created_at_ms)
    head = b"".join((first, jobs, packed_sizes, _numbers(count).pack(*sums), named))
    head += pack_crc(crc32(head))
    return b"".join((head, packed, pack_crc(crc32_held(packed, crc32(head)))))


class NewSegment:
    """The immutable fields of a segment that this process has just made."""

    __slots__ = ("_jobs", "_payloads", "count", "created_at_ms", "group", "size_bytes")

    #: Whether all payloads are undamaged.
    whole = True

    def __init__(
        self, created_at_ms: int, jobs: Sequence[bytes], payloads: Sequence[bytes], group: bytes = b""
    ) -> None:
        """`group`: the name of the jobs' common group; empty: none."""
        self.count, self.created_at_ms, self.group = len(jobs), created_at_ms, group
        self._jobs: list[bytes] | None = list(jobs)
        self._payloads = list(payloads)
        #: About how much memory the ids and payloads take.
        self.size_bytes = 16 * self.count + sum(map(len, self._payloads))

    def encode(self) -> bytes:
        return encode_segment(self.created_at_ms, self.jobs, self._payloads, self.group)

    @property
    def jobs(self) -> list[bytes]:
        return self._jobs or []

    def job(self, place: int) -> bytes:
        return self.jobs[place]

    def payloads(self, first: int, end: int) -> list[bytes]:
        return self._payloads[first:end]

    def job_rows(self, first: int, end: int) -> list[bytes]:
        """The rows in `jobs` of the jobs at these indexes."""
        return encode_plain_jobs(self.created_at_ms, self._payloads[first:end], self.group)

    def place(self, job: bytes) -> int:
        """The index of a job; -1 if it is not in the segment."""
        jobs = self.jobs
        at = bisect_left(jobs, job)
        return at if at < self.count and jobs[at] == job else -1


class Segment(NewSegment):
    """The immutable fields of a stored segment, decoded on demand."""

    __slots__ = ("ids", "payloads_at", "size", "sums_at", "value", "whole")

    def __init__(self, value: bytes) -> None:
        """Raises Corrupt if the ids cannot be read.

        If only payloads are damaged, `whole` is False, and the other jobs can be read.
        """
        end = len(value) - 4
        self.whole = end > _HEAD + 4 and crc32_held(memoryview(value)[:end]) == unpack_crc(value, end)[0]
        version, count, created = _SEGMENT.unpack_from(value) if end > _HEAD else (0, 0, 0)
        at = _HEAD + count * _JOB
        self.group = b""
        if version == V2 and end >= at + _GROUP_LENGTH.size:
            named = at + _GROUP_LENGTH.size
            at = named + _GROUP_LENGTH.unpack_from(value, at)[0]
            self.group = value[named:at]
        if not self.whole and (end < at + 4 or crc32(value[:at]) != unpack_crc(value, at)[0]):
            raise damaged("a segment", value)
        if version != (V2 if self.group else V1) or not count:
            raise damaged("a segment", value)
        self.count: int = count
        self.created_at_ms: int = created
        self._jobs = None
        self.value, self.size_bytes = value, len(value)
        #: The offsets of the ids, the checksums and the payloads.
        self.ids = _HEAD
        self.sums_at = _HEAD + count * 20
        self.payloads_at = at + 4
        sizes = value[_HEAD + count * 16 : self.sums_at]
        #: The size of each payload; None if they differ.
        self.size = int.from_bytes(sizes[:4], "big") if sizes == sizes[:4] * count else None
        if at + 4 + (sum(self.sizes) if self.size is None else self.size * count) != end:
            raise damaged("a segment", value)

    @property
    def jobs(self) -> list[bytes]:
        jobs = self._jobs
        if jobs is None:
            jobs = self._jobs = list(_pieces(self.count, 16).unpack_from(self.value, _HEAD))
        return jobs

    def job(self, place: int) -> bytes:
        return self.value[_HEAD + place * 16 : _HEAD + place * 16 + 16]

    @property
    def sizes(self) -> Sequence[int]:
        return _numbers(self.count).unpack_from(self.value, _HEAD + self.count * 16)

    def payloads(self, first: int, end: int) -> list[bytes]:
        value, start, size = self.value, self.payloads_at, self.size
        if size is not None:
            return list(_pieces(end - first, size).unpack_from(value, start + first * size))
        places = list(accumulate(self.sizes[:end], initial=start))[first:]
        return [value[at:until] for at, until in pairwise(places)]

    def job_rows(self, first: int, end: int) -> list[bytes]:
        """The rows in `jobs` of the jobs at these indexes, with the stored CRCs. A damaged payload does not match."""
        payloads, size = self.payloads(first, end), self.size
        sums = _numbers(end - first).unpack_from(self.value, self.sums_at + first * 4)
        if size is not None:
            head = self._head(size)
            return list(map(_job_row(len(head), size), repeat(head), payloads, sums))
        heads = {size: (_job_row(len(head := self._head(size)), size), head) for size in set(self.sizes)}
        return [
            (of_size := heads[len(payload)])[0](of_size[1], payload, stored_sum)
            for payload, stored_sum in zip(payloads, sums, strict=True)
        ]

    def _head(self, size: int) -> bytes:
        return plain_job_head(self.created_at_ms, size, self.group)

    def payload_bytes(self, first: int, end: int) -> int:
        """The sum of the payloads' sizes at these indexes."""
        return sum(self.sizes[first:end]) if self.size is None else self.size * (end - first)

    # Slices of the value, for readers that decode columns.

    def packed_ids(self, first: int, end: int) -> bytes:
        return self.value[self.ids + first * 16 : self.ids + end * 16]

    def packed_sizes(self, first: int, end: int) -> bytes:
        """The payloads' sizes, as big-endian u32."""
        at = self.ids + self.count * 16
        return self.value[at + first * 4 : at + end * 4]

    def packed_payloads(self, first: int, end: int) -> memoryview:
        value = memoryview(self.value)
        if self.size is not None:
            return value[self.payloads_at + first * self.size : self.payloads_at + end * self.size]
        begin = self.payloads_at + self.payload_bytes(0, first)
        return value[begin : begin + self.payload_bytes(first, end)]


def segment_state_row(state: SegmentStateRecord) -> bytes:
    """The body of its jobs' rows in `state`, with 0 for the last event and without the CRC."""
    return pack_state(
        V1, state.state, state.priority, 0, HAS_GROUP if state.group else 0, state.attempt, state.max_attempts, 0,
        state.token, state.visible_at_ms, 0, 0, 0, state.lease,
    )  # fmt: skip


def segment_state_rows(state: SegmentStateRecord, first: int, end: int) -> list[bytes]:
    """The rows in `state` of the jobs at these indexes."""
    alike = segment_state_row(state)[:STATE_ALIKE]
    return alike_states(alike, state.lease, range(state.last_event + first, state.last_event + end))
