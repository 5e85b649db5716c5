"""A group of a queue: how many of its jobs wait and are leased, and what its limits need."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tenure.storage.records.framing import V1, damaged, new_tuple, seal, unseal

_GROUP = Struct(">BHQQQ")
_unpack = _GROUP.unpack_from


class GroupRecord(NamedTuple):
    #: A bit for each priority whose turn the group lost when it came to its limit of leased jobs.
    at_limit: int
    waiting: int
    leased: int
    #: Of its rate's bucket: when it is full again, in nanoseconds; 0: it is full.
    full_at_ns: int
    name: bytes


def encode_group(record: GroupRecord) -> bytes:
    return seal(_GROUP.pack(V1, record.at_limit, record.waiting, record.leased, record.full_at_ns) + record.name)


def decode_group(value: bytes) -> GroupRecord:
    body = unseal("the row of a group", value)
    if len(body) <= _GROUP.size:
        raise damaged("the row of a group", value)
    return new_tuple(GroupRecord, (*_unpack(body)[1:], body[_GROUP.size :]))
