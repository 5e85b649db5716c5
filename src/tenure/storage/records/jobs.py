"""The immutable row of a job, and the further parts of a large payload."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

import msgspec

from tenure.errors import Corrupt
from tenure.storage.checksum import LONG, crc32, crc32_held
from tenure.storage.records.framing import (
    PART_BYTES,
    V1,
    V1_BYTE,
    V2,
    encode_msgpack,
    new_tuple,
    pack_crc,
    seal,
    unpack_crc,
    unseal,
)

_JOB = Struct(">BQHHII")  # version, created, parts, key bytes, headers bytes, payload bytes in all
pack_job = _JOB.pack


class JobRecord(NamedTuple):
    """The immutable fields of a job. `payload` is the first part if `parts` is not 0."""

    created_at_ms: int
    parts: int
    key: bytes
    headers: bytes
    payload_bytes: int
    payload: bytes
    group: bytes


def encode_plain_job(created_at_ms: int, payload: bytes) -> bytes:
    """As `encode_job`, for a job that has only a payload of one part."""
    body = pack_job(V1, created_at_ms, 0, 0, 0, len(payload)) + payload
    return body + pack_crc(crc32(body) if len(body) <= LONG else crc32_held(body))


def plain_job_head(created_at_ms: int, size: int, group: bytes = b"") -> bytes:
    """The head of a job's row before its payload of `size` bytes, for a job without key, headers or further parts."""
    if not group:
        return pack_job(V1, created_at_ms, 0, 0, 0, size)
    named = key_and_group(b"", group)
    return pack_job(V2, created_at_ms, 0, len(named), 0, size) + named


def key_and_group(key: bytes, group: bytes) -> bytes:
    """Key and group as a job's row stores them: separated by a zero byte if there is a group."""
    return key + _BEFORE_GROUP + group if group else key


def named_group(named: bytes) -> bytes:
    """The group in what `key_and_group` made; empty if there is none."""
    return named.rpartition(_BEFORE_GROUP)[2] if _BEFORE_GROUP in named else b""


def encode_plain_jobs(created_at_ms: int, payloads: Sequence[bytes], group: bytes = b"") -> list[bytes]:
    """As `encode_plain_job`, for many jobs of one group or none. Rows of one length share their head and its CRC."""
    shared = {}
    for size in set(map(len, payloads)):
        head = plain_job_head(created_at_ms, size, group)
        shared[size] = (Struct(f">{len(head)}s{size}sI").pack, head, crc32(head))
    summed = crc32 if max(shared, default=0) <= LONG else crc32_held
    if len(shared) == 1:
        pack, head, crc = next(iter(shared.values()))
        return [pack(head, payload, summed(payload, crc)) for payload in payloads]
    return [
        (of_size := shared[len(payload)])[0](of_size[1], payload, summed(payload, of_size[2])) for payload in payloads
    ]


def encode_job(
    created_at_ms: int, payload: bytes, key: bytes, headers: bytes, group: bytes = b""
) -> tuple[bytes, list[bytes]]:
    """The job's row, and the encoded further parts of a large payload.

    Version 2 has a group, whose bytes count as the key's (`key_and_group`).
    """
    size = len(payload)
    parts: list[bytes] = []
    first = payload
    if size > PART_BYTES:
        first = payload[:PART_BYTES]
        parts = split_parts(payload, PART_BYTES)
    named = key_and_group(key, group)
    version = V2 if group else V1
    body = _JOB.pack(version, created_at_ms, len(parts), len(named), len(headers), size) + named + headers + first
    return body + crc32_held(body).to_bytes(4, "big"), parts


_BEFORE_GROUP = b"\0"
JOB_BYTES = _JOB_BYTES = _JOB.size
_unpack_job = _JOB.unpack_from


JobFields = tuple[Any, ...]
"""The fields of a `JobRecord`, in their order."""


