"""Records of jobs that wait for other jobs.

blocked    how many of a job's parents have not ended, and what a dead parent does
parents    the parents of a job
children   a block of jobs enqueued together, and which of them are parents of one job
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from tenure.errors import Corrupt
from tenure.model.job import OnParentDead
from tenure.storage.records.framing import V1, V1_BYTE, seal, unseal

_BLOCKED = Struct(">BIB")
_BLOCK = Struct(">BQB16s")
#: Parents in a row of `parents`. Stored on disk: do not change.
PARENTS_A_ROW = 500
_REFERENCE = 20
#: Stored on disk: do not renumber.
ON_PARENT_DEAD: tuple[OnParentDead, ...] = ("cancel", "run", "wait")


class BlockedRecord(NamedTuple):
    version: int
    #: Parents that have not ended.
    open: int
    #: What a dead parent does: an index of `ON_PARENT_DEAD`.
    on_parent_dead: int


def encode_blocked(open_parents: int, on_parent_dead: int) -> bytes:
    return seal(_BLOCKED.pack(V1, open_parents, on_parent_dead))


def decode_blocked(value: bytes, job: bytes) -> BlockedRecord:
    try:
        body = unseal("what it waits for", value)
        return BlockedRecord(*_BLOCKED.unpack(body))
    except (Corrupt, StructError) as exc:
        raise Corrupt(f"what it waits for cannot be read: {exc}", job.hex()) from exc


def encode_parents(parents: Sequence[bytes]) -> bytes:
    """`parents`: at most `PARENTS_A_ROW` keys, each made by `keyspace.of_queue`."""
    return seal(V1_BYTE + b"".join(parents))


def decode_parents(value: bytes, job: bytes) -> list[bytes]:
    try:
        body = unseal("what it waits for", value)
    except Corrupt as exc:
        raise Corrupt(f"its parents cannot be read: {exc}", job.hex()) from exc
    return [body[at : at + _REFERENCE] for at in range(1, len(body), _REFERENCE)]


class BlockRecord(NamedTuple):
    """Jobs with evenly spaced ids, and which of them are parents of one job. The row's key has the last of the jobs."""

    version: int
    #: The difference between two ids, and the number of jobs.
    stride: int
    jobs: int
    #: A bit for each job that is a parent; the lowest bit is the last job's.
    members: int


def encode_block(record: BlockRecord) -> bytes:
    return seal(_BLOCK.pack(V1, record.stride, record.jobs, record.members.to_bytes(16, "big")))


def decode_block(value: bytes, child: bytes) -> BlockRecord:
    try:
        version, stride, jobs, members = _BLOCK.unpack(unseal("what waits for its parents", value))
    except (Corrupt, StructError) as exc:
        raise Corrupt(f"which of its parents it waits for cannot be read: {exc}", child.hex()) from exc
    return BlockRecord(version, stride, jobs, int.from_bytes(members, "big"))
