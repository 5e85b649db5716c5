"""Records of request outcomes, rate buckets, idempotency keys and counters."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tenure.errors import Corrupt
from tenure.storage.checksum import crc32
from tenure.storage.records.framing import PART_BYTES, V1, damaged, seal, unseal
from tenure.storage.records.jobs import split_parts

#: Signed, so that a counter below zero is read as it was written.
_COUNT = Struct(">q")
pack_count = _COUNT.pack
#: A counter and the CRC of what `pack_count` made of it: the stored counter. For encoders that save a call.
seal_count = Struct(">qI").pack
_REQUEST = Struct(">BQ16sHB")


class RequestRecord(NamedTuple):
    """The outcome of a request made with an id. `answer` is the first part if `parts` is not 0."""

    version: int
    until_ms: int
    #: A digest of the verb and its arguments.
    asked: bytes
    parts: int
    failed: int
    answer: bytes


def encode_request(until_ms: int, asked: bytes, failed: bool, answer: bytes) -> tuple[bytes, list[bytes]]:
    """The outcome's row, and the encoded further parts of a large answer."""
    parts = split_parts(answer, PART_BYTES)
    return seal(_REQUEST.pack(V1, until_ms, asked, len(parts), failed) + answer[:PART_BYTES]), parts


def decode_request(value: bytes) -> RequestRecord:
    body = unseal("a request's outcome", value)
    if len(body) < _REQUEST.size:
        raise damaged("a request's outcome", value)
    return RequestRecord._make((*_REQUEST.unpack_from(body), body[_REQUEST.size :]))


_BUCKET = Struct(">BQ")


def encode_bucket(full_at_ns: int) -> bytes:
    return seal(_BUCKET.pack(V1, full_at_ns))


def decode_bucket(value: bytes | None) -> int:
    """When the bucket is full again, in nanoseconds of the store's time; 0 (full) without a row. Raises Corrupt."""
    if value is None:
        return 0
    body = unseal("a rate's bucket", value)
    if len(body) != _BUCKET.size:
        raise damaged("a rate's bucket", value)
    full_at_ns: int = _BUCKET.unpack(body)[1]
    return full_at_ns


_NUMBER = Struct(">BI")


def encode_number(number: int) -> bytes:
    """The value of a row of `job_queues`: the number of a job's queue."""
    return seal(_NUMBER.pack(V1, number))


def decode_number(value: bytes) -> int:
    body = unseal("the number of a job's queue", value)
    if len(body) != _NUMBER.size:
        raise damaged("the number of a job's queue", value)
    number: int = _NUMBER.unpack(body)[1]
    return number


_DEDUP = Struct(">B16s16sQ")


class DedupRecord(NamedTuple):
    version: int
    job: bytes
    payload_digest: bytes
    until_ms: int


def encode_dedup(job: bytes, payload_digest: bytes, until_ms: int) -> bytes:
    return seal(_DEDUP.pack(V1, job, payload_digest, until_ms))


def decode_dedup(value: bytes) -> DedupRecord:
    body = unseal("an idempotency key's row", value)
    if len(body) != _DEDUP.size:
        raise damaged("an idempotency key's row", value)
    return DedupRecord._make(_DEDUP.unpack(body))


COUNT_BYTES = 12  # 64 bits and their CRC


def encode_count(value: int) -> bytes:
    return seal_count(value, crc32(pack_count(value)))


def decode_count(value: bytes | None) -> int:
    if value is None:
        return 0
    if len(value) != COUNT_BYTES or crc32(value[:8]) != int.from_bytes(value[8:], "big"):
        raise Corrupt("a counter is damaged")
    count: int = _COUNT.unpack(value[:8])[0]
    return count  # may be below zero, which `check` reports