def job_fields(value: bytes, job: bytes) -> JobFields:
    """The fields of `decode_job` as a plain tuple, which is faster. Raises Corrupt."""
    body = value[:-4]
    size = len(body)
    if size < _JOB_BYTES or (crc32(body) if size <= LONG else crc32_held(body)) != unpack_crc(value, size)[0]:
        raise Corrupt(f"its stored payload is damaged ({len(value)} bytes)", job.hex())
    version, created_at_ms, parts, key_bytes, headers_bytes, payload_bytes = _unpack_job(body)
    if version == V1 and not key_bytes and not headers_bytes:
        return created_at_ms, parts, b"", b"", payload_bytes, body[_JOB_BYTES:], b""
    if version != V1 and (version != V2 or not key_bytes):
        raise Corrupt(f"its stored payload is damaged ({len(value)} bytes)", job.hex())
    at_headers = _JOB_BYTES + key_bytes
    at_payload = at_headers + headers_bytes
    key, headers = body[_JOB_BYTES:at_headers], body[at_headers:at_payload]
    group = b""
    if version == V2:
        key, parted, group = key.rpartition(_BEFORE_GROUP)
        if not parted or not group:
            raise Corrupt(f"its stored payload is damaged ({len(value)} bytes)", job.hex())
    return created_at_ms, parts, key, headers, payload_bytes, body[at_payload:], group


def job_group(value: bytes, job: bytes) -> bytes:
    """The group's name in a job's row; empty if it has none. Raises Corrupt."""
    body = value[:-4]
    size = len(body)
    if size < _JOB_BYTES or (crc32(body) if size <= LONG else crc32_held(body)) != unpack_crc(value, size)[0]:
        raise Corrupt(f"its stored payload is damaged ({len(value)} bytes)", job.hex())
    if body[0] != V2:
        return b""
    return named_group(body[_JOB_BYTES : _JOB_BYTES + _unpack_job(body)[3]])


def decode_job(value: bytes, job: bytes) -> JobRecord:
    return new_tuple(JobRecord, job_fields(value, job))


def job_rows(values: Sequence[Any]) -> list[JobFields] | None:
    """The fields of rows that have one length and only a payload; None: the rows are others, or damaged."""
    first = values[0]
    size = len(first) - 4 if type(first) is bytes else 0
    if size < _JOB_BYTES:
        return None
    unpack, unpack_sum, body_of = _of_size(size)
    try:
        rows = list(map(unpack, values))
    except (TypeError, StructError):
        return None
    summed = crc32 if size <= LONG else crc32_held
    if list(map(unpack_sum, values)) != list(zip(map(summed, map(body_of, values)))):
        return None
    versions, created, parts, keys, headers, sizes, payloads = zip(*rows, strict=True)
    if any(keys) or any(headers) or versions.count(V1) != len(rows):
        return None
    return list(zip(created, parts, _NONE, _NONE, sizes, payloads, _NONE, strict=False))


_NONE = repeat(b"")


@lru_cache(64)
def _of_size(size: int) -> tuple[Any, Any, Any]:
    return Struct(f"{_JOB.format}{size - _JOB_BYTES}s4x").unpack, Struct(f">{size}xI").unpack, itemgetter(slice(size))


def decode_jobs(values: Sequence[bytes | Corrupt | None], jobs: Sequence[bytes]) -> list[JobRecord | Corrupt]:
    """As `decode_job`, for many jobs; a missing or damaged row gives an error in its place."""
    return list(map(job_or_damage, values, jobs))


def job_or_damage(value: bytes | Corrupt | None, job: bytes) -> JobRecord | Corrupt:
    """As `decode_job`; returns an error for a row that is missing, damaged or could not be read."""
    if type(value) is bytes:
        try:
            return new_tuple(JobRecord, job_fields(value, job))
        except Corrupt as exc:
            return exc
    return Corrupt(value.detail if isinstance(value, Corrupt) else "its payload is missing", job.hex())


def split_parts(data: bytes, start: int) -> list[bytes]:
    return [seal(V1_BYTE + data[at : at + PART_BYTES]) for at in range(start, len(data), PART_BYTES)]


def join_parts(first: bytes, parts: Sequence[bytes | None], total: int, job: bytes, what: str = "payload") -> bytes:
    """Join the parts of a large payload or result. Raises Corrupt."""
    pieces = [first]
    for part in parts:
        if part is None:
            raise Corrupt(f"a part of its {what} is missing", job.hex())
        try:
            pieces.append(unseal(f"a part of its {what}", part)[1:])
        except Corrupt as exc:
            raise Corrupt(exc.detail, job.hex()) from None
    whole = b"".join(pieces)
    if len(whole) != total:
        raise Corrupt(f"its {what} has {len(whole)} bytes instead of {total}", job.hex())
    return whole


_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode


def encode_headers(headers: dict[str, str]) -> bytes:
    return encode_msgpack(headers) if headers else b""


def decode_headers(raw: bytes, job: bytes) -> dict[str, str]:
    if not raw:
        return {}
    try:
        return _decode_headers(raw)
    except msgspec.DecodeError as exc:
        raise Corrupt("its headers cannot be read", job.hex()) from exc
