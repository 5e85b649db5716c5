"""Records of leases, of the jobs under them, and of claims made with an id."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from tenure.storage.checksum import crc32
from tenure.storage.records.framing import V1, V1_BYTE, damaged, new_tuple, pack_crc, seal, unpack_crc, unseal

_LEASE = Struct(">BQQIII16s64s")
_pack_lease = _LEASE.pack
_unpack_lease = _LEASE.unpack_from
_LEASE_BODY, _LEASE_BYTES = _LEASE.size, _LEASE.size + 4
_seal_packed_lease = Struct(f">{_LEASE_BODY}sI").pack


class LeaseRecord(NamedTuple):
    version: int
    expires_at_ms: int
    granted_at_ms: int
    given: int
    open: int
    lost: int
    #: The digest of the claim's id, or zeros.
    claim: bytes
    #: UTF-8, padded with zeros.
    worker: bytes

    @property
    def worker_name(self) -> str:
        return self.worker.rstrip(b"\0").decode("utf-8", "replace")


def new_lease(expires_at_ms: int, now_ms: int, count: int, claim: bytes, worker: str) -> LeaseRecord:
    return LeaseRecord(V1, expires_at_ms, now_ms, count, count, 0, claim, worker.encode())


def encode_lease(record: LeaseRecord) -> bytes:
    return seal(_LEASE.pack(*record))


def encode_new_lease(expires_at_ms: int, now_ms: int, count: int, claim: bytes, worker: bytes) -> bytes:
    """As `encode_lease(new_lease(…))`, in one step."""
    body = _pack_lease(V1, expires_at_ms, now_ms, count, count, 0, claim, worker)
    return _seal_packed_lease(body, crc32(body))


def decode_lease(value: bytes, lease: bytes) -> LeaseRecord:
    if len(value) == _LEASE_BYTES and value[0] == V1 and unpack_crc(value, _LEASE_BODY)[0] == crc32(value[:-4]):
        return new_tuple(LeaseRecord, _unpack_lease(value))
    raise damaged(f"lease {lease.hex()}", value)


_LEASE_JOB = Struct(">16sQ")
_pack_lease_job = Struct(">B16sQ").pack
_pack_token = Struct(">Q").pack


def encode_lease_jobs(jobs: Sequence[bytes], tokens: Sequence[int]) -> bytes:
    if len(jobs) == 1:
        body = _pack_lease_job(V1, jobs[0], tokens[0])
        return body + pack_crc(crc32(body))
    if jobs and tokens.count(tokens[0]) == len(tokens):
        token = _pack_token(tokens[0])  # as in most claims: no Python code runs for each job
        return seal(b"".join((V1_BYTE, token.join(jobs), token)))
    return seal(V1_BYTE + b"".join(map(_LEASE_JOB.pack, jobs, tokens)))


def decode_lease_jobs(value: bytes, lease: bytes) -> list[tuple[bytes, int]]:
    """(job, token) of every job that the lease was granted for. Raises Corrupt."""
    body = unseal(f"the jobs of lease {lease.hex()}", value)
    return list(_LEASE_JOB.iter_unpack(body[1:]))


_CLAIM = Struct(">B16s16sB")


class ClaimRecord(NamedTuple):
    """A claim made with an id: its lease, a digest of its arguments, whether the lease expired."""

    version: int
    lease: bytes
    asked: bytes
    expired: int


def encode_claim(lease: bytes, asked: bytes, expired: bool = False) -> bytes:
    return seal(_CLAIM.pack(V1, lease, asked, expired))


def decode_claim(value: bytes) -> ClaimRecord:
    body = unseal("a remembered claim", value)
    if len(body) != _CLAIM.size:
        raise damaged("a remembered claim", value)
    return ClaimRecord._make(_CLAIM.unpack(body))
