"""A job that waits for others: how many of its parents have not ended, and what a dead one means."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from tenure.errors import Corrupt
from tenure.model.job import OnParentDead
from tenure.storage.records.framing import V1, seal, unseal

_BLOCKED = Struct(">BIB")
#: Stored on disk: do not renumber.
ON_PARENT_DEAD: tuple[OnParentDead, ...] = ("cancel", "run", "wait")


class BlockedRecord(NamedTuple):
    version: int
    #: Parents that have not ended.
    open: int
    #: What a dead parent means: a place in `ON_PARENT_DEAD`.
    on_parent_dead: int


def encode_blocked(open_parents: int, on_parent_dead: int) -> bytes:
    return seal(_BLOCKED.pack(V1, open_parents, on_parent_dead))


def decode_blocked(value: bytes, job: bytes) -> BlockedRecord:
    try:
        body = unseal("what it waits for", value)
        return BlockedRecord(*_BLOCKED.unpack(body))
    except (Corrupt, StructError) as exc:
        raise Corrupt(f"what it waits for cannot be read: {exc}", job.hex()) from exc
